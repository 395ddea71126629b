package samekey_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/big"
	"math/rand"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"unicode/utf16"

	"github.com/samekey/samekey"
)

// FuzzFingerprintJSON respells each document that has a fingerprint: shuffled members, other white space, escapes and
// spellings of numbers keep the fingerprint. Then it changes the last digit of one number: the fingerprint differs.
// The document is read by encoding/json, which shares no code with samekey's reader.
func FuzzFingerprintJSON(f *testing.F) {
	for seed := range int64(20) {
		for _, docs := range meanings {
			f.Add([]byte(docs[0]), seed)
		}
		f.Add([]byte(`{"order":{"id":"o-1","lines":[{"sku":"a","n":1,"price":10.50},{"sku":"b\n","n":20,"price":0.10000000000000000555}]},"note":null,"at":1772366400,"vip":true,"é😀":[[],{},"",-0.0,1e-30]}`), seed)
	}
	f.Fuzz(func(t *testing.T, doc []byte, seed int64) {
		want, err := samekey.FingerprintJSON(doc)
		if err != nil {
			if !isA[*samekey.FingerprintError](err) {
				t.Errorf("got %v", err)
			}
			return
		}
		tree := parse(t, doc)
		random := rand.New(rand.NewSource(seed))
		spelled := spell(random, tree)
		if got := fingerprint(t, spelled); got != want {
			t.Errorf("%q and %q mean the same and have two fingerprints", doc, spelled)
		}
		if number := firstNumber(tree); number != nil {
			*number = json.Number(nudge(string(*number)))
			nudged, err := samekey.FingerprintJSON([]byte(spell(random, tree)))
			if err == nil && nudged == want {
				t.Errorf("%q and the same with the number %s share a fingerprint", doc, *number)
			}
		}
	})
}

// FuzzNumbers holds the equality of two numbers against math/big's.
func FuzzNumbers(f *testing.F) {
	numbers := []string{"0", "-0", "1", "1.0", "10e-1", "0.1", "0.10000000000000000555", "9007199254740993", "9007199254740992", "1e300", "-1e-300", "100", "1E2", "00", "1e"}
	for _, a := range numbers {
		for _, b := range numbers {
			f.Add(a, b)
		}
	}
	valid := regexp.MustCompile(`^-?(0|[1-9][0-9]{0,400})(\.[0-9]{1,400})?([eE][+-]?[0-9]{1,3})?$`)
	f.Fuzz(func(t *testing.T, a, b string) {
		if !valid.MatchString(a) || !valid.MatchString(b) {
			return
		}
		x, _ := new(big.Rat).SetString(a)
		y, _ := new(big.Rat).SetString(b)
		if same := fingerprint(t, a) == fingerprint(t, b); same != (x.Cmp(y) == 0) {
			t.Errorf("%s and %s: one fingerprint is %v", a, b, same)
		}
	})
}

// A tree is nil, bool, string, *json.Number, []any or object.
type object []pair

type pair struct {
	name  string
	value any
}

func parse(t *testing.T, doc []byte) any {
	t.Helper()
	dec := json.NewDecoder(bytes.NewReader(doc))
	dec.UseNumber()
	tree, err := parseValue(dec)
	if err != nil {
		t.Fatalf("%q has a fingerprint, and encoding/json says %v", doc, err)
	}
	return tree
}

func parseValue(dec *json.Decoder) (any, error) {
	token, err := dec.Token()
	if err != nil {
		return nil, err
	}
	switch token := token.(type) {
	case json.Number:
		return &token, nil
	case json.Delim:
		if token == '{' {
			return parseObject(dec)
		}
		return parseArray(dec)
	}
	return token, nil
}

func parseArray(dec *json.Decoder) (any, error) {
	array := []any{}
	for dec.More() {
		value, err := parseValue(dec)
		if err != nil {
			return nil, err
		}
		array = append(array, value)
	}
	_, err := dec.Token()
	return array, err
}

