package processed_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/samekey/samekey"
	"github.com/samekey/samekey/processed"
)

func TestInvalidRequestIsRefusedBeforeTheFunctionRuns(t *testing.T) {
	b := setup(t)
	good := request(t, "k", `1`)
	with := func(change func(*processed.Request)) processed.Request { r := good; change(&r); return r }
	value := func(v string) processed.Request { return with(func(r *processed.Request) { r.Key.Value = v }) }
	payload := func(v any) processed.Request { return with(func(r *processed.Request) { r.Payload = v }) }
	for name, c := range map[string]struct {
		req  processed.Request
		want func(error) bool
	}{
		"no key":            {processed.Request{Payload: []byte(`1`)}, isA[*samekey.KeyError]},
		"blank key":         {value(" "), isA[*samekey.KeyError]},
		"trailing space":    {value("k "), isA[*samekey.KeyError]},
		"NUL":               {value("k\x00"), isA[*samekey.KeyError]},
		"newline":           {value("k\nk"), isA[*samekey.KeyError]},
		"not ASCII":         {value("k\xff"), isA[*samekey.KeyError]},
		"8 KB":              {value(strings.Repeat("k", 8192)), isA[*samekey.KeyError]},
		"no payload":        {payload(nil), nil},
		"empty payload":     {payload([]byte{}), isA[*samekey.FingerprintError]},
		"not JSON":          {payload([]byte("a=b")), isA[*samekey.FingerprintError]},
		"duplicate member":  {payload([]byte(`{"a":1,"a":1}`)), isA[*samekey.FingerprintError]},
		"lone surrogate":    {payload([]byte(`"\ud800"`)), isA[*samekey.FingerprintError]},
		"broken UTF-8":      {payload("\xff"), isA[*samekey.FingerprintError]},
		"not a number":      {payload(math.NaN()), isA[*samekey.FingerprintError]},
		"a body not read":   {payload(io.NopCloser(strings.NewReader("1"))), isA[*samekey.FingerprintError]},
		"a buffer":          {payload(bytes.NewBufferString("1")), isA[*samekey.FingerprintError]},
		"nothing exported":  {payload(struct{ id string }{"o1"}), isA[*samekey.FingerprintError]},
		"a function":        {payload(func() {}), isA[*samekey.FingerprintError]},
		"zero fingerprint":  {payload(samekey.Fingerprint{}), nil},
		"retain too short":  {with(func(r *processed.Request) { r.Retain = time.Second }), nil},
		"retain negative":   {with(func(r *processed.Request) { r.Retain = -time.Hour }), nil},
		"retain too long":   {with(func(r *processed.Request) { r.Retain = 11 * 365 * 24 * time.Hour }), nil},
		"long subject":      {with(func(r *processed.Request) { r.Subject = strings.Repeat("s", 256) }), isA[*processed.RequestError]},
		"hidden subject":    {with(func(r *processed.Request) { r.Subject = "drop table\u200b" }), isA[*processed.RequestError]},
		"unknown isolation": {with(func(r *processed.Request) { r.Isolation = "serializable; drop table orders" }), nil},
	} {
		_, err := processed.Run(t.Context(), b.db.Pool, c.req, never)
		if err == nil || c.want != nil && !c.want(err) {
			t.Errorf("%s: %v", name, err)
		}
		if err != nil && strings.Contains(err.Error(), "drop table") {
			t.Errorf("%s: the error quotes what came: %v", name, err)
		}
	}
	b.stored(0, 0, 0)
}

func TestTheSameValueInTwoScopesIsTwoKeys(t *testing.T) {
	b := setup(t)
	for i, scope := range [][]string{{"acme", "orders.create"}, {"acme", "orders.refund"}, {"globex", "orders.create"}} {
		k, err := samekey.NewKey("k", scope...)
		if err != nil {
			t.Fatal(err)
		}
		res := b.mustPlace(processed.Request{Key: k, Payload: i}, order{k.Scope, 7})
		if res.Deduplicated {
			t.Errorf("%v met another scope's record", scope)
		}
	}
	b.stored(3, 3, 3)
}

