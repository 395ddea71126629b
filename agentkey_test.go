package samekey_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/samekey/samekey"
)

// The values come from an implementation in Python that follows the comments. They never change: a run may be resumed
// after a deploy.
var toolCallKeys = []struct {
	callID string
	within []string
	want   string
}{
	{"call_1", []string{"run-7", "turn-2"}, "52c53ed2-6dc8-8057-82c3-f253fcf77b0b"},
	{"call_1", []string{"run-7"}, "c217ca09-ec14-8278-a319-07b238f8cb3b"},
	{"call_1", []string{"turn-2", "run-7"}, "2e30860f-fe6e-8e32-8d57-3d3b07e6ef7e"},
	{"call_1run-7", []string{"turn-2"}, "6421c738-b8ad-81ab-a86e-c77a901b42ec"},
	{"zoë", []string{"a b", "a/b"}, "a0fca815-2634-8189-b305-3f458b31ad9d"},
	{"toolu_01A09q90qw90lq917835lq9", []string{"run-7"}, "cc2410c7-83b4-824b-b97a-428d5d497b5e"},
}

var stepKeys = []struct{ arguments, want string }{
	{`{"amount": 10.50, "account": "a-1"}`, "6438672e-8e47-8d93-bd93-367e9b16e550"},
	{`{}`, "85ec6407-047e-87b2-a20e-f4e74bdd887c"},
	{`{"n": 9007199254740993}`, "3ee092db-7aa6-80fa-be30-f8100bf41c43"},
	{`{"n": 9007199254740992}`, "3a52feec-670e-80fa-b68a-e982c6bc27d6"},
	{"[\"\\u0000\\b\\t\\n\\f\\r\\u001F\\\"\\\\\\/\x7f\u2028<é😀\", -0.0, -1.50, 1e400, true, false, null, {\"\U00010000\":2, \"\uffff\":1, \"\":{}}]", "b11c9a11-fe0f-883c-892d-1e681a490ad2"},
}

func TestKeysOfAgentCallsAreTheSameInEveryReleaseAndLanguage(t *testing.T) {
	for _, c := range toolCallKeys {
		if got := toolCallKey(t, c.callID, c.within...); got != c.want {
			t.Errorf("%s within %q: got %s, want %s", c.callID, c.within, got, c.want)
		}
	}
	for _, c := range stepKeys {
		if got := stepKey(t, "run-7", "3", "add_credit", c.arguments); got != c.want {
			t.Errorf("%s: got %s, want %s", c.arguments, got, c.want)
		}
	}
}

// The examples that the comments write out in hexadecimal.
func TestExamplesInAgentKeyCommentsAreCorrect(t *testing.T) {
	source, err := os.ReadFile("agentkey.go")
	must(t, err)
	for _, c := range []struct{ got, hashed string }{
		{toolCallKey(t, "call_1", "run-7", "turn-2"), `
//	73616d656b65792f746f6f6c63616c6c2f7631
//	00000006 63616c6c5f31
//	00000005 72756e2d37
//	00000006 7475726e2d32
`},
		{stepKey(t, "run-7", "3", "add_credit", `{"account": "a-1", "amount": 10.5}`), `
//	73616d656b65792f737465702f7631
//	00000005 72756e2d37
//	00000001 33
//	0000000a 6164645f637265646974
//	00000021 7b226163636f756e74223a22612d31222c22616d6f756e74223a313035652d317d
`},
	} {
		if !bytes.Contains(source, []byte(c.hashed)) || !bytes.Contains(source, []byte("value is "+c.got+".\n")) {
			t.Errorf("the comment does not say %s and %s", c.hashed, c.got)
		}
		hashed, err := hex.DecodeString(strings.NewReplacer("/", "", "\t", "", "\n", "", " ", "").Replace(c.hashed))
		must(t, err)
		digest := sha256.Sum256(hashed)
		digest[6], digest[8] = digest[6]&0x0f|0x80, digest[8]&0x3f|0x80
		if want := uuid.UUID(digest[:16]).String(); c.got != want {
			t.Errorf("got %s, and the bytes in the comment give %s", c.got, want)
		}
	}
}

