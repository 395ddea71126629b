package dispatcher

import (
	"context"
	"log/slog"
	"sync"

	"github.com/samekey/samekey/internal/intent"
)

// What people see of the path: counts, and a log line for each claim that a person may want to know about.

// Summary counts the claims of a [Dispatcher.Drain] by how they ended. An intent that is retried within the drain
// counts at each attempt.
type Summary struct {
	Delivered        int // finished: the vendor acted
	Refused          int // finished: the vendor said no
	Retried          int // due again later, or its Apply failed
	Unknown          int // to be looked up later
	Parked           int // waits for a person
	Dead             int // waits for a person
	AwaitingApproval int // waits for a person
	TakenOver        int // another worker took the intent over meanwhile
}

// Total is the number of claims.
func (s Summary) Total() int {
	return s.Delivered + s.Refused + s.Retried + s.Unknown + s.Parked + s.Dead + s.AwaitingApproval + s.TakenOver
}

// reports counts claims as they end, and logs them.
type reports struct {
	core *core
	mu   sync.Mutex
	sum  Summary
}

// count takes the status in which a claim left its intent. If settled is false, another worker had taken the intent
// over.
func (r *reports) count(status string, settled bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !settled {
		r.sum.TakenOver++
		return
	}
	switch status {
	case intent.Delivered:
		r.sum.Delivered++
	case intent.Refused:
		r.sum.Refused++
	case intent.Pending, intent.Answered:
		r.sum.Retried++
	case intent.Unknown:
		r.sum.Unknown++
	case intent.Parked:
		r.sum.Parked++
	case intent.Dead:
		r.sum.Dead++
	case intent.AwaitingApproval:
		r.sum.AwaitingApproval++
	}
}

// summary is what was counted.
func (r *reports) summary() Summary {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.sum
}

// report logs what a person may want to see. Delivered and refused intents are in the history only. The whole text of
// an error is in the history only too, since it may quote a vendor.
func (r *reports) report(ctx context.Context, c *claim, s settlement) {
	r.check(c, s)
	level := slog.LevelInfo
	switch {
	case s.finishes(), s.status == statusAnswered, s.outcome == outcomeAccepted:
		level = slog.LevelDebug
	case s.response.Code == codeEndpointStopped: // the log has said that it was stopped
	case s.status == statusDead, s.status == statusParked:
		level = slog.LevelError
	case s.status == statusUnknown:
		level = slog.LevelWarn
	}
	if !r.core.log.Enabled(ctx, level) {
		return
	}
	attrs := append(c.attrs(),
		slog.String("outcome", s.outcome), slog.String("status", s.status), slog.String("code", clean(s.response.Code, codeLimit)),
		slog.Duration("again_in", s.delay), slog.Duration("took", s.took))
	switch {
	case s.response.Code == codePanic:
		attrs = append(attrs, slog.String("error", panicText))
	case s.err != "":
		attrs = append(attrs, slog.String("error", c.withoutValues(s.err)))
	}
	if next := nextStep(s.status); next != "" {
		attrs = append(attrs, slog.String("next", next))
	}
	r.core.log.Log(ctx, level, "dispatcher: "+s.event+" ended", attrs...)
}

// nextStep tells a person what to do about an intent that rests.
func nextStep(status string) string {
	switch status {
	case intent.Dead:
		return "correct the cause and redrive it (outbox.Redrive), which sends the same bytes; if the bytes are wrong, replace it (outbox.Replace)"
	case intent.Parked:
		return "find out at the vendor whether it acted, and resolve it (outbox.Resolve)"
	case intent.AwaitingApproval:
		return "approve or reject it (outbox.Approve, outbox.Reject)"
	}
	return ""
}

// illegal is called for a settlement that the table of transitions does not have. The tests of this package set it.
var illegal func(from, event, to string)

// check compares a settlement with the table of transitions. One that is not there is a mistake in this package.
func (r *reports) check(c *claim, s settlement) {
	from := c.Status
	if s.event == intent.EventApply {
		from = intent.Answered // the claim may be older than the answer
	}
	if intent.Allowed(from, s.event, s.status) {
		return
	}
	r.core.log.Error("dispatcher: a settlement is not in the table of transitions; please report it", append(c.attrs(),
		slog.String("from", from), slog.String("event", s.event), slog.String("to", s.status))...)
	if illegal != nil {
		illegal(from, s.event, s.status)
	}
}

// end counts a claim that is over.
func (r *reports) end(status string, settled bool) {
	r.count(status, settled)
	r.core.open.Done()
}
