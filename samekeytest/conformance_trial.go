package samekeytest

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/samekey/samekey/internal/wiretest"
)

// callWithin bounds what answers in milliseconds unless something is stuck.
const callWithin = 30 * time.Second

// sender sends one request and hears what comes back.
type sender func(ctx context.Context, key string, n int) response

// response is what a client heard.
type response struct {
	kind kind
	text string // of an answer: what its replay has to repeat, byte for byte
	said string // for people

	status int // 0 without HTTP, and where nothing came
	wait   bool
}

type kind int

const (
	again   kind = iota // the same may be sent again
	done                // the operation's answer
	refused             // it will never be done
)

// refuses reports whether another payload was turned away, for good: some say
// 409 for that too.
func (r response) refuses() bool {
	return r.kind == refused || r.kind == again && !r.wait && r.status < 500
}

func roundTrip(ctx context.Context, transport *http.Transport, req *http.Request) response {
	if req == nil {
		panic("samekeytest: Conform: Service.Request returned nil")
	}
	req = req.WithContext(ctx)
	req.GetBody = nil
	res, err := transport.RoundTrip(req)
	if err != nil {
		return response{said: fmt.Sprintf("no answer (%v)", err), wait: true}
	}
	defer func() { _ = res.Body.Close() }()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		return response{said: fmt.Sprintf("%d, and an answer that broke off", res.StatusCode), wait: true}
	}
	return heard(res.StatusCode, res.Header, body)
}

func heard(status int, header http.Header, body []byte) response {
	r := response{said: fmt.Sprintf("%d %.300q", status, body), status: status, wait: header.Get("Retry-After") != ""}
	switch {
	case status >= 200 && status < 400:
		r.kind = done
		var text strings.Builder
		fmt.Fprintf(&text, "%d\n", status)
		for _, name := range []string{"Content-Type", "Location", "Etag", "Link"} {
			for _, value := range header[name] {
				fmt.Fprintf(&text, "%s: %s\n", name, value)
			}
		}
		fmt.Fprintf(&text, "\n%s", body)
		r.text = text.String()
	case status >= 500, status == http.StatusConflict, status == http.StatusTooEarly, status == http.StatusTooManyRequests, r.wait:
		r.kind = again
	default:
		r.kind = refused
	}
	return r
}

// trial is one promise on trial.
type trial struct {
	*testing.T
	s    *suite
	db   *DB
	seen *int // effects that are accounted for
}

func (s *suite) trial(t *testing.T, db *DB) *trial {
	t.Helper()
	return &trial{T: t, s: s, db: db, seen: ptr(s.effects(t, db))}
}

// Run is a part of the promise, in a subtest on the same database.
func (tr *trial) Run(name string, part func(*trial)) {
	tr.Helper()
	tr.T.Run(name, func(t *testing.T) { part(&trial{T: t, s: tr.s, db: tr.db, seen: tr.seen}) })
}

// instance is one that Start started, with the wire to its database.
type instance struct {
	life *life
	wire *wiretest.Proxy
	send sender
	url  string // "" of a tool
}

func (tr *trial) start() *instance {
	tr.Helper()
	life := tr.life()
	return tr.startOn(life, wiretest.Start(life, tr.db.DSN))
}

// wire is one for several instances.
func (tr *trial) wire() *wiretest.Proxy {
	tr.Helper()
	return wiretest.Start(tr.life(), tr.db.DSN)
}

func (tr *trial) startOn(life *life, wire *wiretest.Proxy) *instance {
	tr.Helper()
	send, url := tr.s.start(life, wire.DSN())
	return &instance{life: life, wire: wire, send: send, url: url}
}

// life is a testing.TB that ends when its instance does, which may be before
// the test.
type life struct {
	testing.TB
	ctx    context.Context //nolint:containedctx // it is what Context returns
	cancel context.CancelFunc

	mu       sync.Mutex
	cleanups []func()
	once     sync.Once
}

func (tr *trial) life() *life {
	l := &life{TB: tr.T}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	tr.Cleanup(l.end)
	return l
}

func (l *life) Context() context.Context { return l.ctx }

func (l *life) Cleanup(f func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cleanups = append(l.cleanups, f)
}

// end runs the cleanup functions, the last one first. It may be called again.
func (l *life) end() {
	l.once.Do(func() {
		l.cancel()
		for {
			l.mu.Lock()
			last := len(l.cleanups) - 1
			if last < 0 {
				l.mu.Unlock()
				return
			}
			f := l.cleanups[last]
			l.cleanups = l.cleanups[:last]
			l.mu.Unlock()
			f()
		}
	})
}

func (tr *trial) call(send sender, key string, n int) response {
	ctx, cancel := context.WithTimeout(context.Background(), callWithin)
	defer cancel()
	return send(ctx, key, n)
}

// settle sends the request again and again, as a client does that was told to,
// until it has its answer.
func (tr *trial) settle(where string, send sender, key string, n int) response {
	tr.Helper()
	r := tr.until(where, send, key, n, func(r response) bool { return r.kind != again })
	if r.kind == refused {
		tr.Fatalf("a valid request was refused with %s\n\twhere: %s\n\tusual cause: it is invalid, or the service takes it for another request with this key", r.said, where)
	}
	return r
}

