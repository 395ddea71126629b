package samekeytest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// reply is what a caller got from one POST.
type reply struct {
	status int
	header http.Header
	body   string
	err    error
}

// post sends one request on a connection of its own, so that a fault of one
// call cannot hide in another's connection.
func post(ctx context.Context, url, key, body string) reply {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		return reply{err: err}
	}
	req.GetBody = nil
	req.Close = true
	if key != "" {
		req.Header.Set("Idempotency-Key", key)
	}
	return do(req)
}

func do(req *http.Request) reply {
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	res, err := client.Do(req)
	if err != nil {
		return reply{err: err}
	}
	defer res.Body.Close()
	data, err := io.ReadAll(res.Body)
	return reply{status: res.StatusCode, header: res.Header, body: string(data), err: err}
}

func get(t *testing.T, url string) reply {
	t.Helper()
	req, err := http.NewRequestWithContext(testContext(t), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	return do(req)
}

func testContext(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// posting sends a request in the background.
func posting(ctx context.Context, url, key, body string) <-chan reply {
	c := make(chan reply, 1)
	go func() { c <- post(ctx, url, key, body) }()
	return c
}

func wantStatus(t *testing.T, r reply, status int) {
	t.Helper()
	if r.err != nil || r.status != status {
		t.Fatalf("got status %d, body %q, error %v; want status %d", r.status, r.body, r.err, status)
	}
}

func wantEffects(t *testing.T, v *Vendor, n int) {
	t.Helper()
	AssertEffects(t, v, n)
}

func TestVendorReplaysTheStoredAnswer(t *testing.T) {
	v := StartVendor(t, &VendorOptions{Answer: func(r VendorRequest) VendorAnswer {
		return VendorAnswer{Status: 200, Header: http.Header{"X-Id": {"a", "b"}}, Body: fmt.Appendf(nil, "{ \"call\":%d,\n\"x\":\"\xff\"}", r.Call)}
	}})
	first := post(testContext(t), v.URL+"/v1/charges", "k1", `{"a":1}`)
	again := post(testContext(t), v.URL+"/v1/charges", `"k1"`, `{"a":1}`) // quoted is the same key
	wantStatus(t, first, 200)
	wantStatus(t, again, 200)
	if first.body != again.body || again.body != "{ \"call\":1,\n\"x\":\"\xff\"}" {
		t.Errorf("bodies %q and %q differ", first.body, again.body)
	}
	if got := again.header.Values("X-Id"); len(got) != 2 {
		t.Errorf("stored header was not replayed: %v", got)
	}
	if first.header.Get("Idempotent-Replayed") != "" || again.header.Get("Idempotent-Replayed") != "true" {
		t.Errorf("Idempotent-Replayed: first %q, again %q", first.header.Get("Idempotent-Replayed"), again.header.Get("Idempotent-Replayed"))
	}
	AssertOneEffect(t, v, "k1")
	l := v.Ledger()
	if c := l.Calls[1]; !c.Replayed || c.Effect || c.Nth != 2 || c.Status != 200 || c.Ended == nil {
		t.Errorf("the replay in the ledger: %+v", c)
	}
	if n := l.ByKey()["k1"]; n != (KeyCounts{Calls: 2, Effects: 1, Replays: 1}) {
		t.Errorf("counts of the key: %+v", n)
	}
}

func TestVendorRefusesACallWithoutOneKey(t *testing.T) {
	v := StartVendor(t, nil)
	header := func(values ...string) http.Header { return http.Header{"Idempotency-Key": values} }
	for name, h := range map[string]http.Header{
		"absent": {}, "empty": header(""), "empty quoted": header(`""`), "two": header("a", "b"), "list": header(`"a", "b"`),
		"open quote": header(`"a`), "long": header(strings.Repeat("x", 256)), "not ASCII": header("\xc3\xa9"),
	} {
		t.Run(name, func(t *testing.T) {
			req, err := http.NewRequestWithContext(testContext(t), http.MethodPost, v.URL+"/v1/charges", strings.NewReader("{}"))
			if err != nil {
				t.Fatal(err)
			}
			req.Header = h
			r := do(req)
			wantStatus(t, r, 400)
			if !strings.Contains(r.body, "idempotency_key") {
				t.Errorf("body %s does not name the problem", r.body)
			}
		})
	}
	wantEffects(t, v, 0)
	if c := v.Ledger().Calls; len(c) != 8 || c[0].Status != 400 {
		t.Errorf("refused calls belong in the ledger: %+v", c)
	}
}

func TestVendorKeyHeader(t *testing.T) {
	v := StartVendor(t, &VendorOptions{KeyHeader: "Cko-Idempotency-Key", AttemptHeader: "X-Try"})
	wantStatus(t, post(testContext(t), v.URL+"/v1/charges", "k", "{}"), 400)
	req, err := http.NewRequestWithContext(testContext(t), http.MethodPost, v.URL+"/v1/charges", strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Cko-Idempotency-Key", `"a\"b\\c"`)
	req.Header.Set("X-Try", "3")
	wantStatus(t, do(req), 201)
	if c := v.Ledger().Calls[1]; c.Key != `a"b\c` || c.Attempt != 3 {
		t.Errorf("key %q, attempt %d", c.Key, c.Attempt)
	}
}

func TestVendorRefusesAKeyThatComesBackWithAnotherRequest(t *testing.T) {
	for _, status := range []int{0, 409} {
		v := StartVendor(t, &VendorOptions{ConflictStatus: status})
		want := status
		if want == 0 {
			want = 422
		}
		wantStatus(t, post(testContext(t), v.URL+"/v1/charges", "k", `{"a":1}`), 201)
		for url, body := range map[string]string{"/v1/charges": `{"a":2}`, "/v1/refunds": `{"a":1}`, "/v1/charges?dry=1": `{"a":1}`} {
			r := post(testContext(t), v.URL+url, "k", body)
			wantStatus(t, r, want)
			if !strings.Contains(r.body, "key_reused") {
				t.Errorf("body %s does not say why", r.body)
			}
		}
		wantEffects(t, v, 1)
	}
}

func TestVendorReportsAKeyInFlight(t *testing.T) {
	v := StartVendor(t, nil)
	v.Hold()
	first := posting(testContext(t), v.URL+"/v1/charges", "k", "{}")
	if err := v.WaitOpen(testContext(t), 1); err != nil {
		t.Fatal(err)
	}
	second := post(testContext(t), v.URL+"/v1/charges", "k", "{}")
	wantStatus(t, second, 409)
	if !strings.Contains(second.body, "key_in_flight") {
		t.Errorf("body %s does not say why", second.body)
	}
	wantStatus(t, get(t, v.URL+"/lookup?key=k"), 409)
	wantEffects(t, v, 0)
	v.Release()
	wantStatus(t, <-first, 201)
	wantStatus(t, post(testContext(t), v.URL+"/v1/charges", "k", "{}"), 201)
	AssertOneEffect(t, v, "k")
}

func TestVendorActsOnceUnderManyCallsOfOneKeyAtOnce(t *testing.T) {
	v := StartVendor(t, nil)
	const keys, callsEach = 10, 20
	var wg sync.WaitGroup
	for i := range keys * callsEach {
		wg.Go(func() {
			r := post(testContext(t), v.URL+"/v1/charges", fmt.Sprintf("k%d", i%keys), "{}")
			if r.status != 201 && r.status != 409 {
				t.Errorf("status %d, error %v", r.status, r.err)
			}
		})
	}
	wg.Wait()
	wantEffects(t, v, keys)
	for i := range keys {
		AssertOneEffect(t, v, fmt.Sprintf("k%d", i))
	}
	if n := v.Counts(); n.Calls != keys*callsEach || n.Open != 0 || n.MaxOpen < 1 {
		t.Errorf("counts: %+v", n)
	}
}

func TestVendorThatIgnoresKeysActsOnEachCall(t *testing.T) {
	v := StartVendor(t, &VendorOptions{IgnoreKeys: true, Identity: IdentityField("order_id")})
	for _, key := range []string{"k", "k", ""} {
		wantStatus(t, post(testContext(t), v.URL+"/v1/messages", key, `{"order_id":"o1"}`), 201)
	}
	wantStatus(t, post(testContext(t), v.URL+"/v1/messages", "", `{"order_id":2}`), 201)
	wantEffects(t, v, 4)
	doubles := v.Ledger().Doubles()
	if len(doubles) != 1 || doubles[0].Identity != "o1" || len(doubles[0].Effects) != 3 || v.Counts().Doubles != 2 {
		t.Errorf("doubles: %+v; count %d", doubles, v.Counts().Doubles)
	}
	wantStatus(t, get(t, v.URL+"/lookup?identity=2"), 200)
	wantStatus(t, get(t, v.URL+"/lookup?identity=3"), 404)
}

func TestVendorSeesADoubleUnderAFreshKeyPerAttempt(t *testing.T) {
	v := StartVendor(t, &VendorOptions{Identity: IdentityField("order_id")})
	for key, body := range map[string]string{"k1": `{"order_id":"o1"}`, "k2": `{"order_id":"o1"}`, "k3": `{"order_id":"o2"}`} {
		wantStatus(t, post(testContext(t), v.URL+"/v1/charges", key, body), 201)
	}
	wantStatus(t, post(testContext(t), v.URL+"/v1/refunds", "k4", `{"order_id":"o1"}`), 201) // another operation
	doubles := v.Ledger().Doubles()
	if len(doubles) != 1 || doubles[0].Identity != "o1" || len(doubles[0].Effects) != 2 {
		t.Errorf("doubles: %+v", doubles)
	}
}

func TestVendorKeepsDeclinesUnlessTheRuleForgets(t *testing.T) {
	v := StartVendor(t, &VendorOptions{Answer: func(r VendorRequest) VendorAnswer {
		if r.Path == "/v1/charges" {
			return VendorAnswer{Status: 402, Body: []byte(`{"error":{"code":"card_declined"}}`)}
		}
		return VendorAnswer{Status: 400, Body: []byte(fmt.Sprintf(`{"call":%d}`, r.Call)), Forget: true}
	}})
	for _, replayed := range []string{"", "true"} {
		r := post(testContext(t), v.URL+"/v1/charges", "k", "{}")
		wantStatus(t, r, 402)
		if got := r.header.Get("Idempotent-Replayed"); got != replayed {
			t.Errorf("Idempotent-Replayed %q, want %q", got, replayed)
		}
	}
	for _, body := range []string{`{"call":3}`, `{"call":4}`} {
		if r := post(testContext(t), v.URL+"/v1/other", "k2", "{}"); r.status != 400 || r.body != body {
			t.Errorf("got %d %s, want 400 %s", r.status, r.body, body)
		}
	}
	wantEffects(t, v, 0)
	if l := v.Ledger(); len(l.Declined) != 1 || l.Counts.Declined != 1 {
		t.Errorf("declined: %+v", l.Declined)
	}
	found := get(t, v.URL+"/lookup?key=k")
	wantStatus(t, found, 200)
	if found.header.Get("Stored-Status") != "402" || !strings.Contains(found.body, "card_declined") {
		t.Errorf("lookup: %v %s", found.header, found.body)
	}
	wantStatus(t, get(t, v.URL+"/lookup?key=k2"), 404)
	wantStatus(t, get(t, v.URL+"/lookup"), 400)
}

func TestPanicInTheRuleReleasesTheKey(t *testing.T) {
	panics := true
	v := StartVendor(t, &VendorOptions{Answer: func(r VendorRequest) VendorAnswer {
		if panics {
			panics = false
			panic(http.ErrAbortHandler)
		}
		return VendorAnswer{Status: 200, Body: []byte("{}")}
	}})
	if r := post(testContext(t), v.URL+"/v1/charges", "k", "{}"); r.err == nil {
		t.Fatalf("got %d, want a cut connection", r.status)
	}
	wantStatus(t, post(testContext(t), v.URL+"/v1/charges", "k", "{}"), 200)
	if v.Counts().Open != 0 {
		t.Errorf("%d calls open", v.Counts().Open)
	}
}

func TestWaitOpenReportsHowManyWereOpen(t *testing.T) {
	v := StartVendor(t, nil)
	ctx, cancel := context.WithCancel(testContext(t))
	cancel()
	err := v.WaitOpen(ctx, 2)
	if !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "0 of 2 calls open") {
		t.Errorf("error: %v", err)
	}
	if err := v.WaitEffects(ctx, 1); !errors.Is(err, context.Canceled) {
		t.Errorf("error: %v", err)
	}
}

func TestCloseEndsParkedCallsAndKeepsTheLedger(t *testing.T) {
	v := StartVendor(t, nil)
	v.Next(FaultHangAfter)
	parked := posting(testContext(t), v.URL+"/v1/charges", "k", "{}")
	if err := v.WaitEffects(testContext(t), 1); err != nil {
		t.Fatal(err)
	}
	if err := v.Close(); err != nil {
		t.Fatal(err)
	}
	if r := <-parked; r.err == nil {
		t.Errorf("the parked call was answered %d", r.status)
	}
	AssertOneEffect(t, v, "k")
	if c := v.Ledger().Calls[0]; c.Status != 0 || c.Ended == nil || v.Counts().Open != 0 {
		t.Errorf("call: %+v", c)
	}
}

func TestNoGoroutineIsLeftWhenAVendorIsClosedUnderLoad(t *testing.T) {
	before := goleak.IgnoreCurrent()
	v := StartVendor(t, nil)
	faults := []Fault{FaultHang, FaultHangAfter, FaultLate, "slow(1h)"}
	v.Next(faults...)
	var calls []<-chan reply
	for i := range faults {
		calls = append(calls, posting(testContext(t), v.URL+"/v1/charges", fmt.Sprint("k", i), "{}"))
	}
	if err := v.WaitOpen(testContext(t), len(faults)); err != nil {
		t.Fatal(err)
	}
	if err := v.Close(); err != nil {
		t.Fatal(err)
	}
	for _, call := range calls {
		if r := <-call; r.err == nil {
			t.Errorf("a parked call was answered %d", r.status)
		}
	}
	goleak.VerifyNone(t, before)
}
