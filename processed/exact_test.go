package processed_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/samekey/samekey"
	"github.com/samekey/samekey/processed"
)

type (
	hidden struct {
		Shown int
		lost  int
	}
	oneWay struct{ n int } // encodes, and decodes to something else
	coarse struct{ F float64 }
	faulty struct{ Err error }
	within struct{ V any }
	raw    []byte
)

func (o oneWay) MarshalJSON() ([]byte, error)  { return []byte(strconv.Itoa(o.n)), nil }
func (o *oneWay) UnmarshalJSON(b []byte) error { o.n = len(b); return nil }

// UnmarshalJSON takes the number for a float, as a careless type does.
func (c *coarse) UnmarshalJSON(b []byte) error {
	var v map[string]float64
	err := json.Unmarshal(b, &v)
	c.F = math.Round(v["F"])
	return err
}

// answered makes the request twice with a function that returns the value, and returns both answers.
func answered[T any](t *testing.T, pool *pgxpool.Pool, k string, value T) (first, second processed.Result[T], err error) {
	run := func() (processed.Result[T], error) {
		return processed.Run(t.Context(), pool, request(t, k, `1`), func(context.Context, pgx.Tx) (T, error) { return value, nil })
	}
	if first, err = run(); err != nil {
		return first, second, err
	}
	second, err = run()
	return first, second, err
}

// exact is a case whose type is erased: it fails unless the two answers are equal and print as wanted, or, where want
// is "", the first call is refused.
func exact[T any](value T, want string) func(*testing.T, *bundle, string) {
	return func(t *testing.T, b *bundle, k string) {
		t.Helper()
		first, second, err := answered(t, b.db.Pool, k, value)
		if want == "" {
			if !errors.Is(err, processed.ErrAnswerUnstorable) || processed.SafeToRetry(err) || strings.Contains(err.Error(), "secret") {
				t.Errorf("want ErrAnswerUnstorable: %+v, %v", first, err)
			}
			return
		}
		if err != nil {
			t.Error(err)
			return
		}
		if first.Deduplicated || !second.Deduplicated || !reflect.DeepEqual(first.Value, second.Value) {
			t.Errorf("first %#v, then %#v", first, second)
		}
		if got := fmt.Sprintf("%v", first.Value); got != want {
			t.Errorf("answered %s, want %s", got, want)
		}
	}
}

// The first caller gets what every replay gives, and what would be another value then is refused now.
func TestReplayEqualsTheFirstAnswer(t *testing.T) {
	zone := time.FixedZone("somewhere", 3*60*60)
	at := time.Date(2026, 3, 1, 12, 0, 0, 123456789, zone)
	cases := map[string]func(*testing.T, *bundle, string){
		"any, a large integer":      exact[any](int64(9007199254740993), "9007199254740993"),
		"any, the largest":          exact[any](uint64(math.MaxUint64), "18446744073709551615"),
		"any inside":                exact(within{int64(9007199254740993)}, "{9007199254740993}"),
		"a map of any":              exact(map[string]any{"n": int64(9007199254740993)}, "map[n:9007199254740993]"),
		"any, a struct":             exact[any](order{"o1", 9007199254740993}, "map[amount:9007199254740993 id:o1]"),
		"any, nil":                  exact[any](nil, "<nil>"),
		"any, bytes":                exact[any]([]byte("x"), "eA=="),
		"an int64":                  exact(int64(9007199254740993), "9007199254740993"),
		"a float":                   exact(0.1, "0.1"),
		"a float32":                 exact(float32(16777217), "1.6777216e+07"),
		"NaN":                       func(t *testing.T, b *bundle, k string) { refusedAnswer(t, b, k, math.NaN()) },
		"a time in a zone":          exact(within{at}, "{2026-03-01T12:00:00.123456789+03:00}"),
		"a string":                  exact("<a&b> \u2028", "<a&b> \u2028"),
		"a string that is not UTF8": exact("secret\xff", ""),
		"one inside":                exact(within{map[string]string{"k\xff": "secret"}}, ""),
		"one in any":                exact[any](map[string]any{"secret": []string{"\xff"}}, ""),
		"U+FFFD itself":             exact("\ufffd", "\ufffd"),
		"unexported fields":         exact(hidden{1, 2}, "{1 0}"),
		"an interface with methods": exact(faulty{errors.New("secret")}, ""),
		"a nil one":                 exact(faulty{}, "{<nil>}"),
		"a type that changes":       exact(oneWay{12345}, ""),
		"one that survives":         exact(oneWay{1}, "{1}"),
		"one that rounds":           exact(coarse{1.5}, ""),
		"a map":                     exact(map[string]int{"b": 2, "a": 1}, "map[a:1 b:2]"),
		"a map of numbers":          exact(map[int]string{2: "b", 1: "a"}, "map[1:a 2:b]"),
		"a nil slice":               exact([]int(nil), "[]"),
		"a nil pointer":             exact((*order)(nil), "<nil>"),
		"bytes":                     exact([]byte("\xff\x00"), "[255 0]"),
		"a type of bytes":           exact(raw("\xff"), "[255]"),
		"raw JSON as it is":         exact(json.RawMessage(`{"a":  1}`), "[123 34 97 34 58 32 32 49 125]"),
		"raw JSON inside":           exact(struct{ R json.RawMessage }{json.RawMessage(`{"a":  1}`)}, "{[123 34 97 34 58 49 125]}"),
		"nothing":                   exact(struct{}{}, "{}"),
	}
	b := setup(t)
	stored := 0
	for name, c := range cases {
		before := b.count("samekey.processed_events")
		c(t, b, strings.ReplaceAll(name, " ", "-"))
		if t.Failed() {
			t.Fatalf("in the case %q", name)
		}
		stored += b.count("samekey.processed_events") - before
	}
	if stored >= len(cases) {
		t.Errorf("%d of %d are stored: a refused answer left its record", stored, len(cases))
	}
}

