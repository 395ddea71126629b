package httpclient_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"go.uber.org/goleak"

	"github.com/samekey/samekey"
	"github.com/samekey/samekey/dispatcher"
	"github.com/samekey/samekey/dispatcher/httpclient"
	"github.com/samekey/samekey/internal/wire"
	"github.com/samekey/samekey/outbox"
	"github.com/samekey/samekey/samekeytest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = 10 * time.Second

func newClient(t *testing.T, transport *http.Transport) *http.Client {
	t.Helper()
	client, err := httpclient.New(transport)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.CloseIdleConnections)
	return client
}

// counted starts a server that counts its requests.
func counted(t *testing.T, handle http.HandlerFunc) (server *httptest.Server, requests *atomic.Int32) {
	t.Helper()
	requests = new(atomic.Int32)
	server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requests.Add(1)
		if handle != nil {
			handle(w, r)
		}
	}))
	t.Cleanup(server.Close)
	return server, requests
}

func wantRequests(t *testing.T, requests *atomic.Int32, want int32) {
	t.Helper()
	if got := requests.Load(); got != want {
		t.Errorf("%d requests on the wire, want %d", got, want)
	}
}

// attempt returns an attempt's context, as the dispatcher makes it.
func attempt(t *testing.T, a *wire.Attempt, timeout time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	t.Cleanup(func() { a.End(); cancel() })
	return a.In(ctx)
}

func send(ctx context.Context, client *http.Client, method, url string, body []byte) (*http.Response, error) {
	request, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	request.Header.Set("Idempotency-Key", "k1")
	response, err := client.Do(request)
	if err == nil {
		_, err = io.Copy(io.Discard, response.Body)
		_ = response.Body.Close()
	}
	return response, err
}

func TestNothingIsSentAfterDeadlineOrReturn(t *testing.T) {
	server, requests := counted(t, nil)
	client := newClient(t, nil)
	late := new(wire.Attempt)
	deaf := context.WithoutCancel(attempt(t, late, 0)) // no timer ends it
	if _, err := send(deaf, client, http.MethodPost, server.URL, nil); !errors.Is(err, wire.ErrLate) {
		t.Errorf("past the deadline: %v", err)
	}
	over := new(wire.Attempt)
	ctx := attempt(t, over, time.Hour)
	over.End()
	if _, err := send(ctx, client, http.MethodPost, server.URL, nil); !errors.Is(err, wire.ErrEnded) {
		t.Errorf("past the return: %v", err)
	}
	wantRequests(t, requests, 0)
}

func TestRequestWithoutAnAttemptIsRefused(t *testing.T) {
	server, requests := counted(t, nil)
	if _, err := send(t.Context(), newClient(t, nil), http.MethodPost, server.URL, nil); err == nil || !strings.Contains(err.Error(), "the context that the handler was given") {
		t.Error(err)
	}
	wantRequests(t, requests, 0)
}

func TestWriteAttemptIsOneRequest(t *testing.T) {
	server, requests := counted(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/reset" {
			panic(http.ErrAbortHandler)
		}
		w.WriteHeader(http.StatusInternalServerError)
	})
	server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, 0)
	client := newClient(t, nil)
	for _, path := range []string{"/500", "/reset"} {
		requests.Store(0)
		ctx := attempt(t, &wire.Attempt{Once: true}, time.Hour)
		_, _ = send(ctx, client, http.MethodPost, server.URL+path, nil)
		if _, err := send(ctx, client, http.MethodPost, server.URL, nil); !errors.Is(err, wire.ErrSecond) {
			t.Errorf("a second request after %s: %v", path, err)
		}
		wantRequests(t, requests, 1)
	}
	requests.Store(0)
	ctx := attempt(t, &wire.Attempt{Once: true}, time.Hour)
	if _, err := send(ctx, client, http.MethodPost, closedPort(t), nil); err == nil {
		t.Error("a closed port answered")
	}
	if _, err := send(ctx, client, http.MethodPost, server.URL, nil); err != nil {
		t.Errorf("a request after one that was not sent: %v", err)
	}
	lookup := attempt(t, new(wire.Attempt), time.Hour)
	for range 2 {
		if _, err := send(lookup, client, http.MethodGet, server.URL, nil); err != nil {
			t.Errorf("a lookup: %v", err)
		}
	}
	wantRequests(t, requests, 3)
}

func closedPort(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = listener.Close()
	return "http://" + listener.Addr().String()
}

// It does not depend on the client's CheckRedirect.
func TestRedirectIsNotFollowed(t *testing.T) {
	other, requests := counted(t, nil)
	first := httptest.NewServer(http.RedirectHandler(other.URL, http.StatusTemporaryRedirect))
	t.Cleanup(first.Close)
	client := newClient(t, nil)
	response, err := send(attempt(t, &wire.Attempt{Once: true}, time.Hour), client, http.MethodPost, first.URL, []byte("x"))
	if err != nil || response.StatusCode != http.StatusTemporaryRedirect {
		t.Errorf("is answered %v, %v", response, err)
	}
	plain := &http.Client{Transport: client.Transport}
	if _, err := send(attempt(t, new(wire.Attempt), time.Hour), plain, http.MethodGet, first.URL, nil); err == nil || !strings.Contains(err.Error(), "a redirect is not followed") {
		t.Errorf("with another http.Client: %v", err)
	}
	wantRequests(t, requests, 0)
}

