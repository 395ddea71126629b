package samekeytest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"syscall"
	"testing"

	"go.uber.org/goleak"
)

// behind is a proxy before a vendor.
func behind(t *testing.T) (*Proxy, *Vendor) {
	t.Helper()
	v := StartVendor(t, nil)
	return StartProxy(t, v.URL), v
}

func lastCall(p *Proxy) ProxyCall {
	calls := p.Calls()
	return calls[len(calls)-1]
}

func TestAProxyPassesRequestAndAnswerAsTheyAre(t *testing.T) {
	type seen struct {
		line, host, body string
		header           http.Header
	}
	got := make(chan seen, 1)
	backend := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		got <- seen{r.Method + " " + r.RequestURI, r.Host, string(body), r.Header}
		w.Header()["Content-Type"] = nil
		w.Header().Set("Location", "/elsewhere")
		w.Header()["X-Two"] = []string{"a", "b"}
		w.WriteHeader(http.StatusSeeOther)
		_, _ = io.WriteString(w, "\x00\xff body")
	}))
	t.Cleanup(backend.Close)
	p := StartProxy(t, backend.URL+"/base")
	req, err := http.NewRequestWithContext(testContext(t), "PATCH", p.URL+"/a%2Fb/c?x=%20&y", strings.NewReader("{ }"))
	if err != nil {
		t.Fatal(err)
	}
	req.Host = "shop.example"
	req.Header["Idempotency-Key"] = []string{`"k1"`}
	req.Header["X-Many"] = []string{"1", "2"}
	res, err := (&http.Transport{DisableKeepAlives: true, DisableCompression: true}).RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != 303 || string(body) != "\x00\xff body" || res.Header.Get("Location") != "/elsewhere" ||
		!slices.Equal(res.Header["X-Two"], []string{"a", "b"}) || res.Header["Content-Type"] != nil {
		t.Errorf("the client got %d %v %q, %v", res.StatusCode, res.Header, body, err)
	}
	s := <-got
	if s.line != "PATCH /base/a%2Fb/c?x=%20&y" || s.host != "shop.example" || s.body != "{ }" ||
		!slices.Equal(s.header["X-Many"], []string{"1", "2"}) || s.header.Get("Idempotency-Key") != `"k1"` || s.header["Accept-Encoding"] != nil {
		t.Errorf("the backend got %+v", s)
	}
	c := lastCall(p)
	if c.Call != 1 || c.Method != "PATCH" || c.Path != "/a%2Fb/c?x=%20&y" || c.Key != `"k1"` || c.Nth != 1 || string(c.Body) != "{ }" || c.Fault != "" ||
		c.Status != 303 || !c.Ended || c.ClientGone || len(c.Backend) != 1 || string(c.Backend[0].Body) != "\x00\xff body" {
		t.Errorf("recorded %+v", c)
	}
	for _, printed := range []string{c.String(), fmt.Sprintf("%+v", c), fmt.Sprintf("%#v", []ProxyCall{c})} {
		if strings.Contains(printed, "k1") || strings.Contains(printed, "{ }") {
			t.Errorf("printed %s", printed)
		}
	}
}

func TestProxyFaults(t *testing.T) {
	eof := func(r reply) bool { return errors.Is(r.err, io.EOF) }
	reset := func(r reply) bool { return errors.Is(r.err, syscall.ECONNRESET) }
	status := func(want int, retryAfter string) func(reply) bool {
		return func(r reply) bool {
			return r.err == nil && r.status == want && r.header.Get("Retry-After") == retryAfter
		}
	}
	for _, c := range []struct {
		fault    Fault
		want     func(reply) bool
		backend  []int // statuses
		recorded int
	}{
		{FaultNone, status(201, ""), []int{201}, 201},
		{FaultLoseAnswer, eof, []int{201}, 0},
		{FaultResetBefore, reset, nil, 0},
		{FaultResetAfter, reset, []int{201}, 0},
		{"503", status(503, ""), nil, 503},
		{"503_after", status(503, ""), []int{201}, 503},
		{"503_after(3)", status(503, "3"), []int{201}, 503},
		{"429", status(429, "1"), nil, 429},
		{"slow(1ms)", status(201, ""), []int{201}, 201},
		{FaultTruncate, func(r reply) bool {
			return r.status == 201 && errors.Is(r.err, io.ErrUnexpectedEOF) && r.body == `{"id":"`
		}, []int{201}, 201},
		{FaultResend, status(201, ""), []int{201, 201}, 201},
	} {
		t.Run(string(c.fault), func(t *testing.T) {
			p, v := behind(t)
			p.Next(c.fault)
			if r := post(testContext(t), p.URL+"/v1/charges", "k", "{}"); !c.want(r) {
				t.Errorf("status %d, header %v, body %q, error %v", r.status, r.header, r.body, r.err)
			}
			call := lastCall(p)
			var backend []int
			for _, a := range call.Backend {
				backend = append(backend, a.Status)
			}
			if !slices.Equal(backend, c.backend) || call.Status != c.recorded || !call.Ended {
				t.Errorf("recorded %s", call)
			}
			if n := v.Counts().Calls; n != len(c.backend) {
				t.Errorf("the backend saw %d requests, want %d", n, len(c.backend))
			}
			wantStatus(t, post(testContext(t), p.URL+"/v1/charges", "k", "{}"), 201) // no fault twice
			AssertOneEffect(t, v, "k")
			if again := lastCall(p); again.Nth != 2 || again.Fault != "" {
				t.Errorf("the second request: %s", again)
			}
		})
	}
}

