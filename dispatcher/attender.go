package dispatcher

import (
	"context"
	"log/slog"
	"slices"
	"sync"
)

// attender runs the attention events of a worker, beside everything else: no outcome waits for one.
//
//	a sweep finds due events of an action       as many runs start as the action and the pool have slots for; each takes one
//	                                            event after the other, until the last one
//	an action's functions hang                  it gets another slot only while more are free than it has, so the first one
//	                                            leaves some. If there is only one slot, the next action's turn comes when the
//	                                            function ends, at its policy's Timeout at the latest
//	events of an intent whose Apply is due      the Apply's worker runs them in the Apply's slot, see apply.go
//	the worker stops                            no function begins any more; those that run may end as calls do
type attender struct {
	core   *core
	runner *attentionRunner
	auto   bool // it runs what a sweep sees; a Drain does it in its rounds

	alarm failing // events cannot be looked for

	mu    sync.Mutex
	free  int          // slots
	queue []*attending // the one whose turn it is first
}

// attending is an action with an Attention function.
type attending struct {
	action  *action
	mayRun  func() bool
	due     bool // there may be some in the table
	running int
}

const attentionPerAction = 4

// attentionSlots is how many connections of a pool Attention functions may take.
func attentionSlots(maxConns int32) int { return max(int(maxConns)/4, 1) }

func newAttender(c *core, runner *attentionRunner) *attender {
	return &attender{core: c, runner: runner, free: attentionSlots(c.pool.Config().MaxConns)}
}

func (at *attender) add(a *action, mayRun func() bool) {
	if a.attention != nil {
		at.queue = append(at.queue, &attending{action: a, mayRun: mayRun})
	}
}

// names are the actions with an Attention function.
func (at *attender) names() (names []string) {
	at.mu.Lock()
	defer at.mu.Unlock()
	for _, of := range at.queue {
		names = append(names, of.action.name)
	}
	return names
}

// setDue takes what a sweep saw: which actions have events that are due. If there is none, nothing fails any longer: of
// two tries at the same time, the one that failed may have ended last.
func (at *attender) setDue(actions []string) {
	at.mu.Lock()
	defer at.mu.Unlock()
	anyDue := false
	for _, of := range at.queue {
		of.due = slices.Contains(actions, of.action.name)
		anyDue = anyDue || of.due
	}
	if !anyDue {
		at.alarm.note(nil)
	}
	for at.auto {
		of := at.take()
		if of == nil {
			return
		}
		at.core.open.Add(1)
		go at.work(of)
	}
}

// work runs events until the last one. It begins with a slot of the action.
func (at *attender) work(of *attending) {
	defer at.core.open.Done()
	for of != nil {
		ran, err := at.one(of)
		switch {
		case ran:
			at.alarm.note(nil)
		case err != nil: // without an error, another try may have the event, and fail
			at.alarm.note(err)
		}
		at.mu.Lock()
		at.free++
		of.running--
		of.due = of.due && ran
		of = at.take()
		at.mu.Unlock()
		if err != nil && at.core.calls.Err() == nil {
			at.core.log.Warn("dispatcher: attention events could not be taken; the next sweep tries again", slog.String("error", errorText(err)))
		}
	}
}

// one runs one event, in a goroutine of its own: the function may end it (runtime.Goexit).
func (at *attender) one(of *attending) (ran bool, err error) {
	ran = true
	done := make(chan struct{})
	go func() {
		defer close(done)
		ran, err = at.runner.next(at.core.calls, of.action, nil)
	}()
	<-done
	return ran, err
}

// take takes a slot for the action whose turn it is; nil if there is none. The caller holds mu.
func (at *attender) take() *attending {
	if at.core.isStopping() {
		return nil
	}
	for i, of := range at.queue {
		if of.due && of.running < attentionPerAction && at.free > of.running && of.mayRun() {
			at.queue = append(slices.Delete(at.queue, i, i+1), of) // the others come first now
			of.running++
			at.free--
			return of
		}
	}
	return nil
}

// stop waits until no event begins any more: the worker is stopping.
func (at *attender) stop() {
	at.mu.Lock()
	defer at.mu.Unlock()
}

// drain runs the events that are due, one after the other, and counts them.
func (at *attender) drain(ctx context.Context) (ran int, err error) {
	for _, of := range at.queue {
		for of.mayRun() && ctx.Err() == nil {
			another, err := at.one(of)
			if err != nil {
				return ran, err
			}
			if !another {
				break
			}
			ran++
		}
	}
	return ran, ctx.Err()
}
