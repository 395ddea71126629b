package wire

import (
	"context"
	"errors"
	"sync"
	"time"
)

// Attempt controls the requests of one attempt, or one lookup. Requests find it in their context. It is safe for
// concurrent use.
type Attempt struct {
	// Once allows only one request that may have been sent. A write is one request, even if a client retries.
	Once bool

	// Direct forbids proxies.
	Direct bool

	deadline time.Time

	mu    sync.Mutex
	over  bool
	sent  bool           // a request may have been sent
	wires map[*Wire]bool // the wires of requests that have not failed
}

// ErrSecond means that the attempt has already made its one request.
var ErrSecond = errors.New("the attempt has made its request: an attempt of a write is one request, so turn off the client's own retries")

// ErrProxied means that a request would use a proxy, and that its attempt forbids proxies. Nothing was sent.
var ErrProxied = errors.New("the request would go through a proxy, which can send it late")

type attemptKey struct{}

// In returns a context with the attempt. The deadline of ctx becomes the attempt's. Call End when the attempt is over.
func (a *Attempt) In(ctx context.Context) context.Context {
	a.wires = map[*Wire]bool{}
	a.deadline, _ = ctx.Deadline()
	return context.WithValue(ctx, attemptKey{}, a)
}

// AttemptOf returns the attempt of a context, or nil.
func AttemptOf(ctx context.Context) *Attempt {
	a, _ := ctx.Value(attemptKey{}).(*Attempt)
	return a
}

// Open starts a request. It returns the request's wire, or [ErrEnded] or [ErrSecond].
func (a *Attempt) Open(ctx context.Context) (*Wire, error) {
	w := New(ctx)
	if w.deadline.IsZero() || !a.deadline.IsZero() && a.deadline.Before(w.deadline) {
		w.deadline = a.deadline // the request's context may lack it
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case a.over:
		return nil, ErrEnded
	case a.Once && (a.sent || len(a.wires) > 0):
		return nil, ErrSecond
	}
	a.wires[w] = true
	return w, nil
}

// Failed ends a request without an answer.
func (a *Attempt) Failed(w *Wire) {
	_, sent := w.End()
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.wires, w)
	a.sent = a.sent || sent
}

// Answered records that a request has an answer. Its body may be unread.
func (a *Attempt) Answered() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.sent = true
}

// Sent reports whether any request of the attempt may have been sent.
func (a *Attempt) Sent() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.sent || len(a.wires) > 0
}

// End stops all sending, and drops the queued data of requests whose answer is not complete.
func (a *Attempt) End() {
	a.mu.Lock()
	a.over = true
	wires := a.wires
	a.wires, a.sent = nil, a.sent || len(wires) > 0
	a.mu.Unlock()
	for w := range wires {
		w.End()
	}
}