func parseObject(dec *json.Decoder) (any, error) {
	members := object{}
	for dec.More() {
		name, err := dec.Token()
		if err != nil {
			return nil, err
		}
		value, err := parseValue(dec)
		if err != nil {
			return nil, err
		}
		members = append(members, pair{name.(string), value})
	}
	_, err := dec.Token()
	return members, err
}

// spell writes a tree in one of its many spellings.
func spell(random *rand.Rand, tree any) string {
	space := func() string { return strings.Repeat([]string{" ", "\n", "\t", "\r"}[random.Intn(4)], random.Intn(2)) }
	text := ""
	switch tree := tree.(type) {
	case nil:
		text = "null"
	case bool:
		text = strconv.FormatBool(tree)
	case string:
		text = spellString(random, tree)
	case *json.Number:
		text = spellNumber(random, string(*tree))
	case []any:
		var items []string
		for _, item := range tree {
			items = append(items, spell(random, item))
		}
		text = "[" + space() + strings.Join(items, ",") + "]"
	case object:
		var members []string
		for _, i := range random.Perm(len(tree)) {
			members = append(members, space()+spellString(random, tree[i].name)+space()+":"+spell(random, tree[i].value))
		}
		text = "{" + space() + strings.Join(members, ",") + "}"
	default:
		panic(fmt.Sprintf("a %T in a tree", tree))
	}
	return space() + text + space()
}

func spellString(random *rand.Rand, s string) string {
	var b strings.Builder
	b.WriteByte('"')
	for _, r := range s {
		if r >= ' ' && r != '"' && r != '\\' && random.Intn(2) == 0 {
			b.WriteRune(r)
			continue
		}
		for _, unit := range utf16.Encode([]rune{r}) {
			fmt.Fprintf(&b, []string{`\u%04x`, `\u%04X`}[random.Intn(2)], unit)
		}
	}
	b.WriteByte('"')
	return b.String()
}

// spellNumber shifts the decimal point and pads with zeros.
func spellNumber(random *rand.Rand, number string) string {
	mantissa, exponentText, _ := strings.Cut(strings.ToLower(number), "e")
	exponent, _ := new(big.Int).SetString("0"+strings.TrimLeft(exponentText, "+-"), 10)
	if strings.HasPrefix(exponentText, "-") {
		exponent.Neg(exponent)
	}
	if !strings.Contains(mantissa, ".") {
		mantissa += ".0"
	}
	mantissa += strings.Repeat("0", random.Intn(3))
	whole, fraction, _ := strings.Cut(mantissa, ".")
	for range random.Intn(4) {
		if len(fraction) < 2 {
			fraction += "0"
		}
		whole, fraction = whole+fraction[:1], fraction[1:]
		exponent.Sub(exponent, big.NewInt(1))
	}
	sign := ""
	if strings.HasPrefix(whole, "-") {
		sign, whole = "-", whole[1:]
	}
	if whole = strings.TrimLeft(whole, "0"); whole == "" {
		whole = "0"
	}
	if fraction == "" {
		fraction = "0"
	}
	plus := []string{"", "+"}[random.Intn(2)]
	if exponent.Sign() < 0 {
		plus = ""
	}
	return sign + whole + "." + fraction + []string{"e", "E"}[random.Intn(2)] + plus + exponent.String()
}

// nudge returns the number with one more digit, a 1, behind its last.
func nudge(number string) string {
	at := strings.IndexAny(number, "eE")
	if at < 0 {
		at = len(number)
	}
	if strings.Contains(number[:at], ".") {
		return number[:at] + "1" + number[at:]
	}
	return number[:at] + ".1" + number[at:]
}

func firstNumber(tree any) *json.Number {
	switch tree := tree.(type) {
	case *json.Number:
		return tree
	case []any:
		for _, item := range tree {
			if n := firstNumber(item); n != nil {
				return n
			}
		}
	case object:
		for _, member := range tree {
			if n := firstNumber(member.value); n != nil {
				return n
			}
		}
	}
	return nil
}