func TestAnAgentsKeyIsAValidValueOfVersion8(t *testing.T) {
	for _, value := range []string{toolCallKey(t, "call_1", "run-7"), stepKey(t, "run-7", "3", "add_credit", `{}`)} {
		id, err := uuid.Parse(value)
		must(t, err)
		if id.Version() != 8 || id.Variant() != uuid.RFC4122 || len(value) != 36 || value != id.String() {
			t.Errorf("%s: version %d, variant %s", value, id.Version(), id.Variant())
		}
		key, err := samekey.NewKey(value, "acme", "add_credit")
		must(t, err)
		if key.Value != value {
			t.Errorf("%s became %s", value, key.Value)
		}
	}
}

func TestEachPartOfAnAgentCallCounts(t *testing.T) {
	seen := map[string]string{}
	add := func(value, of string) {
		t.Helper()
		if other, ok := seen[value]; ok {
			t.Fatalf("%s and %s share a key", of, other)
		}
		seen[value] = of
	}
	// "{}" and "1" are texts too: a step's arguments must not pass for a part.
	texts := []string{"a", "b", "ab", "a b", "b c", "a/b", "b/c", "c", "1", "{}", "call_1", "run-7", "samekey/step/v1"}
	for _, a := range texts {
		for _, b := range texts {
			add(toolCallKey(t, a, b), fmt.Sprintf("call %q", []string{a, b}))
			for _, c := range texts {
				add(toolCallKey(t, a, b, c), fmt.Sprintf("call %q", []string{a, b, c}))
				for _, arguments := range []string{`{}`, `1`, `"a"`, `{"a":"b"}`} {
					add(stepKey(t, a, b, c, arguments), fmt.Sprintf("step %q", []string{a, b, c, arguments}))
				}
			}
		}
	}
	for _, a := range texts {
		add(toolCallKey(t, a, "b", "c", "{}"), fmt.Sprintf("call %q b c {}", a))
	}
}

func TestStepKeyDependsOnTheMeaningOfArguments(t *testing.T) {
	group := map[string]int{}
	for i, docs := range meanings {
		for _, doc := range docs {
			value := stepKey(t, "run-7", "3", "add_credit", doc)
			if other, ok := group[value]; ok && other != i {
				t.Errorf("%.60s has the key of %.60s", doc, meanings[other][0])
			} else if !ok && doc != docs[0] {
				t.Errorf("%.60s and %.60s mean the same and have two keys", doc, docs[0])
			}
			group[value] = i
		}
	}
}

func TestInvalidPartOfAnAgentCallIsNamed(t *testing.T) {
	long := strings.Repeat("é", 512) // 1,024 bytes
	for part, reason := range map[string]string{
		"": "is empty", " ": "starts or ends with a space", "a ": "starts or ends with a space", " a": "starts or ends with a space",
		"a\nb": "has a control character", "a\x00": "has a control character", "\x7f": "has a control character",
		"a\xff": "is not valid UTF-8", "\xed\xa0\x80": "is not valid UTF-8", long + "e": "is 1025 bytes long, more than 1024",
	} {
		refused := func(field string, value string, err error) {
			t.Helper()
			wantKeyError(t, err, field, reason)
			if value != "" {
				t.Errorf("%q as %s gave %s beside the error", part, field, value)
			}
		}
		value, err := samekey.ToolCallKey(part, "run-7")
		refused("callID", value, err)
		value, err = samekey.ToolCallKey("call_1", part, "turn-2")
		refused("run", value, err)
		value, err = samekey.ToolCallKey("call_1", "run-7", part)
		refused("within[0]", value, err)
		value, err = samekey.ToolCallKey("call_1", "run-7", "turn-2", part)
		refused("within[1]", value, err)
		values, err := samekey.ToolCallKeys([]string{"call_1", part}, "run-7")
		refused("callIDs[1]", strings.Join(values, ""), err)
		value, err = samekey.StepKey(part, "3", "add_credit", []byte(`{}`))
		refused("run", value, err)
		value, err = samekey.StepKey("run-7", part, "add_credit", []byte(`{}`))
		refused("step", value, err)
		value, err = samekey.StepKey("run-7", "3", part, []byte(`{}`))
		refused("tool", value, err)
	}
	for _, part := range []string{"a", "a b", "zoë", "a/b", "%", long} {
		toolCallKey(t, part, part)
		stepKey(t, part, part, part, `{}`)
	}
}

