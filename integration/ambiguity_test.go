package integration

import (
	"cmp"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/samekey/samekey/dispatcher"
	"github.com/samekey/samekey/internal/dbtest"
	"github.com/samekey/samekey/internal/wiretest"
	"github.com/samekey/samekey/outbox"
	"github.com/samekey/samekey/samekeytest"
)

var (
	seedRuns = flag.Int("seeds", 0, "runs of the seeded tests, by all kinds of disaster together; 0: 102, or 18 with -short")
	oneSeed  = flag.Uint64("seed", 0, "the one seed to run")
)

// disasters are the failures of a worker in the middle of a call. The worker of the last two continues after another
// worker has taken its intent over.
var disasters = map[string]func(r *ambiguous){
	"killed": func(r *ambiguous) { r.victim.kill() },
	"stopped past its lease": func(r *ambiguous) {
		r.victim.stop()
		r.afterwards = func() {
			r.victim.signal(syscall.SIGCONT)
			r.victim.release()
		}
	},
	"cut from the database": func(r *ambiguous) {
		r.proxy.Isolate()
		r.afterwards = func() {
			r.proxy.Revive()
			r.victim.release()
		}
	},
}

// ambiguous is one run: a non-idempotent or irreversible intent, and a worker that fails in the middle of its call.
type ambiguous struct {
	*bundle
	approver   *pgxpool.Pool
	proxy      *wiretest.Proxy // between the victim and its database
	random     *rand.Rand
	id         uuid.UUID
	key        string
	victim     *process
	acted      bool // the vendor had acted before the disaster
	config     workerConfig
	afterwards func()
}

// If the worker of a non-idempotent write fails in the middle of a call, the intent is looked up or parked. It is never
// sent a second time, except once after two lookups found nothing and only if the policy allows it. The vendor ignores
// keys, so a second call is a second effect. Each seed is one run. To repeat one:
//
//	go test -run SeededRuns -args -seed 17
func TestSeededRunsNeverSendANonIdempotentWriteTwice(t *testing.T) {
	for i, name := range slices.Sorted(func(yield func(string) bool) {
		for name := range disasters {
			if !yield(name) {
				return
			}
		}
	}) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t, &samekeytest.VendorOptions{IgnoreKeys: true})
			approver, proxy := dbtest.Approver(t, b.DB), wiretest.Start(t, b.workerDSN)
			for run := range cmp.Or(*seedRuns, dbtest.Size(102, 18)) / len(disasters) {
				seed := uint64(run*len(disasters) + i + 1)
				if *oneSeed != 0 && seed != *oneSeed {
					continue
				}
				r := &ambiguous{bundle: b, approver: approver, proxy: proxy, random: rand.New(rand.NewPCG(seed, 5))}
				if !r.run(seed, name) {
					t.Fatalf("seed %d", seed)
				}
			}
		})
	}
}

func (r *ambiguous) run(seed uint64, kind string) (ok bool) {
	r.config = workerConfig{Class: dispatcher.NonIdempotentWrite, Lookup: r.random.IntN(3) > 0, Apply: r.random.IntN(2) > 0, Sweep: 50 * time.Millisecond}
	if r.random.IntN(4) == 0 {
		r.config.Class = dispatcher.IrreversibleWrite
	}
	// Only a worker that is certainly dead sends nothing after two lookups found nothing.
	r.config.ResendAbsent = kind == "killed" && r.config.Lookup && r.config.Class == dispatcher.NonIdempotentWrite
	before := r.vendor.Counts()
	r.intoACall(fmt.Sprintf("item %d", seed))
	disasters[kind](r)
	early := r.random.IntN(2) == 0
	if early {
		r.vendor.Release()
	}
	samekeytest.Elapse(r.t, r.DB, time.Minute) // past the lease
	heir := r.worker(fmt.Sprintf("heir %d", seed), r.config)
	r.eventually(`status <> 'leased' and leased_by is null or not exists (select from samekey.outbox_queue where id = $1) from (select) x left join samekey.outbox_queue on id = $1`, r.id)
	if !early {
		r.vendor.Release()
	}
	if r.afterwards != nil {
		r.afterwards()
	}
	entry := r.rest()
	heir.kill()
	r.victim.clear()

	calls := r.vendor.Counts().Calls - before.Calls
	effects := r.vendor.Counts().Effects - before.Effects
	allowed := 1
	if r.config.ResendAbsent && !r.acted {
		allowed = 2
	}
	switch {
	case calls > allowed || effects > 1:
		r.t.Errorf("%d calls and %d effects", calls, effects)
	case r.config.ResendAbsent && entry.Status != outbox.StatusDelivered:
		r.t.Errorf("the intent is %s, want delivered by the resend", entry.Status)
	case r.acted && effects != 1:
		r.t.Errorf("the vendor had acted, and there are %d effects", effects)
	case entry.Status == outbox.StatusDelivered && effects != 1:
		r.t.Errorf("delivered, with %d effects", effects)
	case r.acted && r.config.Lookup && entry.Status != outbox.StatusDelivered:
		r.t.Errorf("the intent is %s, want delivered by the lookup", entry.Status)
	case !slices.Contains([]outbox.Status{outbox.StatusDelivered, outbox.StatusParked}, entry.Status):
		r.t.Errorf("the intent is %s", entry.Status)
	}
	if r.t.Failed() {
		r.t.Logf("acted %t, early answer %t, %+v\n%s", r.acted, early, r.config, timeline(entry))
	}
	return !r.t.Failed()
}

// intoACall starts the victim and waits until it has reached a random point of a call.
func (r *ambiguous) intoACall(item string) {
	config := r.config
	config.DSN = r.proxy.DSN()
	point := []string{beforeCall, "at the vendor", "acted", afterAnswer}[r.random.IntN(4)]
	switch point {
	case beforeCall, afterAnswer:
		config.Stand = point
	case "at the vendor":
		r.vendor.Hold()
	case "acted":
		r.vendor.HoldAnswers()
	}
	effects := r.vendor.Counts().Effects
	r.victim = r.worker("victim of "+item, config)
	r.id, r.key = r.insert(item)
	if config.Class == dispatcher.IrreversibleWrite {
		r.status(r.id, outbox.StatusAwaitingApproval)
		if err := outbox.Approve(r.t.Context(), r.approver, r.id, outbox.By{Actor: "ann", Reason: "checked"}); err != nil {
			r.t.Fatal(err)
		}
	}
	switch point {
	case beforeCall, afterAnswer:
		r.victim.wait("at " + point)
	case "at the vendor":
		r.open(1)
	case "acted":
		r.effects(effects + 1)
	}
	r.acted = point == "acted" || point == afterAnswer
}

// rest lets time pass until the intent is finished, or parked for good.
func (r *ambiguous) rest() (entry outbox.Entry) {
	dbtest.Until(r.t, "the intent is finished or parked", func() bool {
		entry = r.entry(r.id)
		if entry.Status == outbox.StatusUnknown {
			samekeytest.Elapse(r.t, r.DB, time.Minute)
		}
		return entry.Status.Finished() || entry.Status == outbox.StatusParked && r.quiet(entry)
	})
	return entry
}

// quiet reports whether the victim holds no intent any more. Until then its late answer may resolve the parked intent.
func (r *ambiguous) quiet(entry outbox.Entry) bool {
	select {
	case <-r.victim.ended:
		return true
	default:
	}
	return slices.ContainsFunc(entry.History, func(e outbox.Event) bool { return e.Event == "late" })
}
