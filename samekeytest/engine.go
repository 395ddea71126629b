package samekeytest

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"sync"
	"time"
)

// engine is the part that the test vendor and the test proxy share. It counts open calls, parks them, and plays one
// fault per call. What a call does, and how it is recorded, is the server's own: see behavior.
type engine struct {
	check func(Fault) error // refuses a fault that this server does not have

	mu      sync.Mutex
	open    int
	next    []Fault
	hold    holdPoint
	release chan struct{} // closed and replaced by Release
	changed chan struct{} // closed and replaced when a count changes
	closing chan struct{}
	closed  bool
}

type holdPoint int

const (
	holdNothing holdPoint = iota
	holdCalls
	holdAnswers
)

// behavior is one call, as its server handles it.
type behavior interface {
	// act does what the call asks for and returns the answer: the vendor decides, the proxy asks its backend.
	act() VendorAnswer
	// special plays a fault that only this server has.
	special(kind string) (a VendorAnswer, ok bool)
	// record completes the call's entry. It is called once, with the engine locked, before the answer is sent, so that
	// a client that has its answer finds a complete entry.
	record(status int, clientGone bool)
	// write sends the head of the answer and the first n bytes of its body.
	write(w http.ResponseWriter, a VendorAnswer, n int)
}

// visit is one call, from its arrival to its end.
type visit struct {
	behavior
	w       http.ResponseWriter
	r       *http.Request
	fault   Fault
	release chan struct{}
	hold    holdPoint
	ended   bool
}

func newEngine(check func(Fault) error) engine {
	return engine{check: check, release: make(chan struct{}), changed: make(chan struct{}), closing: make(chan struct{})}
}

// Hold parks every call that arrives from now on, until Release. A parked call has done nothing: the vendor has not
// acted, or the proxy has not passed it on. If its client goes away, it never does. At a vendor it holds its key: a
// second call with the same key is answered 409.
func (e *engine) Hold() { e.setHold(holdCalls) }

// HoldAnswers parks every call that arrives from now on after it was done and before it is answered, until Release.
func (e *engine) HoldAnswers() { e.setHold(holdAnswers) }

func (e *engine) setHold(point holdPoint) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.hold = point
}

// Release ends Hold and HoldAnswers. Every parked call goes on, including those that a fault parked.
func (e *engine) Release() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.hold = holdNothing
	close(e.release)
	e.release = make(chan struct{})
}

// Next queues faults for the next calls, one each, in order of arrival. A vendor's calls without one valid key take
// none. Next panics if a fault is unknown.
func (e *engine) Next(faults ...Fault) {
	for _, f := range faults {
		if err := e.check(f); err != nil {
			panic(err)
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.next = append(e.next, faults...)
}

// WaitOpen waits until at least n calls are open at once. If ctx ends first, the error tells how many were open.
func (e *engine) WaitOpen(ctx context.Context, n int) error {
	return e.waitFor(ctx, n, "calls open", func() int { return e.open })
}

// waitFor calls count with the engine locked.
func (e *engine) waitFor(ctx context.Context, n int, what string, count func() int) error {
	for {
		e.mu.Lock()
		have, changed := count(), e.changed
		e.mu.Unlock()
		if have >= n {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("samekeytest: %d of %d %s: %w", have, n, what, ctx.Err())
		}
	}
}

// broadcast wakes waitFor. e.mu is held.
func (e *engine) broadcast() {
	close(e.changed)
	e.changed = make(chan struct{})
}

// stop refuses new calls and ends the parked ones. e.mu is held.
func (e *engine) stop() {
	if !e.closed {
		e.closed = true
		close(e.closing)
	}
}

const maxBody = 16 << 20

// serve runs one call. admit fills in the visit's behavior and fault, with the engine locked.
func (e *engine) serve(w http.ResponseWriter, r *http.Request, admit func(c *visit, body []byte)) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		// Half a request is not a call: there is nothing to do or to count.
		write(w, refusal(http.StatusBadRequest, "body", "the body could not be read to its end"))
		return
	}
	c := e.arrive(w, r, func(c *visit) { admit(c, body) })
	if c == nil {
		drop(w, false)
		return
	}
	defer e.end(c, 0, false) // only if nothing else ended it: a business rule may panic
	if c.hold == holdCalls && !e.park(c) {
		e.abandon(c)
		return
	}
	e.play(c)
}

func (e *engine) arrive(w http.ResponseWriter, r *http.Request, admit func(*visit)) *visit {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return nil
	}
	c := &visit{w: w, r: r, release: e.release, hold: e.hold}
	e.open++
	admit(c)
	e.broadcast()
	return c
}