func TestArgumentsWithoutSingleMeaningAreRefused(t *testing.T) {
	for arguments, reason := range map[string]string{
		"": "the arguments are empty", " \n": "the arguments are empty",
		`{"a":1,"a":2}`: "a member name twice", `{`: "is incomplete", `{} {}`: "data after the document",
		"\"\xff\"": "invalid UTF-8", `"\ud800"`: "a lone surrogate", `1e10001`: "exponent", `{a:1}`: "not valid JSON",
	} {
		value, err := samekey.StepKey("run-7", "3", "add_credit", []byte(arguments))
		var invalid *samekey.FingerprintError
		if !errors.As(err, &invalid) || !strings.Contains(invalid.Reason, reason) || value != "" {
			t.Errorf("%q: got %q, %v", arguments, value, err)
		}
	}
	if _, err := samekey.StepKey("run-7", "3", "add_credit", nil); err == nil || !strings.Contains(err.Error(), "send {}") {
		t.Errorf("no arguments: %v", err)
	}
}

func TestAgentKeyErrorDoesNotQuoteTheCall(t *testing.T) {
	_, inPart := samekey.ToolCallKey("s3cret\n", "run-7")
	_, inStep := samekey.StepKey("run-7", "s3cret\n", "add_credit", []byte(`{}`))
	_, inArguments := samekey.StepKey("run-7", "3", "add_credit", []byte(`{"s3cret":1,"s3cret":2}`))
	for _, err := range []error{inPart, inStep, inArguments} {
		if err == nil || strings.Contains(fmt.Sprintf("%+v %#v", err, err), "s3cret") {
			t.Errorf("got %#v", err)
		}
	}
}

// FuzzToolCallKey holds equality of values against equality of parts.
func FuzzToolCallKey(f *testing.F) {
	for _, seed := range []string{"", "a", "ab", "a/b", "\x00\x00\x00\x01", "call_1", "zoë", "\xff", " a", strings.Repeat("a", 1025)} {
		f.Add(seed, "run-7", "turn-2", "run-7")
		f.Add("call_1", seed, "a", "ab")
		f.Add("a", "b", seed, seed)
	}
	f.Fuzz(func(t *testing.T, a, b, c, d string) {
		lists := [][]string{{a, a}, {a, b}, {a + b, a}, {b, a}, {a, b, c}, {a + b, c}, {a, b + c}, {c, d}, {a, b, c, d}, {a, b, d}}
		keys := make([]string, len(lists))
		for i, list := range lists {
			value, err := samekey.ToolCallKey(list[0], list[1], list[2:]...)
			if err != nil {
				wantKeyError(t, err, "", "")
			}
			keys[i] = value
		}
		for i, value := range keys {
			for j, other := range keys[:i] {
				same := strings.Join(lists[i], "\x00") == strings.Join(lists[j], "\x00") // no part that is taken has a NUL
				if value != "" && (value == other) != same {
					t.Errorf("%q and %q: %s and %s", lists[i], lists[j], value, other)
				}
			}
		}
	})
}

// FuzzStepKey writes the arguments in other words, as FuzzFingerprintJSON does: the key stays. With one number changed
// in its last place, it differs.
func FuzzStepKey(f *testing.F) {
	for seed := range int64(3) {
		for _, docs := range meanings {
			f.Add("run-7", "3", "add_credit", []byte(docs[0]), seed)
		}
		f.Add("run-7", "", "add_credit", []byte(`{}`), seed)
		f.Add("run-7", "3", "add_credit", []byte(``), seed)
	}
	f.Fuzz(func(t *testing.T, run, step, tool string, arguments []byte, seed int64) {
		want, err := samekey.StepKey(run, step, tool, arguments)
		if err != nil {
			if !isA[*samekey.FingerprintError](err) && !isA[*samekey.KeyError](err) || want != "" {
				t.Errorf("got %q, %v", want, err)
			}
			return
		}
		random, tree := rand.New(rand.NewSource(seed)), parse(t, arguments)
		spelled := spell(random, tree)
		if got := stepKey(t, run, step, tool, spelled); got != want {
			t.Errorf("%q and %q mean the same and have two keys", arguments, spelled)
		}
		if other, err := samekey.StepKey(run, step+"1", tool, arguments); err == nil && other == want {
			t.Errorf("steps %q and %q share a key", step, step+"1")
		}
		if number := firstNumber(tree); number != nil {
			*number = json.Number(nudge(string(*number)))
			nudged, err := samekey.StepKey(run, step, tool, []byte(spell(random, tree)))
			if err == nil && nudged == want {
				t.Errorf("%q and the same with the number %s share a key", arguments, *number)
			}
		}
	})
}

