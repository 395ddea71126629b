package dispatcher

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/samekey/samekey/internal/limit"
)

// How Drain claims: in rounds, until a round over all destinations finds nothing. Run claims in drain.go.

func (w *worker) drainRounds(ctx context.Context) error {
	if err := w.sweeper.takeOver(ctx); err != nil {
		return err
	}
	for {
		claimed, began := 0, time.Now()
		for _, d := range w.destinations.list {
			got, err := d.drainDry(ctx)
			claimed += got
			if err != nil {
				return fmt.Errorf("dispatcher: drain %q: %w", d.name, err)
			}
		}
		w.applier.allDue()
		got, held, err := w.applier.claimAll(ctx)
		if claimed += got; held { // there is a slot when a running Apply has ended
			claimed++
		}
		if err != nil {
			return fmt.Errorf("dispatcher: drain: claim answered intents: %w", err)
		}
		if err := w.allEnded(ctx); err != nil {
			return err
		}
		ran, err := w.attender.drain(ctx)
		if claimed += ran; err != nil {
			return fmt.Errorf("dispatcher: drain: run attention events: %w", err)
		}
		if claimed > 0 {
			continue
		}
		if until := w.destinations.busyUntil(); until.After(began) { // this round came before it
			if !sleep(ctx, min(time.Until(until), limit.TakeEvery)) {
				return ctx.Err()
			}
			continue
		}
		if !w.session.holds() {
			return errors.New("dispatcher: drain: the session that holds the worker's lock was lost: intents may be left")
		}
		return nil
	}
}

// takeOver sweeps once, and a second time if a worker's lock was missing.
func (s *sweeper) takeOver(ctx context.Context) error {
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

// busyUntil is when the last intent that was postponed for a busy endpoint is due.
func (ds *destinations) busyUntil() (until time.Time) {
	for _, d := range ds.list {
		d.mu.Lock()
		if d.until.After(until) {
			until = d.until
		}
		d.mu.Unlock()
	}
	return until
}

// drainDry claims from all actions until a round of claims from their beginnings finds nothing. It waits for the
// destination's rate, not for an open breaker.
func (d *destination) drainDry(ctx context.Context) (claimed int, err error) {
	for full := true; ; {
		postponed := d.postponed
		if wait := d.rate.Wait(time.Now()); wait > 0 && !sleep(ctx, wait) {
			return claimed, ctx.Err()
		}
		d.pokeAll()
		if full {
			for i := range d.marks {
				d.marks[i].full = time.Time{}
			}
		}
		if !d.slots.wait(ctx, nil) {
			return claimed, ctx.Err()
		}
		got, err := d.claimAll(ctx)
		called := got - (d.postponed - postponed)
		claimed += called
		// Intents that were postponed may be due again already. They are no reason to go on, unless there may be more
		// behind them.
		dry := called == 0 && d.rate.Wait(time.Now()) == 0 && (got == 0 || !d.isDue())
		if err != nil || dry && full {
			return claimed, err
		}
		full = dry
	}
}

// allEnded waits until every claim is settled and applied.
func (w *worker) allEnded(ctx context.Context) error {
	done := make(chan struct{})
	go func() { w.open.Wait(); close(done) }()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
