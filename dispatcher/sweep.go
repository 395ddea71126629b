package dispatcher

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/samekey/samekey/internal/db"
)

// sweeper finds the work that no worker holds: intents that are due, leases of dead workers, leases that ran out,
// ordering keys without a head. It runs in every worker, so no leader has to be elected before a killed worker's work
// goes on.
type sweeper struct {
	core         *core
	destinations *destinations
	settler      *settler
	applier      *applier
	attender     *attender

	now   chan struct{} // sweep now: something may have changed
	began time.Time     // when run began

	mu    sync.Mutex
	swept time.Time // the last sweep that the database answered

	failing bool // the log has said that sweeps fail

	gone  map[int32]time.Time // workers whose lock was missing at the last look, and since when
	heads time.Time           // when ordering keys were last looked through
	after string              // how far
}

func newSweeper(c *core, ds *destinations, settler *settler, applier *applier, attender *attender) *sweeper {
	return &sweeper{core: c, destinations: ds, settler: settler, applier: applier, attender: attender, now: make(chan struct{}, 1)}
}

// woken takes a notification: work of this action was committed. An empty one means: look everywhere, also at pauses.
func (s *sweeper) woken(action string) {
	if action != "" {
		s.destinations.poke(action)
		return
	}
	s.destinations.pokeAll()
	select {
	case s.now <- struct{}{}:
	default:
	}
}

// answeredAt is when the database last answered a sweep.
func (s *sweeper) answeredAt() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.swept
}

const (
	// secondLook is how soon a missing lock is looked for again: a worker that lost its connection is back by then.
	secondLook = 250 * time.Millisecond
	// headsInterval is how often ordering keys are looked through for one without a head. It is a safety net: a worker
	// that finishes a head promotes the next.
	headsInterval = 5 * time.Second
	headsPage     = 1000
	releasePage   = 1000
)

// run sweeps until ctx ends.
func (s *sweeper) run(ctx context.Context) {
	s.began = time.Now()
	for {
		wait := s.core.config.SweepInterval
		sweeping, cancel := context.WithTimeout(ctx, settleTimeout)
		err := s.sweep(sweeping)
		cancel()
		if ctx.Err() == nil {
			s.answered(ctx, err)
		}
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			resetReadOnly(s.core.pool, err)
			s.core.log.WarnContext(ctx, "dispatcher: sweep failed", slog.String("error", errorText(err)))
			wait = max(wait, time.Second) // no tight loop against a database that is down
		case len(s.gone) > 0:
			wait = min(wait, secondLook)
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-s.now:
		case <-ctx.Done():
		}
		timer.Stop()
	}
}

// answered logs once that sweeps fail for long, and once that they work again: without them, no worker knows which
// intents are due.
func (s *sweeper) answered(ctx context.Context, err error) {
	last := s.answeredAt()
	if last.IsZero() { // the first sweep is still to come
		last = s.began
	}
	since := time.Since(last)
	switch {
	case err == nil && s.failing:
		s.failing = false
		s.core.log.InfoContext(ctx, "dispatcher: the database answers sweeps again")
	case err != nil && !s.failing && since > s.core.times.alarmAfter:
		s.failing = true
		s.core.log.ErrorContext(ctx, "dispatcher: the database has answered no sweep for long, so nothing is claimed; look whether it can be reached, and for locks on samekey.outbox_queue (pg_locks)",
			slog.Duration("since", since.Round(time.Second)), slog.String("error", errorText(err)))
	}
}

// sweep looks once, and does what follows.
func (s *sweeper) sweep(ctx context.Context) error {
	looked := time.Now()
	rows, err := s.core.q.OutboxQueueSweep(ctx, db.OutboxQueueSweepParams{
		Actions: s.destinations.actions(), Attending: s.attender.names(), Worker: s.core.self.id()})
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.swept = time.Now()
	s.mu.Unlock()

	gone, paused, due, mirror := map[int32]time.Time{}, map[string]map[string]bool{}, map[string]bool{}, false
	var answered, attention []string
	for _, row := range rows {
		switch row.Kind {
		case "due":
			due[row.Name] = true
		case "answered":
			answered = append(answered, row.Name)
		case "attention":
			attention = append(attention, row.Name)
		case "paused":
			destination, action, _ := strings.Cut(row.Name, " ")
			if paused[destination] == nil {
				paused[destination] = map[string]bool{}
			}
			paused[destination][action] = true
		case "sync":
			mirror = true
		case "gone":
			gone[row.Worker] = looked
			if since, ok := s.gone[row.Worker]; ok {
				gone[row.Worker] = since
			}
		case "expired":
			if row.Worker == s.core.self.id() && s.settler.isBehind() {
				continue // this worker knows how they ended, and is about to write it
			}
			if err := s.release(ctx, row.Worker, false); err != nil {
				return err
			}
		}
	}
	s.gone = gone
	if err := s.releaseGone(ctx, looked); err != nil {
		return err
	}
	if err := s.promote(ctx); err != nil {
		return err
	}
	if mirror {
		if err := mirrorPauses(ctx, s.core.q, s.core.log); err != nil {
			return err
		}
	}
	for _, d := range s.destinations.list {
		d.setPaused(paused[d.name])
		d.watch(time.Now(), due)
	}
	s.applier.setDue(answered)
	s.attender.setDue(attention)
	s.destinations.poke(slices.Collect(maps.Keys(due))...)
	return nil
}

// releaseGone takes over from workers whose lock was missing at two looks, if this worker held its own all the time:
// else the database was unavailable, and no worker had its lock.
func (s *sweeper) releaseGone(ctx context.Context, looked time.Time) error {
	for worker, since := range s.gone {
		missing := looked.Sub(since)
		if missing < min(secondLook, s.core.config.SweepInterval)/2 || s.core.self.heldFor() < missing {
			continue
		}
		if err := s.release(ctx, worker, true); err != nil {
			return err
		}
	}
	return nil
}

func (s *sweeper) release(ctx context.Context, worker int32, gone bool) error {
	for {
		rows, err := s.core.q.OutboxQueueRelease(ctx, db.OutboxQueueReleaseParams{
			Holder: worker, HolderGone: gone, MaxCount: releasePage, SettlingDelay: settlingOrphans})
		if err != nil {
			return err
		}
		if len(rows) > 0 {
			s.core.log.WarnContext(ctx, "dispatcher: took over what a worker held", slog.Int("worker", int(worker)),
				slog.Bool("lock_gone", gone), slog.Int("intents", len(rows)))
		}
		for _, row := range rows {
			s.destinations.poke(row.Action)
		}
		if len(rows) < releasePage {
			return nil
		}
	}
}

// promote gives a head to ordering keys that lost theirs: under REPEATABLE READ a writer may not see that the head was
// finished meanwhile.
func (s *sweeper) promote(ctx context.Context) error {
	if time.Since(s.heads) < headsInterval {
		return nil
	}
	s.heads = time.Now()
	page, err := s.core.q.OutboxQueueHeadless(ctx, db.OutboxQueueHeadlessParams{After: s.after, MaxCount: headsPage})
	if err != nil {
		return err
	}
	s.after = ""
	if len(page) == headsPage {
		s.after = page[len(page)-1].OrderingKey
	}
	for _, key := range page {
		if !key.Headless {
			continue
		}
		promoted, err := promote(ctx, s.core.pool, s.core.q, []string{key.OrderingKey})
		if err != nil {
			return err
		}
		s.destinations.poke(promoted...)
	}
	return nil
}