// pick returns the fault of the call that is arriving: the next one in the queue, else the one that otherwise chooses.
func (e *engine) pick(otherwise func() Fault) (f Fault) {
	if len(e.next) > 0 {
		f, e.next = e.next[0], e.next[1:]
	} else {
		f = otherwise()
	}
	if f == FaultNone {
		return ""
	}
	return f
}

// play runs the call to its end, with its fault.
func (e *engine) play(c *visit) {
	kind, arg, hasArg := c.fault.split()
	switch Fault(kind) {
	case "":
		e.reply(c)
	case FaultLoseAnswer, FaultResetAfter:
		c.act()
		e.hangUp(c, Fault(kind) == FaultResetAfter)
	case FaultResetBefore:
		e.hangUp(c, true)
	case FaultHang:
		if !e.park(c) {
			e.abandon(c)
			return
		}
		e.reply(c)
	case FaultHangAfter:
		c.hold = holdAnswers
		e.reply(c)
	case FaultLate:
		e.park(c)
		if e.isClosing() {
			e.abandon(c)
			return
		}
		e.reply(c)
	case FaultTruncate:
		e.truncate(c, c.act())
	case faultSlow:
		d, _ := time.ParseDuration(arg) // check has parsed it before
		a := c.act()
		if !e.wait(c, d) {
			e.abandon(c)
			return
		}
		e.answer(c, a)
	default:
		e.answer(c, e.inject(c, kind, arg, hasArg))
	}
}

// inject returns the answer of a fault that is a status, or that only this server has.
func (e *engine) inject(c *visit, kind, arg string, hasArg bool) VendorAnswer {
	if a, ok := c.special(kind); ok {
		return a
	}
	m := statusFault.FindStringSubmatch(kind)
	if m == nil {
		panic(fmt.Sprintf("samekeytest: the script returned the unknown fault %q", c.fault))
	}
	status, _ := strconv.Atoi(m[1])
	a := refusal(status, "injected_"+kind, "the test injected this answer")
	switch {
	case hasArg && arg != "":
		a.Header.Set("Retry-After", arg)
	case status == http.StatusTooManyRequests && !hasArg:
		a.Header.Set("Retry-After", "1")
	}
	if m[2] != "" { // _after
		c.act()
	}
	return a
}

// reply acts and answers.
func (e *engine) reply(c *visit) {
	a := c.act()
	if c.hold == holdAnswers && !e.park(c) {
		e.abandon(c)
		return
	}
	e.answer(c, a)
}

// answer ends the call and sends a, unless the client has gone.
func (e *engine) answer(c *visit, a VendorAnswer) {
	if c.r.Context().Err() != nil {
		e.abandon(c)
		return
	}
	e.end(c, a.Status, false)
	c.write(c.w, a, len(a.Body))
}

// truncate promises the whole body, sends half of it and cuts the connection.
func (e *engine) truncate(c *visit, a VendorAnswer) {
	if len(a.Body) == 0 { // there is no half of it
		e.hangUp(c, false)
		return
	}
	e.end(c, a.Status, false)
	c.write(c.w, a, len(a.Body)/2)
	_ = http.NewResponseController(c.w).Flush()
	panic(http.ErrAbortHandler) // closes the connection
}

// abandon ends a call without an answer: its client has gone, or the server is closing.
func (e *engine) abandon(c *visit) {
	e.end(c, 0, c.r.Context().Err() != nil)
	drop(c.w, false)
}

// hangUp ends a call without an answer, though its client is there.
func (e *engine) hangUp(c *visit, reset bool) {
	e.end(c, 0, false)
	drop(c.w, reset)
}

// end completes the call's entry. Only the first end of a call counts.
func (e *engine) end(c *visit, status int, clientGone bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if c.ended {
		return
	}
	c.ended = true
	c.record(status, clientGone)
	e.open--
	e.broadcast()
}

// park waits for Release. It returns false if the client goes away or the server closes first.
func (e *engine) park(c *visit) bool {
	select {
	case <-c.release:
		return true
	case <-c.r.Context().Done():
		return false
	case <-e.closing:
		return false
	}
}

// wait returns false if the client goes away or the server closes before d is over.
func (e *engine) wait(c *visit, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-c.r.Context().Done():
		return false
	case <-e.closing:
		return false
	}
}

func (e *engine) isClosing() bool {
	select {
	case <-e.closing:
		return true
	default:
		return false
	}
}
