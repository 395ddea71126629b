package httpvendor

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/samekey/samekey/dispatcher"
	"github.com/samekey/samekey/samekeytest"
)

func TestStatuses(t *testing.T) {
	action := Action{
		Delivered: Statuses{{200, 299}, {404, 404}}, Refused: Statuses{{402, 402}}, Retry: Statuses{{409, 409}},
	}
	for _, tc := range []struct {
		status     int
		retryAfter string
		class      dispatcher.Class
		want       string
	}{
		{200, "", dispatcher.IdempotentWrite, "delivered"},
		{202, "", dispatcher.IdempotentWrite, "delivered"},
		{204, "", dispatcher.IdempotentWrite, "delivered"},
		{404, "", dispatcher.IdempotentWrite, "delivered"},
		{402, "", dispatcher.IdempotentWrite, "refused"},
		{409, "", dispatcher.IdempotentWrite, "retry"},
		{409, "", dispatcher.NonIdempotentWrite, "stuck"}, // the vendor may have acted before
		{429, "", dispatcher.IdempotentWrite, "retry"},
		{429, "7", dispatcher.NonIdempotentWrite, "retry"},
		{408, "", dispatcher.IdempotentWrite, "unknown"},
		{425, "", dispatcher.IdempotentWrite, "unknown"},
		{500, "", dispatcher.IdempotentWrite, "unknown"},
		{503, "", dispatcher.IdempotentWrite, "unknown"},
		{599, "", dispatcher.IdempotentWrite, "unknown"},
		{503, "7", dispatcher.IdempotentWrite, "retry"},
		{503, "7", dispatcher.Read, "retry"},
		{503, "7", dispatcher.NonIdempotentWrite, "unknown"}, // it may have acted
		{503, "7", dispatcher.IrreversibleWrite, "unknown"},
		{503, "6.5", dispatcher.IdempotentWrite, "retry"},
		{503, "soon", dispatcher.IdempotentWrite, "unknown"},
		{424, "7", dispatcher.IdempotentWrite, "retry"},
		{424, "7", dispatcher.NonIdempotentWrite, "unknown"},
		{403, "7", dispatcher.NonIdempotentWrite, "retry"},
		{413, "7", dispatcher.NonIdempotentWrite, "retry"},
		{400, "", dispatcher.IdempotentWrite, "dead"},
		{401, "", dispatcher.IdempotentWrite, "denied"},
		{401, "", dispatcher.NonIdempotentWrite, "denied"},
		{403, "", dispatcher.NonIdempotentWrite, "dead"},
		{422, "7", dispatcher.IdempotentWrite, "dead"},
		{304, "", dispatcher.IdempotentWrite, "stuck"},
		{304, "", dispatcher.Read, "dead"},
	} {
		t.Run(fmt.Sprintf("%d %s %v", tc.status, tc.retryAfter, tc.class), func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if tc.retryAfter != "" {
					w.Header().Set("Retry-After", tc.retryAfter)
				}
				w.WriteHeader(tc.status)
				if tc.status != 204 && tc.status != 304 {
					_, _ = io.WriteString(w, "said so")
				}
			}))
			t.Cleanup(server.Close)
			action := action
			if action.Policy.Class = tc.class; tc.class == dispatcher.NonIdempotentWrite || tc.class == dispatcher.IrreversibleWrite {
				action.Retry = nil
			}
			answer, err := attempt(t, testHandler(t, Destination{URL: server.URL}, action), testCall("{}"), patience)
			if verdict(err) != tc.want {
				t.Fatalf("is %s (%v), want %s", verdict(err), err, tc.want)
			}
			if tc.want == "retry" && tc.retryAfter != "" && askedWait(err) != 7*time.Second {
				t.Errorf("waits %v", askedWait(err))
			}
			if answer.Code != fmt.Sprint(tc.status) {
				t.Errorf("the answer's code is %q", answer.Code)
			}
			if tc.want == "dead" || tc.want == "refused" || tc.want == "unknown" {
				if kept := answerOf(err); kept.Code != answer.Code || string(kept.Body) != string(answer.Body) {
					t.Errorf("the verdict's answer is %v, not %v", kept, answer)
				}
			}
		})
	}
}

