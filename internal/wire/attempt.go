package wire

import (
	"context"
	"errors"
	"sync"
	"time"
)

// Attempt is what one attempt, or one lookup, may send by requests that find it in their context. It is safe for concurrent use.
type Attempt struct {
	// Once allows one request that may be sent: a write is one request, however often a client tries.
	Once bool

	// Direct allows no proxy.
	Direct bool

	deadline time.Time

	mu    sync.Mutex
	over  bool
	sent  bool           // a request may have been sent
	wires map[*Wire]bool // of requests that have not failed
}

// ErrSecond means that an attempt has made its one request.
var ErrSecond = errors.New("the attempt has made its request: an attempt of a write is one request, so turn off the client's own retries")

// ErrProxied means that a request would go through a proxy, which its attempt does not allow. Nothing was sent.
var ErrProxied = errors.New("the request would go through a proxy, which can send it late")

type attemptKey struct{}

// In puts the attempt into a context, whose deadline is the attempt's. Call End when the attempt is over.
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

// Open begins a request. It returns the request's wire, or [ErrEnded] or [ErrSecond].
func (a *Attempt) Open(ctx context.Context) (*Wire, error) {
	w := New(ctx)
	if w.deadline.IsZero() || !a.deadline.IsZero() && a.deadline.Before(w.deadline) {
		w.deadline = a.deadline // a request's context may have lost it
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

// Answered notes that a request has its answer, of which the body may be unread.
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

// End lets nothing more out, and drops what is queued of requests without their whole answer.
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
