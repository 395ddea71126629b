package samekey_test

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"math/rand"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"

	"github.com/samekey/samekey"
)

func TestPrintableValueIsKeptUnchanged(t *testing.T) {
	for _, value := range []string{
		"a", "~", "!", "order 1", "Order-1", `"quoted"`, "a%2Fb", "a/b",
		strings.Repeat("k", 255), samekey.Mint(),
	} {
		key, err := samekey.NewKey(value, "acme", "orders.create")
		if err != nil {
			t.Errorf("%q: %v", value, err)
			continue
		}
		if key.Value != value || key.Scope != "acme/orders.create" {
			t.Errorf("%q became %q in scope %q", value, key.Value, key.Scope)
		}
		must(t, key.Validate())
	}
}

func TestInvalidValueIsRefusedAndNeverTrimmed(t *testing.T) {
	for value, reason := range map[string]string{
		"":                       "is empty",
		" ":                      "starts or ends with a space",
		" a":                     "starts or ends with a space",
		"a ":                     "starts or ends with a space",
		"a\n":                    "not printable ASCII at offset 1",
		"a\tb":                   "not printable ASCII at offset 1",
		"\x00":                   "not printable ASCII at offset 0",
		"ab\x00":                 "not printable ASCII at offset 2",
		"\xff":                   "not printable ASCII at offset 0",
		"a\x7f":                  "not printable ASCII at offset 1",
		"zoë":                    "not printable ASCII at offset 2",
		"a\u00a0":                "not printable ASCII at offset 1",
		strings.Repeat("k", 256): "is 256 bytes long, more than 255",
	} {
		_, err := samekey.NewKey(value, "acme", "orders.create")
		wantKeyError(t, err, "value", reason)
		wantKeyError(t, samekey.Key{Scope: "acme", Value: value}.Validate(), "value", reason)
	}
}

func TestLengthRuleAppliesToAnyContent(t *testing.T) {
	random := make([]byte, 8<<10)
	rand.New(rand.NewSource(1)).Read(random)
	var messages []string
	for _, value := range []string{strings.Repeat("k", 8<<10), strings.Repeat(" ", 8<<10), string(random)} {
		_, err := samekey.NewKey(value, "acme", "orders.create")
		wantKeyError(t, err, "value", "is 8192 bytes long, more than 255")
		messages = append(messages, err.Error())
	}
	if messages[0] != messages[1] || messages[0] != messages[2] {
		t.Errorf("the same mistake has several messages: %q", messages)
	}
}

func TestInvalidScopeIsRefusedWithItsPart(t *testing.T) {
	for _, c := range []struct {
		parts         []string
		field, reason string
	}{
		{nil, "scope", "has no part"},
		{[]string{""}, "scope part 1", "is empty"},
		{[]string{"acme", ""}, "scope part 2", "is empty"},
		{[]string{"acme", "", "x"}, "scope part 2", "is empty"},
		{[]string{"acme", " "}, "scope part 2", "starts or ends with a space"},
		{[]string{"acme ", "x"}, "scope part 1", "starts or ends with a space"},
		{[]string{"acme", "x\n"}, "scope part 2", "has a control character"},
		{[]string{"a\x00", "x"}, "scope part 1", "has a control character"},
		{[]string{"a\x7f"}, "scope part 1", "has a control character"},
		{[]string{"a\xff"}, "scope part 1", "is not valid UTF-8"},
		{[]string{strings.Repeat("a", 256)}, "scope", "is 256 bytes long, more than 255"},
		{[]string{strings.Repeat("a", 200), strings.Repeat("b", 55)}, "scope", "is 256 bytes long"},
		{[]string{strings.Repeat("/", 86)}, "scope", "is 258 bytes long"},
		{[]string{"acme"}, "scope", "has one part, but needs two"},
	} {
		_, err := samekey.NewKey("order-1", c.parts...)
		wantKeyError(t, err, c.field, c.reason)
	}
	for _, parts := range [][]string{
		{"a", strings.Repeat("a", 253)}, {strings.Repeat("a", 200), strings.Repeat("b", 54)}, {"aa", strings.Repeat("/", 84)}, {"my tenant", "zoë"},
	} {
		if _, err := samekey.NewKey("order-1", parts...); err != nil {
			t.Errorf("%q: %v", parts, err)
		}
	}
	for scope, field := range map[string]string{"": "scope", "/": "scope part 1", "a/": "scope part 2", "a//b": "scope part 2", "zoë": "scope", "a ": "scope"} {
		err := samekey.Key{Scope: scope, Value: "order-1"}.Validate()
		wantKeyError(t, err, field, "")
	}
}

