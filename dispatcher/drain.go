package dispatcher

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Summary counts what a [Dispatcher.Drain] came to: each claim once, so that an intent which was retried within the
// drain counts at each attempt.
type Summary struct {
	Delivered        int // finished: the vendor acted
	Refused          int // finished: a business no
	Retried          int // due again later, or an Apply that failed
	Unknown          int // to be looked up later
	Parked           int // waits for a person
	Dead             int // waits for a person
	AwaitingApproval int // waits for a person
	TakenOver        int // somebody else took the intent over meanwhile
}

// Total is the number of claims.
func (s Summary) Total() int {
	return s.Delivered + s.Refused + s.Retried + s.Unknown + s.Parked + s.Dead + s.AwaitingApproval + s.TakenOver
}

// Drain delivers until nothing is due, and returns what came of it. It needs no running River, and holds a worker's lock
// of its own while it lasts: for tests and for cron. What becomes due by a finished call's Apply or by a promotion is
// delivered too; what is due later (a retry after its backoff) is left. A destination's rate and a busy endpoint are waited
// for. Paused destinations are left alone, and so is what has an open breaker or is held since the vendor wants
// fewer calls ([Limits.BreakAfter]): it counts as nothing due.
//
// When ctx ends it stops as [Dispatcher.Run] does and returns ctx's error with what it counted.
func (d *Dispatcher) Drain(ctx context.Context) (Summary, error) {
	if err := d.Check(); err != nil {
		return Summary{}, err
	}
	if !d.running.TryLock() {
		return Summary{}, ErrRunning
	}
	defer d.running.Unlock()
	defer d.repeats.flush(context.WithoutCancel(ctx))

	base := context.WithoutCancel(ctx)
	calls, cancelCalls := context.WithCancel(base)
	defer cancelCalls()
	n, err := d.newNode(calls)
	if err != nil {
		return Summary{}, err
	}
	defer n.close()
	conn, err := n.session.open(ctx)
	if err != nil {
		return Summary{}, err
	}
	leave := n.attend(base, conn)

	err = n.takeOver(ctx)
	if err == nil {
		err = n.drainAll(ctx)
	}
	n.stop()
	leave(cancelCalls)

	n.mu.Lock()
	defer n.mu.Unlock()
	return n.sum, err
}

// takeOver sweeps once, and once more where a worker's lock was missing.
func (n *node) takeOver(ctx context.Context) error {
	s := &sweeper{node: n}
	for look := 0; look == 0 || look == 1 && len(s.gone) > 0; look++ {
		if look > 0 && !sleep(ctx, secondLook) {
			return ctx.Err()
		}
		if err := s.sweep(ctx); err != nil {
			return fmt.Errorf("dispatcher: drain: sweep: %w", err)
		}
	}
	return nil
}

// drainAll claims in every lane until a round over all of them, with nothing under way, finds nothing.
func (n *node) drainAll(ctx context.Context) error {
	for {
		claimed, began := 0, time.Now()
		for _, lane := range n.lanes {
			got, err := lane.drainDry(ctx)
			claimed += got
			if err != nil {
				return fmt.Errorf("dispatcher: drain %q: %w", lane.name, err)
			}
		}
		n.applier.allDue()
		got, held, err := n.applier.claimAll(ctx)
		if claimed += got; held { // there is a slot when one that runs has ended
			claimed++
		}
		if err != nil {
			return fmt.Errorf("dispatcher: drain: claim answered intents: %w", err)
		}
		if err := n.settledAll(ctx); err != nil {
			return err
		}
		if claimed > 0 {
			continue
		}
		if until := n.busyUntil(); until.After(began) { // this round came before them
			if !sleep(ctx, min(time.Until(until), takeEvery)) {
				return ctx.Err()
			}
			continue
		}
		if !n.session.holds() {
			return errors.New("dispatcher: drain: the session that holds the worker's lock was lost: intents may be left")
		}
		return nil
	}
}

// busyUntil is when the last intent that was put off for a busy endpoint is due.
func (n *node) busyUntil() (until time.Time) {
	for _, lane := range n.lanes {
		lane.mu.Lock()
		if lane.until.After(until) {
			until = lane.until
		}
		lane.mu.Unlock()
	}
	return until
}

// drainDry claims from all actions, from their beginnings, until a round of claims finds nothing. The destination's rate is
// waited for, an open breaker is not.
func (l *lane) drainDry(ctx context.Context) (claimed int, err error) {
	for {
		off := l.off
		if wait := l.rate.wait(time.Now()); wait > 0 && !sleep(ctx, wait) {
			return claimed, ctx.Err()
		}
		l.pokeAll()
		for i := range l.marks {
			l.marks[i].full = time.Time{}
		}
		select { // wait for a free slot
		case l.slots <- struct{}{}:
			<-l.slots
		case <-ctx.Done():
			return claimed, ctx.Err()
		}
		got, err := l.claimAll(ctx)
		called := got - (l.off - off)
		claimed += called
		// What was put off may be due again already, so it is no reason to go on, unless there may be more behind it.
		if err != nil || called == 0 && l.rate.wait(time.Now()) == 0 && (got == 0 || !l.flagged()) {
			return claimed, err
		}
	}
}

// settledAll waits until every claim is settled.
func (n *node) settledAll(ctx context.Context) error {
	done := make(chan struct{})
	go func() { n.open.Wait(); close(done) }()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
