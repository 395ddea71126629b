package dispatcher

import (
	"context"
	"fmt"
	"time"
)

// Internals that tests read, and times that they shorten.

func init() {
	illegal = func(from, event, to string) {
		panic(fmt.Sprintf("%q -> %s -> %q is not in internal/intent's table", from, event, to))
	}
}

// SetShift makes the drains of this dispatcher's next Run shorter.
func (d *Dispatcher) SetShift(shift time.Duration) { d.times.shift = shift }

// SetAlarmAfter sets how long no claim may end before the alarm is raised.
func (d *Dispatcher) SetAlarmAfter(after time.Duration) { d.times.alarmAfter = after }

// FailAttention makes the running worker believe that events could not be read.
func (d *Dispatcher) FailAttention(err error) { d.worker.Load().attender.alarm.note(err) }

// SetStopMargin sets how long a stop takes beyond its StopTimeout.
func (d *Dispatcher) SetStopMargin(margin time.Duration) { d.times.stopMargin = margin }

// Upkeep runs the task of a periodic job once, now.
func (d *Dispatcher) Upkeep(ctx context.Context, task string) error {
	w, err := d.newWorker(ctx)
	if err != nil {
		return err
	}
	defer w.close()
	return newUpkeep(w.core).run(ctx, task)
}

// QueueName is the River queue of a destination.
var QueueName = queueName

// WorkerID is the id of the running worker, or 0.
func (d *Dispatcher) WorkerID() int32 {
	if w := d.worker.Load(); w != nil {
		return w.session.id()
	}
	return 0
}

// Swept is when the last sweep of the running dispatcher was answered.
func (d *Dispatcher) Swept() (at time.Time) {
	if w := d.worker.Load(); w != nil {
		at = w.sweeper.answeredAt()
	}
	return at
}

// NoJitter makes breakers wait for their longest time.
func (d *Dispatcher) NoJitter() {
	d.draw = func(ceiling time.Duration) time.Duration { return ceiling }
}

// HoldUpOutcomes makes the running dispatcher count that many outcomes as delayed by locks, until release.
func (d *Dispatcher) HoldUpOutcomes(outcomes int64) (release func()) {
	w := d.worker.Load()
	w.settler.stuck.Add(outcomes)
	return func() { w.settler.stuck.Add(-outcomes) }
}