func TestScopePartsDoNotRunTogether(t *testing.T) {
	seen := map[string][]string{}
	for _, parts := range [][]string{
		{"a/b", "c"}, {"a", "b/c"}, {"a", "b", "c"}, {"a/b/c", "c"}, {"a%2Fb", "c"}, {"a%2Fb/c", "c"}, {"a%252Fb", "c"}, {"a", "b%2Fc"},
		{"A", "b", "c"}, {"a b", "c"}, {"a%20b", "c"}, {"ab", "c"}, {"ë", "c"}, {"%C3%AB", "c"}, {"e\u0308", "c"},
	} {
		key, err := samekey.NewKey("order-1", parts...)
		must(t, err)
		if other, ok := seen[key.Scope]; ok {
			t.Errorf("%q and %q share the scope %q", parts, other, key.Scope)
		}
		seen[key.Scope] = parts
	}
}

func TestOneValueInTwoScopesIsTwoKeysEverywhere(t *testing.T) {
	keys := []samekey.Key{{Scope: "a/refund", Value: "1"}, {Scope: "a/charge", Value: "1"}, {Scope: "b/charge", Value: "1"}}
	hashes, deliveries := map[string]bool{}, map[uuid.UUID]bool{}
	for _, key := range keys {
		hashes[key.Hash()] = true
		deliveries[samekey.DeliveryKey(key, "call", "")] = true
	}
	if len(hashes) != 3 || len(deliveries) != 3 {
		t.Errorf("3 keys have %d hashes and %d delivery keys", len(hashes), len(deliveries))
	}
}

func TestAKeyIsNeverPrinted(t *testing.T) {
	const secret, tenant = "SECRETVALUE", "SECRETTENANT"
	key := samekey.Key{Scope: tenant, Value: secret}
	var log bytes.Buffer
	for _, logger := range []*slog.Logger{slog.New(slog.NewTextHandler(&log, nil)), slog.New(slog.NewJSONHandler(&log, nil))} {
		logger.Info("one", "key", key, "pointer", &key)
	}
	printed := []string{log.String(), key.String(), fmt.Sprint(key), fmt.Sprint(&key)}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d", "%40s", "%T %v"} {
		in := struct{ Key samekey.Key }{key}
		printed = append(printed, fmt.Sprintf(verb, key), fmt.Sprintf(verb, &key), fmt.Sprintf(verb, in), fmt.Sprintf(verb, []samekey.Key{key}))
	}
	for _, text := range printed {
		lower := strings.ToLower(text)
		for _, leak := range []string{secret, tenant, fmt.Sprintf("%x", secret), fmt.Sprintf("%x", tenant)} {
			if strings.Contains(lower, strings.ToLower(leak)) {
				t.Errorf("printed %q", text)
			}
		}
	}
	if !strings.Contains(log.String(), "key:"+key.Hash()) || key.String() != "key:"+key.Hash() {
		t.Errorf("the hash %s is not what is logged: %s", key.Hash(), log.String())
	}
}

func TestAKeyErrorHoldsNothingOfTheKey(t *testing.T) {
	for _, bad := range []string{"SECRETVALUE\x00", "SECRETVALUE ", strings.Repeat("SECRETVALUE", 99), "SECRETVALUE\xff"} {
		_, inValue := samekey.NewKey(bad, "acme", "orders.create")
		_, inScope := samekey.NewKey("order-1", "acme", bad)
		for _, err := range []error{inValue, inScope} {
			if err == nil || strings.Contains(fmt.Sprintf("%v %+v %#v", err, err, err), "SECRET") {
				t.Errorf("got %#v", err)
			}
		}
	}
}