// One id for two calls of an answer: each is done, and a retry of the answer does none of them again.
func TestRepeatedCallIDsGetTheirOwnKeys(t *testing.T) {
	keys := func(ids ...string) []string {
		values, err := samekey.ToolCallKeys(ids, "run-7", "turn-2")
		must(t, err)
		return values
	}
	first := toolCallKey(t, "call_1", "run-7", "turn-2")
	got := keys("call_1", "call_2", "call_1", "call_1")
	want := []string{first, toolCallKey(t, "call_2", "run-7", "turn-2"), "9671653b-fbe0-83b1-96cd-9ca6fbe89344", "999c1567-3b4c-84db-adbd-e2d2fcaa90b5"}
	if !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if again := keys("call_1", "call_2", "call_1", "call_1"); !slices.Equal(again, got) {
		t.Errorf("a retry got %v, want %v", again, got)
	}
	if longer := keys("call_1", "call_2", "call_1", "call_1", "call_3"); !slices.Equal(longer[:4], got) {
		t.Errorf("with one call more: %v", longer)
	}
	// A number is no part that a caller could give.
	for _, within := range [][]string{{"turn-2", "2"}, {"turn-2", "again", "2"}, {"2"}} {
		if slices.Contains(got, toolCallKey(t, "call_1", append([]string{"run-7"}, within...)...)) {
			t.Errorf("within %q is the key of a repeated id", within)
		}
	}
	if empty := keys(); len(empty) != 0 {
		t.Errorf("no calls: %v", empty)
	}
}

func toolCallKey(t *testing.T, callID string, runAndWithin ...string) string {
	t.Helper()
	value, err := samekey.ToolCallKey(callID, runAndWithin[0], runAndWithin[1:]...)
	must(t, err)
	return value
}

func stepKey(t *testing.T, run, step, tool, arguments string) string {
	t.Helper()
	value, err := samekey.StepKey(run, step, tool, []byte(arguments))
	must(t, err)
	return value
}

// The id was saved with the call; the same id again is the same key, whatever the process.
func ExampleToolCallKey() {
	value, err := samekey.ToolCallKey("call_1", "run-7", "turn-2") // all three as saved before the call
	fmt.Println(value, err)

	key, err := samekey.NewKey(value, "acme", "add_credit")
	fmt.Println(key.Scope, err)

	_, err = samekey.ToolCallKey("call_1", "")
	fmt.Println(err)
	// Output:
	// 52c53ed2-6dc8-8057-82c3-f253fcf77b0b <nil>
	// acme/add_credit <nil>
	// samekey: key: run is empty: give the id that was saved with the call: 1 to 1,024 bytes of UTF-8 without control characters or spaces at the ends
}

// Spelling does not matter, meaning does.
func ExampleStepKey() {
	first, _ := samekey.StepKey("run-7", "3", "add_credit", []byte(`{"amount": 10.50, "account": "a-1"}`))
	again, _ := samekey.StepKey("run-7", "3", "add_credit", []byte(`{"account":"a-1","amount":10.5}`))
	next, _ := samekey.StepKey("run-7", "4", "add_credit", []byte(`{"account":"a-1","amount":10.5}`))
	fmt.Println(first)
	fmt.Println(first == again, first == next)
	// Output:
	// 6438672e-8e47-8d93-bd93-367e9b16e550
	// true false
}

// The pages' code is that of examples which compile and are tested.
func TestCodeOnTheKeyPagesIsFromExamples(t *testing.T) {
	var tested bytes.Buffer
	for _, name := range []string{"agent", "natural", "absolute"} {
		text, err := os.ReadFile("processed/" + name + "_example_test.go")
		must(t, err)
		tested.Write(text)
	}
	for _, page := range []string{"docs/agents.md", "docs/natural-keys.md"} {
		text, err := os.ReadFile(page)
		must(t, err)
		blocks := regexp.MustCompile("(?ms)^```(?:go|sql)\n(.*?)^```$").FindAllSubmatch(text, -1)
		if len(blocks) < 3 {
			t.Errorf("%s has %d blocks of code", page, len(blocks))
		}
		for _, block := range blocks {
			if !bytes.Contains(tested.Bytes(), bytes.TrimSuffix(block[1], []byte("\n"))) {
				t.Errorf("%s: this is in no example:\n%s", page, block[1])
			}
		}
	}
}