// net/http repeats a request that has an Idempotency-Key if a reused connection turns out dead.
func TestDeadConnectionIsOneRequest(t *testing.T) {
	var requests atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if requests.Add(1) == 2 {
			panic(http.ErrAbortHandler)
		}
	}))
	server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, 0)
	t.Cleanup(server.Close)
	client := newClient(t, nil)
	for n := range int32(2) {
		_, err := send(attempt(t, &wire.Attempt{Once: true}, time.Hour), client, http.MethodPost, server.URL, nil)
		if (err != nil) != (n == 1) {
			t.Errorf("request %d: %v", n+1, err)
		}
	}
	wantRequests(t, &requests, 2)
}

func TestHTTP2IsNotUsed(t *testing.T) {
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { w.Header().Set("Proto", r.Proto) }))
	server.EnableHTTP2 = true
	server.StartTLS()
	t.Cleanup(server.Close)
	protocols := new(http.Protocols)
	protocols.SetHTTP2(true)
	client := newClient(t, &http.Transport{Protocols: protocols, ForceAttemptHTTP2: true,
		TLSClientConfig: &tls.Config{RootCAs: server.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs, NextProtos: []string{"h2"}}})
	response, err := send(attempt(t, &wire.Attempt{Once: true}, time.Hour), client, http.MethodPost, server.URL, nil)
	if err != nil || response.Header.Get("Proto") != "HTTP/1.1" {
		t.Errorf("%v, %v", response, err)
	}
}

func TestTransportWithoutASocketIsRefused(t *testing.T) {
	dial := func(context.Context, string, string) (net.Conn, error) { return nil, errors.New("no") }
	if _, err := httpclient.New(&http.Transport{DialTLSContext: dial}); err == nil || !strings.Contains(err.Error(), "DialTLSContext") {
		t.Error(err)
	}
	pipe := func(context.Context, string, string) (net.Conn, error) { c, _ := net.Pipe(); return c, nil }
	_, err := send(attempt(t, new(wire.Attempt), time.Second), newClient(t, &http.Transport{DialContext: pipe}), http.MethodGet, "http://vendor.example", nil)
	if err == nil || !strings.Contains(err.Error(), "not a socket") {
		t.Error(err)
	}
}

type handler = func(context.Context, *dispatcher.Call, []byte) (dispatcher.Outcome, error)

var chargeCard = outbox.NewAction[[]byte]("charge_card")