func TestTheHashOfAKeyIsTheSameInEveryRelease(t *testing.T) {
	key := samekey.Key{Scope: "acme/orders.create", Value: "order-1"}
	if key.Hash() != "ff043d13" {
		t.Errorf("the hash became %s: logs of two releases can no longer be joined", key.Hash())
	}
	if key == (samekey.Key{}) || key.IsZero() || !(samekey.Key{}).IsZero() {
		t.Error("IsZero is wrong")
	}
}

func TestMintedKeysDifferAndAreValid(t *testing.T) {
	seen := map[string]bool{}
	for range 10_000 {
		value := samekey.Mint()
		if seen[value] {
			t.Fatal("one value was minted twice")
		}
		seen[value] = true
		if _, err := samekey.NewKey(value, "acme", "orders.create"); err != nil {
			t.Fatal(err)
		}
	}
	if id := uuid.MustParse(samekey.Mint()); id.Version() != 8 || id.Variant() != uuid.RFC4122 {
		t.Errorf("minted version %d, variant %s", id.Version(), id.Variant())
	}
}

// Keys of one moment lie together, in 256 places.
func TestMintedKeysSpreadOver256Pages(t *testing.T) {
	before, places, sorted := time.Now().UnixMilli(), map[byte]bool{}, 0
	last := samekey.Mint()
	for range 10_000 {
		value := samekey.Mint()
		if value > last {
			sorted++
		}
		last = value
		id := uuid.MustParse(value)
		places[id[0]] = true
		var at int64
		for _, b := range id[1:6] {
			at = at<<8 | int64(b)
		}
		if now := time.Now().UnixMilli(); at < before&(1<<40-1) || at > now&(1<<40-1) {
			t.Fatalf("%s has the time %d, made from %d to %d", value, at, before, now)
		}
	}
	if len(places) != 256 || sorted < 4_000 || sorted > 6_000 {
		t.Errorf("%d places, %d of 10,000 greater than the one before", len(places), sorted)
	}
}

// FuzzNewKey holds the rules against a model of them: two regular expressions, and unescaping as the inverse of
// escaping.
func FuzzNewKey(f *testing.F) {
	for _, seed := range []string{"", " ", "a", "a b", "a/b", "%", "%2F", "zoë", "\x00", "\xff", "\x7f", strings.Repeat("k", 256)} {
		f.Add(seed, "acme", "orders")
		f.Add("order-1", seed, "orders")
		f.Add("order-1", "acme", seed)
	}
	validValue := regexp.MustCompile(`^[!-~]([ -~]{0,253}[!-~])?$`)
	validPart := regexp.MustCompile(`^[^ \x00-\x1f\x7f]([^\x00-\x1f\x7f]*[^ \x00-\x1f\x7f])?$`)
	f.Fuzz(func(t *testing.T, value, first, second string) {
		key, err := samekey.NewKey(value, first, second)
		valid := validValue.MatchString(value)
		for _, part := range []string{first, second} {
			valid = valid && utf8.ValidString(part) && validPart.MatchString(part)
		}
		if err != nil {
			wantKeyError(t, err, "", "")
			if valid && len(first)+len(second) < 80 {
				t.Errorf("%q in %q, %q: %v", value, first, second, err)
			}
			return
		}
		if !valid || key.Value != value {
			t.Errorf("%q in %q, %q was taken as %q", value, first, second, key.Value)
		}
		must(t, key.Validate())
		a, b, _ := strings.Cut(key.Scope, "/")
		if unescape(t, a) != first || unescape(t, b) != second {
			t.Errorf("%q, %q became %q", first, second, key.Scope)
		}
	})
}

func unescape(t *testing.T, part string) string {
	t.Helper()
	text, err := url.PathUnescape(part)
	must(t, err)
	return text
}

// wantKeyError wants a *KeyError of that field, if any is given, whose reason holds the given text.
func wantKeyError(t *testing.T, err error, field, reason string) {
	t.Helper()
	var invalid *samekey.KeyError
	if !errors.As(err, &invalid) {
		t.Errorf("got %v, want a *KeyError", err)
		return
	}
	if (field != "" && invalid.Field != field) || !strings.Contains(invalid.Reason, reason) || invalid.Do == "" {
		t.Errorf("got %q, want field %q and reason %q", err, field, reason)
	}
}

func isA[E error](err error) bool {
	_, ok := errors.AsType[E](err)
	return ok
}