// The vendor acts, and answers with a status that the action does not list. Nothing afterwards may send it again.
func TestAnswerThatMayHaveActedIsStuck(t *testing.T) {
	for class, want := range map[dispatcher.Class]string{
		dispatcher.Read: "dead", dispatcher.IdempotentWrite: "stuck",
		dispatcher.NonIdempotentWrite: "stuck", dispatcher.IrreversibleWrite: "stuck",
	} {
		for _, status := range []int{200, 202, 204, 299, 300, 301, 302, 303, 304, 307, 308, 399} {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Location", "/charges/1")
				w.WriteHeader(status)
				if status != 204 && status != 304 {
					_, _ = io.WriteString(w, "charge 1")
				}
			}))
			t.Cleanup(server.Close)
			action := Action{Delivered: Statuses{{201, 201}}, Policy: dispatcher.Policy{Class: class}}
			answer, err := attempt(t, testHandler(t, Destination{URL: server.URL}, action), testCall("{}"), patience)
			if verdict(err) != want {
				t.Errorf("%v: %d is %s (%v), want %s", class, status, verdict(err), err, want)
				continue
			}
			if kept := answerOf(err); kept.Code != fmt.Sprint(status) || string(kept.Body) != string(answer.Body) || status != 204 && status != 304 && string(kept.Body) != "charge 1" {
				t.Errorf("%v: of %d is kept %q %q", class, status, kept.Code, kept.Body)
			}
		}
	}
}

func TestRetryStatusesNeedAClassThatAllowsRepeats(t *testing.T) {
	client := testClient(t, Destination{URL: "https://api.example.com"})
	for class, refused := range map[dispatcher.Class]bool{
		dispatcher.Read: false, dispatcher.IdempotentWrite: false, dispatcher.NonIdempotentWrite: true, dispatcher.IrreversibleWrite: true,
	} {
		_, _, err := client.handler(Action{
			Request: "POST /wires", Retry: Statuses{{409, 409}}, Policy: dispatcher.Policy{Class: class},
		})
		if refused != (err != nil && strings.Contains(err.Error(), ": Retry: not allowed for ")) || !refused && err != nil {
			t.Errorf("%v: %v", class, err)
		}
	}
}

func Test409IsStuck(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(409) }))
	t.Cleanup(server.Close)
	if _, err := attempt(t, testHandler(t, Destination{URL: server.URL}, Action{}), testCall("{}"), patience); verdict(err) != "stuck" {
		t.Errorf("is %s (%v), want stuck", verdict(err), err)
	}
}

// Case 21. Package retryafter tests the forms, and the dispatcher that the wait is cut at a day.
func TestRetryAfterIsPassedOn(t *testing.T) {
	for value, want := range map[string]time.Duration{
		"86399": 24*time.Hour - time.Second, "86401": 24*time.Hour + time.Second,
		"99999999999999999999999999": math.MaxInt64, "Sun, 01 Mar 3999 11:00:00 GMT": math.MaxInt64, // net/http sends a Date
	} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Retry-After", value)
			w.WriteHeader(429)
		}))
		t.Cleanup(server.Close)
		_, err := attempt(t, testHandler(t, Destination{URL: server.URL}, Action{}), testCall("{}"), patience)
		if verdict(err) != "retry" || askedWait(err) != want {
			t.Errorf("%q: is %s of %v (%v), want %v", value, verdict(err), askedWait(err), err, want)
		}
	}
}

// Case 19.
func TestRedirectIsStuck(t *testing.T) {
	for _, status := range []int{301, 302, 303, 307, 308} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			second := startRaw(t, func(*rawServer, net.Conn) {})
			first := httptest.NewServer(http.RedirectHandler(second.url, status))
			t.Cleanup(first.Close)
			_, err := attempt(t, testHandler(t, Destination{URL: first.URL}, Action{}), testCall("{}"), patience)
			if verdict(err) != "stuck" || !strings.Contains(err.Error(), "Redirects are not followed") {
				t.Errorf("is %s (%v), want stuck", verdict(err), err)
			}
			if n := second.connections.Load(); n != 0 {
				t.Errorf("the second host saw %d connections", n)
			}
		})
	}
}

