package dispatcher_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/samekey/samekey/dispatcher"
	"github.com/samekey/samekey/internal/dbtest"
	"github.com/samekey/samekey/outbox"
	"github.com/samekey/samekey/samekeytest"
)

// troubles are the faults of a vendor, used alone and in random rows.
var troubles = []samekeytest.Fault{
	samekeytest.FaultNone, samekeytest.FaultLoseAnswer, samekeytest.FaultResetBefore, samekeytest.FaultResetAfter, "500",
	"500_after", "429", "402", samekeytest.FaultTruncate,
}

// runOf is one intent of a class, with a random row of faults and random times between the drains.
type runOf struct {
	*bundle
	class    dispatcher.Class
	random   *rand.Rand
	d        *dispatcher.Dispatcher
	id       uuid.UUID
	row      []samekeytest.Fault
	sent     time.Duration // by the database's clock, since the first call; negative: none yet
	approved int
}

// Each class keeps its guarantee under any faults. An idempotent write has one effect at a vendor that honors keys, one
// key, the same bytes, and no call past its window. A non-idempotent write has at most one effect at a vendor without
// keys. An irreversible write has no more calls than approvals. A delivered intent had its effect. Each intent ends
// finished, parked or dead.
func TestClassGuaranteesUnderRandomFaults(t *testing.T) {
	runs := dbtest.Size(25, 5)
	for _, class := range []dispatcher.Class{dispatcher.Read, dispatcher.IdempotentWrite, dispatcher.NonIdempotentWrite, dispatcher.IrreversibleWrite} {
		t.Run(class.String(), func(t *testing.T) {
			keyless := class == dispatcher.NonIdempotentWrite || class == dispatcher.IrreversibleWrite
			b := setupVendor(t, &samekeytest.VendorOptions{IgnoreKeys: keyless})
			for seed := range uint64(runs) {
				random := rand.New(rand.NewPCG(seed, uint64(class)))
				r := &runOf{bundle: b, class: class, random: random, sent: -1}
				var options []option
				if random.IntN(3) > 0 {
					options = append(options, withLookup(b.lookup))
				}
				r.d = b.handles(class, func(p *dispatcher.Policy) {
					if !keyless || len(options) > 0 {
						p.Attempts = 6
					}
					p.ResendAbsent = class == dispatcher.NonIdempotentWrite && len(options) > 0 && random.IntN(2) == 0
					if class == dispatcher.IdempotentWrite {
						p.KeyWindow = 24 * time.Hour
					}
				}, options...)
				for range 1 + random.IntN(6) {
					r.row = append(r.row, troubles[random.IntN(len(troubles))])
				}
				if err := r.run(); err != nil {
					t.Fatalf("seed %d, %v: %v\n\t%s", seed, r.row, err, b.history(r.id))
				}
			}
		})
	}
}

func (r *runOf) run() error {
	r.vendor.Next(r.row...)
	r.id = r.insert("charge_card")
	key := r.deliveryKey(r.id)
	elapsed := time.Duration(0)
	for step := 0; ; step++ {
		before := len(r.calls(key))
		r.drain(r.d)
		if calls := r.calls(key); len(calls) > before {
			if r.sent < 0 {
				r.sent = elapsed
			}
			if r.class == dispatcher.IdempotentWrite && elapsed-r.sent >= lastSend {
				return fmt.Errorf("it was sent %v after the first send", elapsed-r.sent)
			}
		}
		switch status := r.status(r.id); {
		case status == "delivered", status == "refused", status == "parked", status == "dead":
			r.vendor.SetFaults(samekeytest.FaultPlan{}) // unused faults do not apply to the next intent
			return r.judge(status, key)
		case status == "awaiting_approval":
			r.approved++
			r.approve(r.id)
		case step == 60:
			return fmt.Errorf("it is %s and does not end", status)
		}
		pause := time.Duration(1+r.random.IntN(100)) * time.Minute
		if r.random.IntN(8) == 0 {
			pause = time.Duration(r.random.IntN(30)) * time.Hour
		}
		elapsed += pause
		r.elapse(pause)
	}
}

func (r *runOf) calls(key string) (calls []samekeytest.VendorCall) {
	for _, call := range r.vendor.Ledger().Calls {
		if call.Key == key {
			calls = append(calls, call)
		}
	}
	return calls
}

func (r *runOf) judge(status, key string) error {
	calls, effects := r.calls(key), 0
	for _, call := range calls {
		if call.Effect {
			effects++
		}
		if call.BodyHash != calls[0].BodyHash || call.Path != calls[0].Path {
			return errors.New("two calls differ")
		}
	}
	switch {
	case r.class != dispatcher.Read && effects > 1:
		return fmt.Errorf("%d effects", effects)
	case status == "delivered" && effects == 0:
		return errors.New("it is delivered, and has no effect")
	case status == "refused" && effects > 0:
		return errors.New("it is refused, and has an effect")
	case r.class == dispatcher.IrreversibleWrite && len(calls) > r.approved:
		return fmt.Errorf("%d calls with %d approvals", len(calls), r.approved)
	case status == "dead" && (r.class == dispatcher.NonIdempotentWrite || r.class == dispatcher.IrreversibleWrite) && effects > 0:
		return errors.New("it is dead, and a redrive would send it again")
	}
	if entry, err := outbox.Get(r.ctx, r.db.Pool, r.id); err != nil || len(entry.History) == 0 {
		return fmt.Errorf("there is no history: %w", err)
	}
	return nil
}
