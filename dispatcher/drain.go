package dispatcher

import (
	"context"
	"log/slog"
	"time"
)

// claimRetry is the first wait after a claim that failed; it doubles up to claimMaxWait.
const claimRetry, claimMaxWait = 50 * time.Millisecond, time.Second

// drain is the body of a shift: it waits for pokes, claims, and starts calls, until the shift is over or ctx ends.
// Calls in flight then stay with the destination.
func (d *destination) drain(ctx context.Context, shift time.Duration) {
	end := time.NewTimer(shift)
	defer end.Stop()
	retry := doubling{first: claimRetry, most: claimMaxWait}
	for ctx.Err() == nil {
		if d.isDue() && d.mayClaim() && d.heldUp(time.Now()) == 0 {
			if !d.slots.wait(ctx, end.C) {
				return
			}
			claimed, err := d.claimAll(ctx)
			if err != nil && ctx.Err() == nil {
				d.core.log.WarnContext(ctx, "dispatcher: claim failed", slog.String("destination", d.name), slog.String("error", errorText(err)))
				select { // ignore pokes meanwhile: no busy loop against a database in trouble
				case <-time.After(retry.delay()):
				case <-end.C:
					return
				case <-ctx.Done():
					return
				}
				continue
			}
			retry.reset()
			if claimed > 0 {
				select {
				case <-end.C:
					return
				default:
					continue
				}
			}
		}
		var again <-chan time.Time // look again without a poke
		if wait := d.heldUp(time.Now()); wait > 0 && d.isDue() {
			again = time.After(wait)
		}
		select {
		case <-d.poked:
		case <-again:
		case <-end.C:
			return
		case <-ctx.Done():
			return
		}
	}
}

// claimAll claims once from each action that may have something due, as far as slots are free, and starts the calls.
// Intents that were postponed count as claimed.
func (d *destination) claimAll(ctx context.Context) (claimed int, err error) {
	indexes := d.take()
	for i, index := range indexes {
		free := d.slots.reserve()
		if free == 0 {
			d.pokeThese(indexes[i:]) // their turn is still to come
			return claimed, nil
		}
		got, next, err := d.claimOne(ctx, index, free)
		claimed += got
		if err != nil {
			d.pokeThese(indexes[i:])
			return claimed, err
		}
		switch next {
		case mayBeMore:
			d.poke(d.actions[index].name)
		case notYet:
			d.markDue(d.actions[index].name)
		}
	}
	return claimed, nil
}

func (d *destination) pokeThese(indexes []int) {
	for _, index := range indexes {
		d.poke(d.actions[index].name)
	}
}

// claimOne claims from one action in the reserved slots, and starts a goroutine for each call.
func (d *destination) claimOne(ctx context.Context, index, reserved int) (got int, next next, err error) {
	ended := d.tried(index)
	defer func() { ended(err) }()
	b, next, err := d.claim(ctx, index, reserved)
	if err != nil || len(b.claims) == 0 {
		return 0, next, err
	}
	got = len(b.claims)
	if err := d.loadBatch(ctx, b); err != nil {
		return got, next, err
	}
	on, postponed := d.admit(ctx, b)
	if b.claims[0].PayloadDeferred {
		d.markSending(ctx, b.action, on)
	}
	for _, c := range on {
		d.core.open.Add(1)
		go d.deliver(c)
	}
	d.postpone(ctx, postponed)
	return got, next, nil
}
