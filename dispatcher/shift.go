package dispatcher

import (
	"context"
	"log/slog"
	"runtime/debug"
	"time"
)

// The contract of a claim: what wakes it, what bounds it, and what keeps it going when any one part is lost or wrong.
//
// Wake. There is one signal, poke(action): "something of this action may be due". NOTIFY after a commit, the sweep, a
// settle that promotes, a late answer, an Apply that wrote intents, a breaker that closes and an endpoint that becomes
// free all call it. It is never consumed without a claim: a claim runs after it. The sweep, in every worker and every
// SweepInterval, pokes all actions that the database says are due, so any other poke may be lost.
//
// Life. Each destination has one drain in each process, which stands: it waits for pokes and claims, idle or not, for a
// shift. River gives the permit (the drain is the body of a River job), and nothing waits for River: if River has begun
// no drain within a second, the same function runs without it. keepShift owns the permit and lends it to one of the
// two, so two drains of a destination never run in one process. These may fail, alone or together, and delivery goes
// on:
//
//	a NOTIFY is lost, or the listener dies       the next sweep pokes
//	a drain job is deleted, discarded, never     the shift runs without River after a second
//	fetched (a client's clock is ahead), or
//	kept out by a trigger; the queue's River
//	row is gone or paused by mistake; River
//	does not start, or panics
//	River begins the job late                    the shift that runs without it ends, and the job's goes on
//	the drain panics                             it is logged, and begins again after a second
//	a claim fails or times out                   it is logged, and made again, after up to a second
//	a process dies                               its leases are taken over by the sweep of another
//	the wall clock is moved                      due times and leases are the database's, waits are monotonic
//	all that, and still nothing is claimed       the alarm (see alarm.go): a log line and Ready
//
// Slots. A claim takes no more intents than there are free slots. A slot is held until the call has ended. Claims that
// wait for their settle are bounded too.
//
// Bytes. The statement that takes the leases carries at most inlineBytes of payloads. More is loaded after its commit.
// A claim is bounded by what the connection lately carried in half a second, at most maxClaimBytes, at least one
// intent. An intent whose payload cannot be loaded is given back, and uses no attempt.
//
// Pause. The claim reads samekey.pauses and River's pause in its own statement: no flag in memory decides.
//
// Deployment. So it is with the deployment to which the database belongs (see deployment.go).
//
// Stop. A stop ends the waits. A running claim is finished, and its intents are given back unsent.

// shiftOf runs a shift for a River job when keepShift lets it, and returns when the shift is over.
func (d *destination) shiftOf(ctx context.Context) {
	s := stint{make(chan struct{}), make(chan struct{})}
	defer close(s.ended)
	select {
	case d.stints <- s:
	case <-ctx.Done():
		return
	}
	select {
	case <-s.begin:
		d.drain(ctx, d.core.times.shift)
	case <-ctx.Done():
	}
}

// keepShift keeps one drain of the destination running until ctx ends. It returns when none runs any more. River gives
// the permits.
func (d *destination) keepShift(ctx context.Context, jobs drainJobs) {
	missed := 0 // shifts in a row that River did not begin
	// The request that has no answer yet. While there is one, no other is made: two jobs would wait, and one of them
	// would stay, because its id is lost.
	var asked <-chan asking
	for ctx.Err() == nil {
		began := time.Now()
		if asked == nil {
			asked = askFor(ctx, d, jobs)
		}
		patience := time.NewTimer(d.core.times.riverPatience)
		select {
		case s := <-d.stints:
			if missed > 0 {
				d.riverIsBack(ctx)
			}
			missed, asked = 0, nil
			s.run()
		case <-patience.C:
			missed++
			var came bool
			if came, asked = d.shiftWithoutRiver(ctx, jobs, asked, missed); came {
				missed = 0
			}
		case <-ctx.Done():
		}
		patience.Stop()
		if ctx.Err() != nil {
			if asked != nil {
				if a := <-asked; a.err == nil { // it ends with ctx
					jobs.forget(ctx, a.id)
				}
			}
			return
		}
		if time.Since(began) < time.Second && d.core.times.shift > time.Second { // whatever ended it so soon must not do so in a loop
			sleep(ctx, time.Second)
		}
	}
}

// askFor requests a drain job. The channel carries the one answer.
func askFor(ctx context.Context, d *destination, jobs drainJobs) <-chan asking {
	asked := make(chan asking, 1)
	go func() {
		id, err := jobs.ask(ctx, d)
		asked <- asking{id, err}
	}()
	return asked
}

// run lets the job drain, and waits until it has ended.
func (s stint) run() {
	close(s.begin)
	<-s.ended
}

// drainJobs is what River is to a shift: it is asked for a drain job, and told that a job is no longer needed.
type drainJobs interface {
	ask(ctx context.Context, d *destination) (id int64, err error)
	forget(ctx context.Context, id int64)
}

// asking is River's answer to a request for a drain job.
type asking struct {
	id  int64
	err error
}

func (d *destination) riverIsBack(ctx context.Context) {
	d.core.log.InfoContext(ctx, "dispatcher: River begins drains again", slog.String("destination", d.name))
}

// shiftWithoutRiver runs a shift until it is over, or until River's job comes and goes on. It returns the request that
// has no answer yet.
func (d *destination) shiftWithoutRiver(ctx context.Context, jobs drainJobs, asked <-chan asking, missed int) (came bool, open <-chan asking) {
	shift, end := context.WithCancel(ctx)
	defer end()
	over := make(chan struct{})
	go func() {
		defer close(over)
		d.drainGuarded(shift)
	}()
	told := false
	tell := func(reason string) {
		level := slog.LevelDebug // a paused queue is not fetched from; without a database there is another line
		if !told && missed&(missed-1) == 0 && !d.isPaused("") && d.core.self.holds() {
			level = slog.LevelWarn
		}
		d.core.log.Log(ctx, level, "dispatcher: River began no drain within a second; this process drains without it",
			slog.String("destination", d.name), slog.String("reason", reason), slog.Int("shifts", missed))
		told = true
	}
	late := time.After(d.core.times.riverPatience) // for the answer to the insert
	for {
		select {
		case <-over:
			return false, asked
		case <-late:
			late = nil
			tell("River has not started, or has not answered the insert of the drain job")
		case a := <-asked:
			asked = nil
			switch {
			case a.err != nil && ctx.Err() == nil:
				tell(errorText(a.err))
			case a.err == nil:
				if late != nil {
					tell("no River client has fetched the drain job: look at its row in samekey.river_job, and at the clocks of the workers")
				}
				jobs.forget(ctx, a.id)
			}
			late = nil
		case s := <-d.stints:
			end()
			<-over
			d.riverIsBack(ctx)
			s.run()
			return true, nil
		}
	}
}

// drainGuarded runs a shift outside River, which would catch a panic.
func (d *destination) drainGuarded(ctx context.Context) {
	defer func() {
		if p := recover(); p != nil {
			d.core.log.ErrorContext(ctx, "dispatcher: a drain panicked; it begins again", slog.String("destination", d.name),
				slog.String("panic", clean((&panicError{p}).Error(), errorLimit)), slog.String("stack", string(debug.Stack())))
		}
	}()
	d.drain(ctx, d.core.times.shift)
}