// Case 22: none of these answers ends by itself.
func TestAnswerIsCappedAndHasOneDeadline(t *testing.T) {
	forever := func(w io.Writer, chunk []byte) {
		for {
			if _, err := w.Write(chunk); err != nil {
				return
			}
		}
	}
	zeros := make([]byte, 1<<20)
	for _, tc := range []struct {
		name  string
		serve func(w http.ResponseWriter, r *http.Request)
		want  string
		slow  bool // the attempt's deadline ends it
	}{
		{"infinite body", func(w http.ResponseWriter, r *http.Request) { forever(w, zeros) }, "delivered", false},
		{"gzip bomb", func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Accept-Encoding") != "gzip" {
				t.Error("the test is void: gzip is not accepted")
			}
			w.Header().Set("Content-Encoding", "gzip")
			forever(gzip.NewWriter(w), zeros)
		}, "delivered", false},
		{"one byte, and no more", func(w http.ResponseWriter, r *http.Request) {
			_, _ = w.Write([]byte("a"))
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		}, "unknown", true},
		{"no answer", func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body) // net/http notices a lost client only after it has read the body
			<-r.Context().Done()
		}, "unknown", true},
		{"infinite headers", func(w http.ResponseWriter, r *http.Request) {
			c, _, _ := http.NewResponseController(w).Hijack()
			defer func() { _ = c.Close() }()
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\n")
			forever(c, []byte("X-A: "+strings.Repeat("b", 1000)+"\r\n"))
		}, "unknown", false},
		{"the cap is kept, then no more", func(w http.ResponseWriter, r *http.Request) {
			_, _ = w.Write(zeros[:1000])
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		}, "delivered", false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(tc.serve))
			t.Cleanup(server.Close)
			handler := testHandler(t, Destination{URL: server.URL}, Action{Policy: dispatcher.Policy{ResponseCap: 1000}})
			timeout := 3 * patience
			if tc.slow {
				timeout = 200 * time.Millisecond
			}
			began := time.Now()
			answer, err := attempt(t, handler, testCall("{}"), timeout)
			if verdict(err) != tc.want {
				t.Errorf("is %s (%v), want %s", verdict(err), err, tc.want)
			}
			if took := time.Since(began); tc.slow && took < timeout || took > timeout+time.Second || !tc.slow && took > timeout/2 {
				t.Errorf("took %v of %v", took, timeout)
			}
			if tc.want == "delivered" && len(answer.Body) != 1000 {
				t.Errorf("kept %d bytes of 1000", len(answer.Body))
			}
		})
	}
}

func TestResponseCap(t *testing.T) {
	for _, tc := range []struct{ limit, size, want int }{
		{1000, 999, 999}, {1000, 1000, 1000}, {1000, 1001, 1000}, {0, 64 << 10, 64 << 10}, {0, 64<<10 + 1, 64 << 10}, {-1, 10, 0}, {-1, 0, 0},
	} {
		server := startRaw(t, func(s *rawServer, c net.Conn) {
			r := bufio.NewReader(c)
			for {
				if _, err := s.readRequest(r); err != nil {
					return
				}
				respond(c, strings.Repeat("a", tc.size))
			}
		})
		handler := testHandler(t, Destination{URL: server.url}, Action{Policy: dispatcher.Policy{ResponseCap: tc.limit}})
		for range 3 {
			answer, err := attempt(t, handler, testCall("{}"), patience)
			if err != nil || len(answer.Body) != tc.want {
				t.Errorf("cap %d, body %d: kept %d, want %d (%v)", tc.limit, tc.size, len(answer.Body), tc.want, err)
			}
		}
		if n := server.connections.Load(); n != 1 {
			t.Errorf("cap %d, body %d: 3 calls took %d connections", tc.limit, tc.size, n)
		}
	}
}