func TestPayloadIsComparedUnderTheStoredVersion(t *testing.T) {
	b := setup(t)
	text := []byte(`{"amount":7,"id":"o1"}`)
	run := func(k string, payload any) (processed.Result[order], error) {
		return b.place(processed.Request{Key: key(t, k), Payload: payload}, order{k, 7})
	}
	if _, err := run("json", text); err != nil {
		t.Fatal(err)
	}
	for _, same := range []any{json.RawMessage(` {"id":"o1","amount":7.0}`), order{"o1", 7}, map[string]any{"id": "o1", "amount": 7}} {
		if res, err := run("json", same); err != nil || !res.Deduplicated {
			t.Errorf("%T: %+v, %v", same, res, err)
		}
	}
	if _, err := run("raw", samekey.FingerprintBytes(text)); err != nil {
		t.Fatal(err)
	}
	// A release that gives the text again can still compare with what an older one stored under another version.
	if res, err := run("raw", text); err != nil || !res.Deduplicated {
		t.Errorf("text against a raw fingerprint: %+v, %v", res, err)
	}
	if _, err := run("raw", []byte(`{"id":"o1","amount":7}`)); !errors.Is(err, processed.ErrConflict) {
		t.Errorf("another text against a raw fingerprint: %v", err)
	}
	if _, err := run("json", samekey.FingerprintBytes(text)); err == nil || errors.Is(err, processed.ErrConflict) {
		t.Errorf("two fingerprints that cannot be compared: %v", err)
	}
	b.exec("update samekey.processed_events set hash_version = 99 where idem_key = 'raw'")
	if _, err := run("raw", text); err == nil || !strings.Contains(err.Error(), "deploy the release that stored it") {
		t.Errorf("a newer release's version: %v", err)
	}
}

// answers runs with an answer of type T, twice.
func answers[T any](t *testing.T, b *bundle, k string, value T) (first, again processed.Result[T], err error) {
	t.Helper()
	once := func(context.Context, pgx.Tx) (T, error) { return value, nil }
	if first, err = processed.Run(t.Context(), b.db.Pool, request(t, k, `1`), once); err != nil {
		return first, again, err
	}
	again, err = processed.Run(t.Context(), b.db.Pool, request(t, k, `1`), once)
	return first, again, err
}

func TestAnswersComeBackAsTheyWere(t *testing.T) {
	b := setup(t)
	if _, again, err := answers(t, b, "bytes", []byte("\x00\xff not JSON")); err != nil || string(again.Value) != "\x00\xff not JSON" {
		t.Errorf("%+v, %v", again, err)
	}
	if _, again, err := answers(t, b, "raw", json.RawMessage(`{"b": 1.0,  "a":2}`)); err != nil || string(again.Value) != `{"b": 1.0,  "a":2}` {
		t.Errorf("%+v, %v", again, err)
	}
	if _, again, err := answers(t, b, "nothing", struct{}{}); err != nil || !again.Deduplicated {
		t.Errorf("%+v, %v", again, err)
	}
	if _, again, err := answers(t, b, "number", int64(9007199254740993)); err != nil || again.Value != 9007199254740993 {
		t.Errorf("%+v, %v", again, err)
	}
	if _, again, err := answers(t, b, "nil", (*order)(nil)); err != nil || again.Value != nil {
		t.Errorf("%+v, %v", again, err)
	}
	if b.count("samekey.processed_events where idem_key = 'nothing' and response_body is null") != 1 {
		t.Error("an empty struct was stored")
	}
}

func TestUnstorableAnswerStoresNothing(t *testing.T) {
	b := setup(t)
	if _, _, err := answers(t, b, "fits", make([]byte, 1<<20)); err != nil {
		t.Errorf("1 MiB: %v", err)
	}
	if _, _, err := answers(t, b, "large", make([]byte, 1<<20+1)); !errors.Is(err, processed.ErrAnswerUnstorable) {
		t.Errorf("1 MiB and a byte: %v", err)
	}
	if _, _, err := answers(t, b, "channel", make(chan int)); err == nil {
		t.Error("a channel was stored")
	}
	_, err := processed.Run(t.Context(), b.db.Pool, request(t, "failure", `1`), func(context.Context, pgx.Tx) (order, error) {
		return order{}, processed.Fail(400, strings.Repeat("x", 1<<20))
	})
	if !errors.Is(err, processed.ErrAnswerUnstorable) {
		t.Errorf("failure: %v", err)
	}
	b.stored(0, 0, 1)
}

// quoting is an encoder whose error holds what it was to encode.
type quoting string

