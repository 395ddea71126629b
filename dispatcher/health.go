package dispatcher

import (
	"errors"
	"fmt"
	"time"
)

// Ready reports whether this dispatcher takes work: nil, or an error that says why it does not, such as that something
// has been due for 25 seconds, nothing is in the way, and no claim has ended. It does not ask the database; a running
// dispatcher learns at each sweep. For a readiness probe.
func (d *Dispatcher) Ready() error {
	if err := d.refused.get(); err != nil {
		return err
	}
	n := d.worker.Load()
	if n == nil {
		return errors.New("dispatcher: not running, or still waiting for the database")
	}
	if !n.session.holds() {
		return errors.New("dispatcher: the session that holds the worker's lock is lost; it comes back when the database can be reached")
	}
	if n.settler.isBehind() {
		return errors.New("dispatcher: the database does not take outcomes; nothing is claimed until it does")
	}
	since := time.Since(n.sweeper.answeredAt())
	if limit := max(5*time.Second, 3*d.config.SweepInterval); since > limit {
		return fmt.Errorf("dispatcher: the database has not answered a sweep for more than %v", limit)
	}
	for _, dest := range n.destinations.list {
		if stuck := dest.stuckFor(); stuck != "" {
			return fmt.Errorf("dispatcher: destination %s: nothing is claimed although it is due: %s", dest.name, stuck)
		}
	}
	const lookFor = "look for locks on samekey.%s (pg_locks), a full pool, a slow network"
	if so, why := n.applier.alarm.forLong(n.times.alarmAfter); why != "" {
		return fmt.Errorf("dispatcher: answered intents are not applied: their claims fail for %v: %s; "+lookFor, so, why, "outbox_queue")
	}
	if so, why := n.attender.alarm.forLong(n.times.alarmAfter); why != "" {
		return fmt.Errorf("dispatcher: attention events are not handled: they cannot be read for %v: %s; "+lookFor, so, why, "outbox_attention")
	}
	return nil
}