// settleEither takes a refusal too.
func (tr *trial) settleEither(where string, send sender, key string, n int) response {
	tr.Helper()
	r := tr.until(where, send, key, n, func(r response) bool { return r.kind != again || tr.s.via == nil || r.refuses() })
	if r.kind == again {
		r.kind = refused
	}
	return r
}

func (tr *trial) until(where string, send sender, key string, n int, settled func(response) bool) response {
	tr.Helper()
	deadline := time.Now().Add(tr.s.within)
	for pause := 5 * time.Millisecond; ; pause = min(2*pause, 200*time.Millisecond) {
		r := tr.call(send, key, n)
		if settled(r) {
			return r
		}
		if time.Now().After(deadline) {
			tr.Fatalf("no answer within %s, the last attempt got %s\n\twhere: %s\n\tusual cause: %s", tr.s.within, r.said, where, causeStuck)
		}
		time.Sleep(pause)
	}
}

// race sends a request for each n under one key at once, each to an instance of
// its own on that wire, and keeps them in step.
func (tr *trial) race(wire *wiretest.Proxy, key string, ns ...int) (senders []sender, got []response) {
	tr.Helper()
	got = make([]response, len(ns))
	var answered atomic.Int64
	var calls []func()
	for i, n := range ns {
		one := tr.startOn(tr.life(), wire)
		senders = append(senders, one.send)
		calls = append(calls, func() {
			got[i] = tr.call(one.send, key, n)
			answered.Add(1)
		})
	}
	tr.inStep(wire, len(ns), func() int { return int(answered.Load()) }, calls...)
	return senders, got
}

// stepWithin is how long requests in step are waited for: where one waits for
// another inside its process, nothing shows it.
const stepWithin = 5 * time.Second

// inStep makes the calls, which come to n requests, and holds each round trip
// until every request that is not answered has come to one, or waits for a lock.
func (tr *trial) inStep(wire *wiretest.Proxy, n int, answered func() int, calls ...func()) {
	tr.Helper()
	wire.Pause()
	var running sync.WaitGroup
	for _, call := range calls {
		running.Go(call)
	}
	defer running.Wait()
	defer wire.Resume()
	last := time.Now()
	for before := 0; before < n; time.Sleep(2 * time.Millisecond) {
		if now := answered(); now > before {
			before, last = now, time.Now()
		}
		if held := wire.Held(); held > 0 && (held+before >= n || held+before+tr.waiting() >= n) {
			wire.Step()
			last = time.Now()
		}
		if time.Since(last) > stepWithin {
			tr.Logf("of %d requests at once, %d were answered, and %d reached no round trip within %s: Conform let them continue", n, before, n-before-wire.Held(), stepWithin)
			return
		}
	}
}

// waiting is how many connections wait for a lock of the database.
func (tr *trial) waiting() (n int) {
	tr.Helper()
	err := tr.db.QueryRow(tr.Context(), `
		select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'`).Scan(&n)
	if err != nil {
		tr.Fatal(err)
	}
	return n
}

// newEffects is how many came since the last call.
func (tr *trial) newEffects() int {
	tr.Helper()
	now := tr.s.effects(tr.T, tr.db)
	n := now - *tr.seen
	*tr.seen = now
	return n
}

func (tr *trial) oneEffect(where, cause string) {
	tr.Helper()
	tr.oneEffectOr(where, causeByItself, cause)
}

// acknowledged is oneEffect for a request of which the caller has heard that it
// was done.
func (tr *trial) acknowledged(where, cause string) {
	tr.Helper()
	tr.oneEffectOr(where, causeEarly, cause)
}

// oneEffectOr names the usual cause of none, and of several.
func (tr *trial) oneEffectOr(where, none, several string) {
	tr.Helper()
	switch n := tr.newEffects(); {
	case n < 1:
		tr.broken(where, fmt.Sprintf("%d effects of an answered request, want 1", n), none)
	case n > 1:
		tr.broken(where, fmt.Sprintf("%d effects of one key, want 1", n), several)
	}
}

func (tr *trial) noMore(where, cause string) {
	tr.Helper()
	if n := tr.newEffects(); n != 0 {
		tr.broken(where, fmt.Sprintf("a key that had its effect has %d more", n), cause)
	}
}

func (tr *trial) same(where string, first, later response, cause string) {
	tr.Helper()
	if first.text != later.text {
		tr.broken(where, fmt.Sprintf("one key, two answers:\n\t\t%q\n\t\t%q", first.text, later.text), cause)
	}
}

// sameAsBackend compares with what the backend answered behind a proxy.
func (tr *trial) sameAsBackend(where string, answers []ProxyAnswer, got response) {
	tr.Helper()
	for _, a := range answers {
		if a.Err != nil {
			continue
		}
		if r := heard(a.Status, a.Header, a.Body); r.kind == done {
			tr.same(where, r, got, causeRebuilt)
		}
	}
}

func (tr *trial) broken(where, what, cause string) {
	tr.Helper()
	tr.Errorf("%s\n\twhere: %s\n\tusual cause: %s", what, where, cause)
}
