package dispatcher

import (
	"fmt"
	"log/slog"
	"time"
)

// alarmAfter is how long something may be due, with nothing in the way of its claim, before the worker says that it is
// stuck. A claim may take claimTimeout, and is made again once.
const alarmAfter = 25 * time.Second

// tries is what the watch knows of the claims of an action. All times are monotonic.
type tries struct {
	since time.Time // when the watch first saw something due and nothing in the way
	began time.Time // when the claim that is under way began; zero: none is
	ended time.Time // when the last one ended without an error
	err   string    // of the last one
}

// tried notes the begin of a claim; the function that it returns, the end.
func (l *lane) tried(index int) (ended func(error)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.tries[index].began = time.Now()
	return func(err error) {
		l.mu.Lock()
		defer l.mu.Unlock()
		t := &l.tries[index]
		t.began, t.err = time.Time{}, ""
		if err != nil {
			t.err = errorText(err)
			return
		}
		t.ended = time.Now()
	}
}

// watch looks after each sweep whether the lane claims what the database says is due. It is the last line: whatever keeps
// claims from being made or from ending is reported once, and until it is over [Dispatcher.Ready] returns it.
func (l *lane) watch(now time.Time, due map[string]bool) {
	open := l.mayClaim() && l.heldUp(now) == 0 || l.node.heldUpOutcomes()
	stuck, busy, claiming := "", len(l.slots) == cap(l.slots), false
	l.mu.Lock()
	for _, t := range l.tries {
		claiming = claiming || !t.began.IsZero()
	}
	busy = busy && !claiming // a claim under way holds slots itself
	for i, a := range l.actions {
		t := &l.tries[i]
		switch {
		case !open || busy || !due[a.name] || l.paused[a.name] || l.paused[""]:
			t.since = time.Time{}
		case t.since.IsZero() || t.ended.After(t.since):
			t.since = now
		case now.Sub(t.since) >= l.node.alarmAfter && stuck == "":
			stuck = t.cause(a.name, now.Sub(t.since), claiming, l.node.heldUpOutcomes())
		}
	}
	changed := (stuck == "") != (l.stuck == "")
	l.stuck = stuck
	l.mu.Unlock()
	switch {
	case changed && stuck != "":
		l.node.log.Error("dispatcher: nothing is claimed although it is due: "+stuck, slog.String("destination", l.name))
	case changed:
		l.node.log.Info("dispatcher: what is due is claimed again", slog.String("destination", l.name))
	}
}

// cause says why nothing is claimed, and what to do. claiming: a claim is under way in the lane, of whichever action.
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

// isPaused says whether the last sweep saw the action paused; "" is the whole destination.
func (l *lane) isPaused(action string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.paused[action] || l.paused[""]
}

// stuckFor returns what the watch reported, empty where claims are made.
func (l *lane) stuckFor() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.stuck
}
