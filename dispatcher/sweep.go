package dispatcher

import (
	"context"
	"log/slog"
	"strings"
	"time"

	"github.com/samekey/samekey/internal/db"
)

// sweeper finds what nobody holds: intents that are due, leases of dead workers, leases that ran out, ordering keys
// without a head. It runs on every node, so that no leader has to be elected before a killed worker's work goes on.
type sweeper struct {
	node  *node
	began time.Time // when run began

	failing bool // that sweeps fail has been reported

	gone  map[int32]time.Time // workers whose lock was missing at the last look, and since when
	heads time.Time           // when ordering keys were last looked through
	after string              // how far
}

const (
	// secondLook is how soon a missing lock is looked for again: a worker that lost its connection has come back by then.
	secondLook = 250 * time.Millisecond
	// headsInterval is how often ordering keys are looked through for one without a head. It is a safety net: whoever
	// finishes a head promotes the next.
	headsInterval = 5 * time.Second
	headsPage     = 1000
	releasePage   = 1000
)

// run sweeps until ctx ends.
func (s *sweeper) run(ctx context.Context) {
	s.began = time.Now()
	for {
		wait := s.node.config.SweepInterval
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
			resetReadOnly(s.node.pool, err)
			s.node.log.WarnContext(ctx, "dispatcher: sweep failed", slog.String("error", errorText(err)))
			wait = max(wait, time.Second) // no tight loop against a database that is down
		case len(s.gone) > 0:
			wait = min(wait, secondLook)
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-s.node.sweepNow:
		case <-ctx.Done():
		}
		timer.Stop()
	}
}

// answered tells once that sweeps fail for long, and that they do not any more: without them, nobody knows what is due.
func (s *sweeper) answered(ctx context.Context, err error) {
	s.node.mu.Lock()
	last := s.node.swept
	s.node.mu.Unlock()
	if last.IsZero() { // the first one is still to come
		last = s.began
	}
	since := time.Since(last)
	switch {
	case err == nil && s.failing:
		s.failing = false
		s.node.log.InfoContext(ctx, "dispatcher: the database answers sweeps again")
	case err != nil && !s.failing && since > s.node.alarmAfter:
		s.failing = true
		s.node.log.ErrorContext(ctx, "dispatcher: the database has answered no sweep for long, so nothing is claimed; look whether it can be reached, and for locks on samekey.outbox_queue (pg_locks)",
			slog.Duration("since", since.Round(time.Second)), slog.String("error", errorText(err)))
	}
}

// sweep is one look, and what follows from it.
func (s *sweeper) sweep(ctx context.Context) error {
	looked := time.Now()
	rows, err := s.node.q.OutboxQueueSweep(ctx, db.OutboxQueueSweepParams{
		Actions: s.node.session.actions, Worker: s.node.session.id()})
	if err != nil {
		return err
	}
	s.node.mu.Lock()
	s.node.swept = time.Now()
	s.node.mu.Unlock()

	gone, paused, due, mirror := map[int32]time.Time{}, map[string]map[string]bool{}, map[string]bool{}, false
	var answered []string
	for _, row := range rows {
		switch row.Kind {
		case "due":
			due[row.Name] = true
		case "answered":
			answered = append(answered, row.Name)
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
			if row.Worker == s.node.session.id() && s.node.behind.Load() {
				continue // this node knows what came of them, and is about to write it
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
		if err := s.node.mirrorPauses(ctx); err != nil {
			return err
		}
	}
	for _, lane := range s.node.lanes {
		lane.setPaused(paused[lane.name])
		lane.watch(time.Now(), due)
	}
	s.node.applier.setDue(answered)
	for action := range due {
		s.node.wake(action)
	}
	return nil
}

// releaseGone takes over from workers whose lock was gone at two looks, while this worker's own was held all the time:
// else it was the database that was away, and with it everybody's lock.
func (s *sweeper) releaseGone(ctx context.Context, looked time.Time) error {
	for worker, since := range s.gone {
		missing := looked.Sub(since)
		if missing < min(secondLook, s.node.config.SweepInterval)/2 || s.node.session.heldFor() < missing {
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
		rows, err := s.node.q.OutboxQueueRelease(ctx, db.OutboxQueueReleaseParams{
			Holder: worker, HolderGone: gone, MaxCount: releasePage, SettlingDelay: settlingOrphans})
		if err != nil {
			return err
		}
		if len(rows) > 0 {
			s.node.log.WarnContext(ctx, "dispatcher: took over what a worker held", slog.Int("worker", int(worker)),
				slog.Bool("lock_gone", gone), slog.Int("intents", len(rows)))
		}
		for _, row := range rows {
			s.node.wake(row.Action)
		}
		if len(rows) < releasePage {
			return nil
		}
	}
}

// settlingOrphans is the settling delay of an intent whose worker never said what came of it. Its lease, longer than
// its timeout, has run out by then.
const settlingOrphans = 5 * time.Second

// promote gives a head to ordering keys that lost theirs: under REPEATABLE READ a writer may not see that the head was
// finished meanwhile.
func (s *sweeper) promote(ctx context.Context) error {
	if time.Since(s.heads) < headsInterval {
		return nil
	}
	s.heads = time.Now()
	page, err := s.node.q.OutboxQueueHeadless(ctx, db.OutboxQueueHeadlessParams{After: s.after, MaxCount: headsPage})
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
		promoted, err := s.node.promote(ctx, []string{key.OrderingKey})
		if err != nil {
			return err
		}
		s.node.wake(promoted...)
	}
	return nil
}
