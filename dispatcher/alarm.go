package dispatcher

import (
	"fmt"
	"log/slog"
	"time"
)

// tried notes that a claim begins. The function that it returns notes the end.
func (d *destination) tried(index int) (ended func(error)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.tries[index].began = time.Now()
	return func(err error) {
		d.mu.Lock()
		defer d.mu.Unlock()
		t := &d.tries[index]
		t.began, t.err = time.Time{}, ""
		if err != nil {
			t.err = errorText(err)
			return
		}
		t.ended = time.Now()
	}
}

// watch checks after each sweep that the destination claims its due intents. It is the last line of defence: whatever
// keeps claims from being made or from ending is logged once, and [Dispatcher.Ready] returns it until it is over.
func (d *destination) watch(now time.Time, due map[string]bool) {
	open := d.mayClaim() && d.heldUp(now) == 0 || d.settler.isHeldUp()
	stuck, busy, claiming := "", d.slots.allTaken(), false
	d.mu.Lock()
	for _, t := range d.tries {
		claiming = claiming || !t.began.IsZero()
	}
	busy = busy && !claiming // a running claim holds slots itself
	for i, a := range d.actions {
		t := &d.tries[i]
		switch {
		case !open || busy || !due[a.name] || d.paused[a.name] || d.paused[""]:
			t.since = time.Time{}
		case t.since.IsZero() || t.ended.After(t.since):
			t.since = now
		case now.Sub(t.since) >= d.core.times.alarmAfter && stuck == "":
			stuck = t.cause(a.name, now.Sub(t.since), claiming, d.settler.isHeldUp())
		}
	}
	changed := (stuck == "") != (d.stuck == "")
	d.stuck = stuck
	d.mu.Unlock()
	switch {
	case changed && stuck != "":
		d.core.log.Error("dispatcher: nothing is claimed although it is due: "+stuck, slog.String("destination", d.name))
	case changed:
		d.core.log.Info("dispatcher: due intents are claimed again", slog.String("destination", d.name))
	}
}

// cause says why nothing is claimed, and what to do. claiming: a claim of some action is running.
func (t *tries) cause(action string, so time.Duration, claiming, heldUp bool) string {
	so = so.Round(time.Second)
	switch {
	case heldUp:
		return fmt.Sprintf("action %s, for %v: %d outcomes wait for locks that others hold on samekey.outbox_queue or on ordering keys; end those transactions (pg_locks, pg_stat_activity)", action, so, maxStuck)
	case t.err != "":
		return fmt.Sprintf("action %s, for %v: claims fail: %s; look for locks on samekey.outbox and samekey.outbox_queue (pg_locks), a full pool, a slow network", action, so, t.err)
	case claiming:
		return fmt.Sprintf("action %s, for %v: a claim has not ended; look for locks on samekey.outbox and samekey.outbox_queue (pg_locks), a full pool, a slow network", action, so)
	}
	return fmt.Sprintf("action %s, for %v: no drain runs; restart this worker, and report it with a dump of its goroutines (SIGQUIT)", action, so)
}

// stuckFor returns what the watch reported; empty if claims are made.
func (d *destination) stuckFor() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.stuck
}
