package dispatcher

import (
	"context"
	"log/slog"
	"runtime/debug"
	"time"
)

// The contract of a claim: what wakes it, what bounds it, and what keeps it going when any one part is lost or wrong.
//
// Wake. There is one signal, lane.poke(action): "something of this action may be due". NOTIFY after a commit, the sweep, a
// settle that promotes, a late answer, an Apply that wrote intents, a breaker that closes and an endpoint that frees all call
// it, and it is never consumed without a claim: the claim that follows it runs after it. The sweep, on every node and every
// SweepInterval, pokes whatever the database says is due, so any other poke may be lost.
//
// Life. Each destination has one drain in each process, which stands: it waits for pokes and claims, idle or not, for a
// shift. River gives the permit (the drain is the body of a River job), and nothing waits for River: where it has begun none
// within a second, the same function runs without it. keepShift owns the permit and lends it to the one or the other, so
// two drains of a destination never run in a process. These may fail, alone or together, and delivery goes on:
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
// Slots. A claim takes no more than there are free slots; a slot is held until the call has ended.
//
// Bytes. The statement that takes the leases carries at most inlineBytes of payloads; else they are loaded after its
// commit. What is claimed at once is bounded by what the connection carried in half a second of late, at most maxClaimBytes,
// one intent at least. What could not be loaded is given back, and nothing is spent.
//
// Pause. The claim reads samekey.pauses and River's pause in its own statement: no flag in memory decides.
//
// Stop. A stop ends the waits; a claim under way is finished, and what it took is given back unsent.

// shiftLength is how long a drain lasts. It is asked for again then, so that River shows who drains, and its stop and rescue
// mean something.
const shiftLength = 5 * time.Minute

// riverPatience is how long River has to begin a drain.
const riverPatience = time.Second

// stint is a River job that offers to run a shift.
type stint struct {
	begin chan struct{} // closed by the keeper: drain now
	ended chan struct{} // closed by the job
}

// shiftOf runs a shift for a River job, once the keeper lets it, and returns when it is over.
func (l *lane) shiftOf(ctx context.Context) {
	s := stint{make(chan struct{}), make(chan struct{})}
	defer close(s.ended)
	select {
	case l.stints <- s:
	case <-ctx.Done():
		return
	}
	select {
	case <-s.begin:
		l.drain(ctx, l.node.shift)
	case <-ctx.Done():
	}
}

// keepShift sees to it that one drain of the lane runs, until ctx ends and none runs any more. ask asks River for a drain job
// and returns its id.
func (l *lane) keepShift(ctx context.Context, ask func(context.Context) (int64, error)) {
	missed := 0 // shifts in a row that River did not begin
	for ctx.Err() == nil {
		began := time.Now()
		asked := make(chan asking, 1)
		go func() {
			defer close(asked)
			id, err := ask(ctx)
			asked <- asking{id, err}
		}()
		patience := time.NewTimer(l.node.riverPatience)
		select {
		case s := <-l.stints:
			if missed > 0 {
				l.riverIsBack(ctx)
			}
			missed = 0
			s.run()
		case <-patience.C:
			missed++
			if l.shiftWithoutRiver(ctx, asked, missed) {
				missed = 0
			}
		case <-ctx.Done():
		}
		patience.Stop()
		if ctx.Err() != nil {
			if a, ok := <-asked; ok && a.err == nil { // ends with ctx
				l.node.forgetDrain(ctx, a.id)
			}
			return
		}
		if time.Since(began) < time.Second && l.node.shift > time.Second { // what ended it so soon must not do so in a loop
			sleep(ctx, time.Second)
		}
	}
}

// run lets the job drain, and waits until it has ended.
func (s stint) run() {
	close(s.begin)
	<-s.ended
}

// asking is the answer to a request for a drain.
type asking struct {
	id  int64
	err error
}

func (l *lane) riverIsBack(ctx context.Context) {
	l.node.log.InfoContext(ctx, "dispatcher: River begins drains again", slog.String("destination", l.name))
}

// shiftWithoutRiver runs a shift until it is over, or until River's job comes, which then goes on.
func (l *lane) shiftWithoutRiver(ctx context.Context, asked <-chan asking, missed int) (came bool) {
	shift, end := context.WithCancel(ctx)
	defer end()
	over := make(chan struct{})
	go func() {
		defer close(over)
		l.drainGuarded(shift)
	}()
	tell := func(reason string) {
		level := slog.LevelDebug // a paused queue is not fetched from; without a database there is another line
		if missed&(missed-1) == 0 && !l.isPaused("") && l.node.session.holds() {
			level = slog.LevelWarn
		}
		l.node.log.Log(ctx, level, "dispatcher: River began no drain within a second; this process drains without it",
			slog.String("destination", l.name), slog.String("reason", reason), slog.Int("shifts", missed))
	}
	late := time.After(l.node.riverPatience) // for the answer to the insert
	for {
		select {
		case <-over:
			return false
		case <-late:
			late = nil
			tell("River has not started, or has not answered the insert of the drain job")
		case a, ok := <-asked:
			asked = nil
			switch {
			case !ok:
			case a.err != nil && ctx.Err() == nil:
				tell(errorText(a.err))
			case a.err == nil:
				if late != nil {
					tell("no River client has fetched the drain job: look at its row in samekey.river_job, and at the clocks of the workers")
				}
				l.node.forgetDrain(ctx, a.id)
			}
			late = nil
		case s := <-l.stints:
			end()
			<-over
			l.riverIsBack(ctx)
			s.run()
			return true
		}
	}
}

// drainGuarded runs a shift outside River, which would catch a panic.
func (l *lane) drainGuarded(ctx context.Context) {
	defer func() {
		if p := recover(); p != nil {
			l.node.log.ErrorContext(ctx, "dispatcher: a drain panicked; it begins again", slog.String("destination", l.name),
				slog.String("panic", clean((&panicError{p}).Error(), errorLimit)), slog.String("stack", string(debug.Stack())))
		}
	}()
	l.drain(ctx, l.node.shift)
}
