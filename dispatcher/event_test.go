package dispatcher_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/samekey/samekey"
	"github.com/samekey/samekey/dispatcher"
	"github.com/samekey/samekey/outbox"
	"github.com/samekey/samekey/processed"
)

// event handles the vendor's webhook: it completes the intent once per event. If before is set, it is called before the
// commit.
func (b *bundle) event(name string, id uuid.UUID, before func()) (first bool, err error) {
	key, err := samekey.NewKey(name, "vendor", "events")
	if err != nil {
		return false, err
	}
	return processed.Once(b.ctx, b.db.Pool, processed.Request{Key: key}, func(ctx context.Context, tx pgx.Tx) error {
		err := outbox.Resolve(ctx, tx, id, outbox.Resolution{Outcome: outbox.Delivered, Code: "done"}, outbox.By{Actor: "vendor's webhook", Reason: name})
		if before != nil {
			before()
		}
		return err
	})
}

// An event arrives during a poll, or the other way round. One of them finishes the intent, and Apply runs once.
func TestConcurrentEventAndPollFinishOnce(t *testing.T) {
	for name, eventFirst := range map[string]bool{"the event is committed while the vendor is asked": true, "the vendor's answer comes while the event's transaction is open": false} {
		t.Run(name, func(t *testing.T) {
			b := setup(t)
			var applied atomic.Int32
			asked, answer := make(chan struct{}), make(chan struct{})
			s := &scripted{next: answering(dispatcher.Accepted(dispatcher.Response{Code: "202"}).After(time.Minute))}
			d := b.dispatcher()
			d.Destination("vendor", dispatcher.Limits{})
			handle(d, "charge_card", policyOf(dispatcher.NonIdempotentWrite), s.handle,
				withLookup(func(ctx context.Context, _ *dispatcher.Call, _ []byte) (dispatcher.Outcome, error) {
					close(asked)
					select {
					case <-answer:
					case <-ctx.Done():
					}
					return dispatcher.Delivered(dispatcher.Response{Code: "polled"}), nil
				}),
				withApply(func(context.Context, pgx.Tx, []byte, dispatcher.Settled) error {
					applied.Add(1)
					return nil
				}))
			id := b.insert("charge_card")
			b.expect(d, unknown)
			b.elapse(2 * time.Minute)
			drained := make(chan struct{})
			go func() {
				defer close(drained)
				b.drain(d)
			}()
			wait(b, "the vendor is asked", asked)
			if eventFirst {
				if first, err := b.event("event-7", id, nil); !first || err != nil {
					t.Errorf("the event: %t, %v", first, err)
				}
				close(answer)
			} else {
				if first, err := b.event("event-7", id, func() {
					close(answer)
					b.until("the settle waits for the event's transaction", func() bool {
						return b.count(`select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'`) > 0
					})
				}); !first || err != nil {
					t.Errorf("the event: %t, %v", first, err)
				}
			}
			wait(b, "the drain is over", drained)
			b.drain(d)
			// The poll's answer is only recorded: its fence does not match.
			b.until("the late answer is recorded", func() bool { return strings.Contains(b.history(id), "late") })
			history := strings.Fields(b.history(id))
			slices.Sort(history)
			if got := strings.Join(history, " "); got != "apply:delivered:done attempt:accepted:accepted late:delivered:polled resolved:delivered:done" {
				t.Errorf("the history is %s", got)
			}
			b.wantStatus(id, "delivered")
			if n := applied.Load(); n != 1 || s.calls != 1 {
				t.Errorf("Apply ran %d times after %d calls", n, s.calls)
			}
			if n := b.count(`select count(*) from samekey.outbox_history where final_status is not null`); n != 1 {
				t.Errorf("%d events finished it", n)
			}
			// The vendor repeats the event under the same name and under another one.
			if first, err := b.event("event-7", id, nil); first || err != nil {
				t.Errorf("the event again: %t, %v", first, err)
			}
			var state *outbox.StateError
			if _, err := b.event("event-8", id, nil); !errors.As(err, &state) || state.Status != "delivered" {
				t.Errorf("another event: %v", err)
			}
		})
	}
}
