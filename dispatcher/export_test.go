package dispatcher

import (
	"context"
	"fmt"
	"time"
)

// What tests look behind, or cannot wait for.

func init() {
	illegal = func(from, event, to string) {
		panic(fmt.Sprintf("%q -> %s -> %q is not in internal/intent's table", from, event, to))
	}
}

// SetShift makes the drains of this dispatcher's next Run shorter.
func (d *Dispatcher) SetShift(shift time.Duration) { d.shift = shift }

// SetAlarmAfter shortens how long nothing may be claimed before the alarm.
func (d *Dispatcher) SetAlarmAfter(after time.Duration) { d.alarmAfter = after }

// SetStopMargin shortens what a stop takes beyond its StopTimeout.
func (d *Dispatcher) SetStopMargin(margin time.Duration) { d.stopMargin = margin }

// Upkeep runs a periodic job's task once, now.
func (d *Dispatcher) Upkeep(ctx context.Context, task string) error {
	n, err := d.newWorker(ctx)
	if err != nil {
		return err
	}
	defer n.close()
	return newUpkeep(n).run(ctx, task)
}

// QueueName is the River queue of a destination.
var QueueName = queueName

// WorkerID is the identity of the running worker, once it runs; else 0.
func (d *Dispatcher) WorkerID() int32 {
	if n := d.worker.Load(); n != nil {
		return n.session.id()
	}
	return 0
}

// Swept is when the running dispatcher's last sweep was answered.
func (d *Dispatcher) Swept() (at time.Time) {
	if n := d.worker.Load(); n != nil {
		at = n.sweeper.answeredAt()
	}
	return at
}

// NoJitter has breakers wait for as long as they may.
func (d *Dispatcher) NoJitter() {
	d.draw = func(ceiling time.Duration) time.Duration { return ceiling }
}

// HoldUpOutcomes has the running dispatcher count so many outcomes as held up by locks of others, until release.
func (d *Dispatcher) HoldUpOutcomes(outcomes int64) (release func()) {
	n := d.worker.Load()
	n.settler.stuck.Add(outcomes)
	return func() { n.settler.stuck.Add(-outcomes) }
}