func TestDuplicateReachesTheBackendTwice(t *testing.T) {
	p, v := behind(t)
	v.Hold()
	p.Next(FaultDuplicate)
	call := posting(testContext(t), p.URL+"/v1/charges", "k", "{}")
	// One of them holds the key, the other is told so at once.
	if err := p.WaitAnswered(testContext(t), 1); err != nil {
		t.Fatal(err)
	}
	if err := v.WaitOpen(testContext(t), 1); err != nil {
		t.Fatal(err)
	}
	v.Release()
	wantStatus(t, <-call, 409)
	c := lastCall(p)
	if len(c.Backend) != 2 || c.Backend[0].Status != 409 || c.Backend[1].Status != 201 {
		t.Errorf("recorded %s", c)
	}
	AssertOneEffect(t, v, "k")
}

func TestProxyReleaseLetsHeldCallsGo(t *testing.T) {
	for name, answers := range map[string]bool{"hold": false, "hold answers": true, "hang": false, "hang_after": true, "late": false} {
		t.Run(name, func(t *testing.T) {
			p, v := behind(t)
			switch name {
			case "hold":
				p.Hold()
			case "hold answers":
				p.HoldAnswers()
			default:
				p.Next(Fault(name))
			}
			call := posting(testContext(t), p.URL+"/v1/charges", "k", "{}")
			if err := p.WaitOpen(testContext(t), 1); err != nil {
				t.Fatal(err)
			}
			if answers {
				if err := p.WaitAnswered(testContext(t), 1); err != nil {
					t.Fatal(err)
				}
				wantEffects(t, v, 1)
			} else {
				wantEffects(t, v, 0)
			}
			p.Release()
			wantStatus(t, <-call, 201)
			wantStatus(t, post(testContext(t), p.URL+"/v1/charges", "k2", "{}"), 201) // nothing parks after Release
			wantEffects(t, v, 2)
		})
	}
}

func TestHeldRequestWhoseClientIsGone(t *testing.T) {
	for fault, effects := range map[Fault]int{FaultHang: 0, FaultHangAfter: 1, FaultLate: 1, "slow(1h)": 1} {
		t.Run(string(fault), func(t *testing.T) {
			p, v := behind(t)
			p.Next(fault)
			ctx, cancel := context.WithCancel(testContext(t))
			call := posting(ctx, p.URL+"/v1/charges", "k", "{}")
			if err := p.WaitOpen(testContext(t), 1); err != nil {
				t.Fatal(err)
			}
			if fault == FaultHangAfter || fault.kind() == "slow" {
				if err := p.WaitAnswered(testContext(t), 1); err != nil {
					t.Fatal(err)
				}
			}
			cancel()
			if r := <-call; !errors.Is(r.err, context.Canceled) {
				t.Fatalf("got %d, error %v", r.status, r.err)
			}
			if err := p.waitFor(testContext(t), 0, "", func() int { return -p.open }); err != nil {
				t.Fatal(err)
			}
			wantEffects(t, v, effects)
			if c := lastCall(p); !c.ClientGone || c.Status != 0 {
				t.Errorf("recorded %s", c)
			}
		})
	}
}

func TestClientGoneCancelsTheBackendsRequest(t *testing.T) {
	arrived, cancelled := make(chan struct{}), make(chan struct{})
	backend := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		close(arrived)
		<-r.Context().Done()
		close(cancelled)
	}))
	t.Cleanup(backend.Close)
	p := StartProxy(t, backend.URL)
	ctx, cancel := context.WithCancel(testContext(t))
	call := posting(ctx, p.URL, "k", "")
	<-arrived
	cancel()
	<-call
	select {
	case <-cancelled:
	case <-testContext(t).Done():
		t.Fatal("the backend was not told")
	}
}