// How the dispatcher decides on the client's errors, for a non-idempotent write.
func TestErrorTellsWhetherItWasSent(t *testing.T) {
	db := samekeytest.NewDB(t)
	hang := make(chan struct{})
	server, requests := counted(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/hang":
			<-hang
		case "/reset":
			panic(http.ErrAbortHandler)
		}
	})
	server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, 0)
	defer close(hang)
	proxy, _ := url.Parse(server.URL)
	direct, proxied := newClient(t, nil), newClient(t, &http.Transport{Proxy: http.ProxyURL(proxy)})
	down := closedPort(t)
	one := func(client *http.Client, url string) handler {
		return func(ctx context.Context, call *dispatcher.Call, _ []byte) (dispatcher.Outcome, error) {
			if _, err := send(ctx, client, http.MethodPost, url, call.Payload); err != nil {
				return dispatcher.Outcome{}, fmt.Errorf("charge: %w", err)
			}
			return dispatcher.Delivered(dispatcher.Response{}), nil
		}
	}
	for name, tc := range map[string]struct {
		send     handler
		resend   bool
		want     string
		requests int32
	}{
		"answered":       {one(direct, server.URL), false, "delivered attempt:delivered:", 1},
		"by a proxy":     {one(proxied, "http://vendor.example"), false, "delivered attempt:delivered:", 1},
		"refused dial":   {one(direct, down), false, "pending attempt:unsent:unsent", 0},
		"no such scheme": {one(direct, "ftp://vendor.example"), false, "pending attempt:unsent:unsent", 0},
		"hangs":          {one(direct, server.URL+"/hang"), false, "unknown attempt:unknown:timeout", 1},
		"reset":          {one(direct, server.URL+"/reset"), false, "unknown attempt:unknown:unknown", 1},
		"a proxy, where an absent one is sent again":  {one(proxied, "http://vendor.example"), true, "dead attempt:dead:proxy", 0},
		"no proxy, where an absent one is sent again": {one(direct, server.URL), true, "delivered attempt:delivered:", 1},
		"sent, then not": {func(ctx context.Context, call *dispatcher.Call, _ []byte) (dispatcher.Outcome, error) {
			_, _ = send(ctx, direct, http.MethodPost, server.URL, nil)
			return one(direct, down)(ctx, call, nil)
		}, false, "unknown attempt:unknown:unknown", 1},
		"not, then sent": {func(ctx context.Context, _ *dispatcher.Call, _ []byte) (dispatcher.Outcome, error) {
			_, first := send(ctx, direct, http.MethodPost, down, nil) // which is ErrUnsent
			_, second := send(ctx, direct, http.MethodPost, server.URL+"/reset", nil)
			return dispatcher.Outcome{}, errors.Join(first, second)
		}, false, "unknown attempt:unknown:unknown", 1},
		"not, then sent, and returned as unsent": {func(ctx context.Context, _ *dispatcher.Call, _ []byte) (dispatcher.Outcome, error) {
			_, first := send(ctx, direct, http.MethodPost, down, nil)
			_, _ = send(ctx, direct, http.MethodPost, server.URL+"/reset", nil)
			return dispatcher.Unsent(first), nil
		}, false, "unknown attempt:unknown:unknown", 1},
		"not by a proxy, then sent": {func(ctx context.Context, _ *dispatcher.Call, _ []byte) (dispatcher.Outcome, error) {
			_, first := send(ctx, proxied, http.MethodPost, "http://vendor.example", nil)
			_, second := send(ctx, direct, http.MethodPost, server.URL+"/reset", nil)
			return dispatcher.Outcome{}, errors.Join(first, second)
		}, true, "unknown attempt:unknown:unknown", 1},
	} {
		t.Run(name, func(t *testing.T) {
			requests.Store(0)
			d := dispatcher.New(db.Pool, &dispatcher.Config{Logger: slog.New(slog.NewTextHandler(t.Output(), nil))})
			policy := dispatcher.Policy{Class: dispatcher.NonIdempotentWrite, Timeout: 500 * time.Millisecond, ResendAbsent: tc.resend,
				Backoff: time.Hour, MaxBackoff: time.Hour, SettlingDelay: time.Hour}
			dispatcher.Handle(d, chargeCard, dispatcher.Delivery[[]byte]{
				Policy: policy,
				Send:   tc.send,
				Lookup: func(context.Context, *dispatcher.Call, []byte) (dispatcher.Outcome, error) {
					return dispatcher.Unknown(dispatcher.Response{}), nil
				},
			})
			key, err := samekey.NewKey(t.Name(), "test", "charge")
			if err != nil {
				t.Fatal(err)
			}
			var id uuid.UUID
			intent := outbox.Intent{Key: key, Action: chargeCard.Name(), Payload: []byte("{}")}
			if err := pgx.BeginFunc(t.Context(), db, func(tx pgx.Tx) error {
				id, err = outbox.Insert(t.Context(), tx, intent)
				return err
			}); err != nil {
				t.Fatal(err)
			}
			if _, err := d.Drain(t.Context()); err != nil {
				t.Fatal(err)
			}
			entry, err := outbox.Get(t.Context(), db.Pool, id)
			if err != nil {
				t.Fatal(err)
			}
			got := string(entry.Status)
			for _, e := range entry.History {
				got += fmt.Sprintf(" %s:%s:%s", e.Event, e.Outcome, e.Code)
			}
			if got != tc.want {
				t.Errorf("is %s, want %s\n%+v", got, tc.want, entry.History)
			}
			wantRequests(t, requests, tc.requests)
		})
	}
}

// Goroutines that a handler or a lookup leaves behind send nothing.
func TestNothingIsSentAfterTheHandlerReturns(t *testing.T) {
	db := samekeytest.NewDB(t)
	server, requests := counted(t, nil)
	client := newClient(t, nil)
	var kept []context.Context
	keep := func(ctx context.Context) { kept = append(kept, context.WithoutCancel(ctx)) }
	d := dispatcher.New(db.Pool, &dispatcher.Config{Logger: slog.New(slog.NewTextHandler(t.Output(), nil))})
	dispatcher.Handle(d, chargeCard, dispatcher.Delivery[[]byte]{
		Policy: dispatcher.Policy{Class: dispatcher.NonIdempotentWrite, SettlingDelay: -1},
		Send: func(ctx context.Context, _ *dispatcher.Call, _ []byte) (dispatcher.Outcome, error) {
			keep(ctx)
			return dispatcher.Outcome{}, errors.New("lost")
		},
		Lookup: func(ctx context.Context, _ *dispatcher.Call, _ []byte) (dispatcher.Outcome, error) {
			keep(ctx)
			return dispatcher.Delivered(dispatcher.Response{}), nil
		},
	})
	key, err := samekey.NewKey(t.Name(), "test", "charge")
	if err != nil {
		t.Fatal(err)
	}
	if err := pgx.BeginFunc(t.Context(), db, func(tx pgx.Tx) error {
		_, err := outbox.Insert(t.Context(), tx, outbox.Intent{Key: key, Action: chargeCard.Name(), Payload: []byte("{}")})
		return err
	}); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, err := d.Drain(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if len(kept) != 2 {
		t.Fatalf("%d calls, want an attempt and a lookup", len(kept))
	}
	for _, ctx := range kept {
		if _, err := send(ctx, client, http.MethodPost, server.URL, nil); !errors.Is(err, wire.ErrEnded) {
			t.Error(err)
		}
	}
	wantRequests(t, requests, 0)
}