func TestBrokenOffAnswerIsUnknown(t *testing.T) {
	vendor := samekeytest.StartVendor(t, nil)
	handler := testHandler(t, Destination{URL: vendor.URL}, Action{})
	vendor.Next(samekeytest.FaultTruncate)
	_, err := attempt(t, handler, testCall("{}"), patience)
	if kept := answerOf(err); verdict(err) != "unknown" || kept.Code != "201" || len(kept.Body) == 0 {
		t.Errorf("is %s (%v) with %q %q", verdict(err), err, kept.Code, kept.Body)
	}
	answer, err := attempt(t, handler, testCall("{}"), patience)
	if err != nil || !bytes.Contains(answer.Body, []byte("eff_1")) {
		t.Errorf("asked again it is %q, %v", answer.Body, err)
	}
	samekeytest.AssertOneEffect(t, vendor, deliveryKey.String())
}

func TestFaultsHaveOneEffect(t *testing.T) {
	for fault, want := range map[samekeytest.Fault]string{
		samekeytest.FaultLoseAnswer:          "unknown",
		samekeytest.FaultResetBefore:         "unknown",
		samekeytest.FaultResetAfter:          "unknown",
		"500":                                "unknown",
		"500_after":                          "unknown",
		"429":                                "retry",
		samekeytest.FaultHang:                "unknown",
		samekeytest.FaultHangAfter:           "unknown",
		"503(Fri, 31 Dec 1999 23:59:59 GMT)": "retry",
	} {
		t.Run(string(fault), func(t *testing.T) {
			vendor := samekeytest.StartVendor(t, nil)
			handler := testHandler(t, Destination{URL: vendor.URL}, Action{})
			vendor.Next(fault)
			timeout := 3 * patience
			if strings.HasPrefix(string(fault), "hang") {
				timeout = 200 * time.Millisecond
			}
			if _, err := attempt(t, handler, testCall("{}"), timeout); verdict(err) != want {
				t.Errorf("is %s (%v), want %s", verdict(err), err, want)
			}
			waitClosed(t, vendor)
			if _, err := attempt(t, handler, testCall("{}"), patience); err != nil {
				t.Error(err)
			}
			samekeytest.AssertOneEffect(t, vendor, deliveryKey.String())
			calls := vendor.Ledger().Calls
			if len(calls) != 2 || calls[0].Attempt != 3 || calls[0].BodyHash != calls[1].BodyHash {
				t.Errorf("the vendor saw %+v", calls)
			}
		})
	}
}

// waitClosed waits until the vendor has noticed that its client is gone.
func waitClosed(t *testing.T, vendor *samekeytest.Vendor) {
	t.Helper()
	deadline := time.After(patience)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for vendor.Counts().Open > 0 {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatal("the call stays open at the vendor")
		}
	}
}

// A read of such a connection ends when the other side closes it. It could hold the attempt and its slot forever.
func TestSwitchingProtocolsEnds(t *testing.T) {
	hold := make(chan struct{})
	s := startRaw(t, func(s *rawServer, c net.Conn) {
		if _, err := s.readRequest(bufio.NewReader(c)); err != nil {
			return
		}
		_, _ = io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\nhello")
		<-hold
	})
	defer close(hold)
	lookup := &Lookup{Request: "GET /seen", Rules: []Rule{{Match: Match{Status: status(200, 200)}, Outcome: dispatcher.Delivered}}}
	client := testClient(t, Destination{URL: s.url})
	e := client.operation(Action{Request: "POST /", Lookup: lookup, Policy: dispatcher.Policy{Class: dispatcher.NonIdempotentWrite}})
	ended := make(chan error, 2)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	go func() {
		for _, call := range []handler{e.send, e.ask} {
			_, err := result(call(ctx, testCall("{}")))
			ended <- err
		}
	}()
	for _, what := range []string{"the attempt", "the lookup"} {
		select {
		case err := <-ended:
			if ctx.Err() != nil || what == "the attempt" && (verdict(err) != "unknown" || !strings.Contains(err.Error(), "answered 101")) {
				t.Errorf("%s: %v", what, err)
			}
		case <-time.After(10 * time.Second):
			t.Fatalf("%s does not end with its time", what)
		}
	}
}