func TestAScriptStrikesByKeyAndCount(t *testing.T) {
	p, v := behind(t)
	p.SetScript(func(c ProxyCall) Fault {
		if c.Method == "POST" && c.Path == "/v1/charges" && c.Key == "b" && c.Nth == 2 {
			return "503"
		}
		return ""
	})
	p.Next(FaultNone)
	for i, want := range []struct {
		key    string
		status int
	}{{"a", 201}, {"b", 201}, {"a", 201}, {"b", 503}, {"b", 201}} {
		if r := post(testContext(t), p.URL+"/v1/charges", want.key, "{}"); r.status != want.status {
			t.Errorf("request %d: %d", i, r.status)
		}
	}
	p.SetScript(nil)
	wantStatus(t, post(testContext(t), p.URL+"/v1/charges", "b", "{}"), 201)
	wantEffects(t, v, 2)
}

func TestBrokenBackendIsAskedOnceAndBecomes502(t *testing.T) {
	p, v := behind(t)
	// A client that keeps its connection, as most do. Where the proxy did too,
	// net/http would send a request without a body a second time.
	client := &http.Client{Transport: &http.Transport{}}
	t.Cleanup(client.CloseIdleConnections)
	send := func(key string, want int) {
		t.Helper()
		req, err := http.NewRequestWithContext(testContext(t), http.MethodPost, p.URL+"/v1/charges", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Idempotency-Key", key)
		res, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		if _, err := io.Copy(io.Discard, res.Body); err != nil || res.StatusCode != want {
			t.Fatalf("answered %d, %v, want %d", res.StatusCode, err, want)
		}
	}
	for i, fault := range []Fault{FaultLoseAnswer, FaultTruncate, FaultResetBefore} {
		send(fmt.Sprint("before", i), 201)
		v.Next(fault)
		send(fmt.Sprint(i), 502)
		if c := lastCall(p); len(c.Backend) != 1 || c.Backend[0].Err == nil || c.Backend[0].Status != 0 {
			t.Errorf("recorded %s", c)
		}
		if n := v.Counts().Calls; n != 2*(i+1) {
			t.Fatalf("%d requests on the wire, want %d", n, 2*(i+1))
		}
	}
	if err := v.Close(); err != nil {
		t.Fatal(err)
	}
	wantStatus(t, post(testContext(t), p.URL+"/v1/charges", "k", "{}"), 502)
}

func TestATruncatedAnswerWithoutABodyIsNone(t *testing.T) {
	backend := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(204) }))
	t.Cleanup(backend.Close)
	p := StartProxy(t, backend.URL)
	p.Next(FaultTruncate)
	if r := post(testContext(t), p.URL, "k", "{}"); !errors.Is(r.err, io.EOF) {
		t.Errorf("got %d, %v", r.status, r.err)
	}
	wantStatus(t, post(testContext(t), p.URL, "k", "{}"), 204)
}

func TestUnknownProxyFaultIsRefused(t *testing.T) {
	p, _ := behind(t)
	if _, err := ParseFaults("duplicate"); err == nil {
		t.Error("a vendor duplicates no request")
	}
	defer func() {
		if r := recover(); r == nil || !strings.Contains(fmt.Sprint(r), "resend") {
			t.Errorf("Next took an unknown fault: %v", r)
		}
	}()
	p.Next(FaultResend, "lose")
}

func TestProxyLeavesNothingBehind(t *testing.T) {
	before := goleak.IgnoreCurrent()
	t.Run("", func(t *testing.T) {
		p, v := behind(t)
		v.Hold()
		p.Next(FaultDuplicate, FaultHang, FaultLate, "slow(1h)", FaultNone)
		var calls []<-chan reply
		for i := range 5 {
			calls = append(calls, posting(testContext(t), p.URL+"/v1/charges", fmt.Sprint(i), "{}"))
		}
		if err := p.WaitOpen(testContext(t), 5); err != nil {
			t.Fatal(err)
		}
		p.close()
		for _, call := range calls {
			// Of the two sendings of the duplicate one is held, and the other told so: its answer may be the first.
			if r := <-call; r.err == nil && r.status != 502 && r.status != 409 {
				t.Errorf("answered %d", r.status)
			}
		}
	})
	goleak.VerifyNone(t, before)
}