func (q quoting) MarshalJSON() ([]byte, error) { return nil, errors.New(string(q)) }

func TestEncoderErrorIsNamedByItsType(t *testing.T) {
	b := setup(t)
	_, _, answer := answers(t, b, "answer", quoting("secret"))
	for name, err := range map[string]error{"answer": answer, "failure": processed.Fail(402, quoting("secret"))} {
		if err == nil || strings.Contains(err.Error(), "secret") || !strings.Contains(err.Error(), "quoting") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestBytesPassedToFailAreJSONText(t *testing.T) {
	b := setup(t)
	const text = `{"b": 1.0,  "reason":"declined"}`
	for k, body := range map[string]any{"bytes": []byte(text), "raw": json.RawMessage(text)} {
		decline := func(context.Context, pgx.Tx) (order, error) { return order{}, processed.Fail(402, body) }
		for _, replay := range []bool{false, true} {
			res, err := processed.Run(t.Context(), b.db.Pool, request(t, k, `1`), decline)
			if string(failureOf(err).Body) != text || res.Deduplicated != replay {
				t.Errorf("%s: %+v, %v", k, res, err)
			}
		}
	}
	failure := (*processed.Failure)(nil)
	for _, body := range []any{[]byte("secret"), json.RawMessage("{"), []byte{}, []byte("\"\xff\"")} {
		if err := processed.Fail(402, body); err == nil || errors.As(err, &failure) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%q: %v", body, err)
		}
	}
}

func TestUnreadableStoredAnswerIsNotDoneAgain(t *testing.T) {
	b := setup(t)
	b.mustPlace(request(t, "k", `1`), order{"secret", 7})
	_, err := processed.Run(t.Context(), b.db.Pool, request(t, "k", `1`), func(context.Context, pgx.Tx) (int, error) { panic("called again") })
	if !errors.Is(err, processed.ErrAnswerUnreadable) || strings.Contains(err.Error(), "secret") {
		t.Errorf("%v", err)
	}
}

func TestAnEventIsHandledOnce(t *testing.T) {
	b := setup(t)
	own := errors.New("own")
	event := processed.Request{Key: key(t, "event-1")}
	once := func(result error) (bool, error) {
		return processed.Once(t.Context(), b.db.Pool, event, func(ctx context.Context, tx pgx.Tx) error {
			return errors.Join(place(ctx, tx, order{"o1", 7}), result)
		})
	}
	for _, failed := range []error{own, processed.Fail(402, nil)} {
		if first, err := once(failed); first || !errors.Is(err, failed) {
			t.Errorf("failed: %v, %v", first, err)
		}
		b.stored(0, 0, 0)
	}
	if first, err := once(nil); !first || err != nil {
		t.Errorf("first: %v, %v", first, err)
	}
	if first, err := once(nil); first || err != nil {
		t.Errorf("again: %v, %v", first, err)
	}
	event.Payload = 2
	if _, err := once(nil); !errors.Is(err, processed.ErrConflict) {
		t.Errorf("another event under the same key: %v", err)
	}
	b.stored(1, 1, 1)
}

func isA[E error](err error) bool {
	_, ok := errors.AsType[E](err)
	return ok
}

// No release writes a record without completed_at. A later one may, for a request that is in progress.
func TestRecordInProgressIsInFlightAndKept(t *testing.T) {
	b := setup(t)
	text := []byte(`{"id":"o1"}`)
	work := func(context.Context, pgx.Tx) (string, error) { return "done", nil }
	if _, err := processed.Run(t.Context(), b.db.Pool, request(t, "open", string(text)), work); err != nil {
		t.Fatal(err)
	}
	b.exec("update samekey.processed_events set completed_at = null, expires_at = now() - interval '1 day'")
	if _, err := processed.Run(t.Context(), b.db.Pool, request(t, "open", string(text)), work); !errors.Is(err, processed.ErrInFlight) {
		t.Errorf("the same request: %v, want ErrInFlight", err)
	}
	if _, err := processed.Run(t.Context(), b.db.Pool, request(t, "open", `{}`), work); !errors.Is(err, processed.ErrConflict) {
		t.Errorf("another request: %v, want ErrConflict", err)
	}
	if done, err := processed.Prune(t.Context(), b.db.Pool, processed.Pruning{}); err != nil || done.Records != 0 {
		t.Errorf("pruned %+v, %v", done, err)
	}
}