func refusedAnswer[T any](t *testing.T, b *bundle, k string, value T) {
	t.Helper()
	if _, _, err := answered(t, b.db.Pool, k, value); err == nil {
		t.Error("it was stored")
	}
}

func TestPointerReplaysItsValue(t *testing.T) {
	b := setup(t)
	first, second, err := answered(t, b.db.Pool, "k", &order{"o1", 9007199254740993})
	if err != nil || *first.Value != (order{"o1", 9007199254740993}) || *second.Value != *first.Value {
		t.Errorf("%+v, %+v, %v", first.Value, second.Value, err)
	}
}

// Do has the same rules, and leaves nothing of a request whose answer it refuses.
func TestDoRefusesAnAnswerThatWouldChange(t *testing.T) {
	b := setup(t)
	err := pgx.BeginFunc(t.Context(), b.db.Pool, func(tx pgx.Tx) error {
		_, err := processed.Do(t.Context(), tx, request(t, "k", `1`), func(ctx context.Context, tx samekey.Tx) (string, error) {
			return "\xff", place(ctx, tx, order{"o1", 7})
		})
		if !errors.Is(err, processed.ErrAnswerUnstorable) {
			t.Errorf("want ErrAnswerUnstorable: %v", err)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	b.stored(0, 0, 0)
	failure := (*processed.Failure)(nil)
	if err := processed.Fail(402, "secret\xff"); err == nil || errors.As(err, &failure) || strings.Contains(err.Error(), "secret") {
		t.Errorf("a failure: %v", err)
	}
}

func TestEveryErrorAboutARequestNamesItsField(t *testing.T) {
	b := setup(t)
	good := request(t, "k", `1`)
	for field, spoil := range map[string]func(*processed.Request){
		"Key":       func(r *processed.Request) { r.Key = samekey.Key{} },
		"Payload":   func(r *processed.Request) { r.Payload = raw("{") },
		"Retain":    func(r *processed.Request) { r.Retain = time.Second },
		"Isolation": func(r *processed.Request) { r.Isolation = "chaos" },
	} {
		r := good
		spoil(&r)
		_, err := processed.Run(t.Context(), b.db.Pool, r, never)
		invalid := (*processed.RequestError)(nil)
		for _, err := range []error{err, r.Validate()} {
			if !errors.As(err, &invalid) || invalid.Field != field || processed.SafeToRetry(err) {
				t.Errorf("%s: %v", field, err)
			}
		}
		if field == "Key" && !isA[*samekey.KeyError](err) || field == "Payload" && !isA[*samekey.FingerprintError](err) {
			t.Errorf("%s: %v", field, err)
		}
	}
}

// A type of bytes is the text of a document too, compared by its meaning.
func TestPayloadOfBytesIsADocument(t *testing.T) {
	b := setup(t)
	req := request(t, "k", `{"a": 1}`)
	b.mustPlace(req, order{"o1", 7})
	doc := raw(`{ "a":1.0 }`)
	for _, payload := range []any{doc, &doc} {
		req.Payload = payload
		if res := b.mustPlace(req, order{"o1", 7}); !res.Deduplicated {
			t.Errorf("%T: not a replay", payload)
		}
	}
}
