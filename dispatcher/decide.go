package dispatcher

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"time"

	"github.com/samekey/samekey/internal/db"
	"github.com/samekey/samekey/internal/intent"
)

// settlement is what a claim comes to: the row's next state and the line in its history.
type settlement struct {
	status string        // the next state; delivered and refused finish the intent
	delay  time.Duration // until it is due again
	spent  int           // the new count of spent attempts
	unsend bool          // no vendor saw the key: forget that it was sent
	keep   bool          // keep the lease: the same worker goes on with it
	leave  bool          // leave the order of its ordering key
	sent   bool          // the attempt may have reached the vendor
	resend bool          // it is sent once more, or was accepted: not to be sent again after this

	event   string
	outcome string
	answer  Answer
	err     string
	took    time.Duration
}

// Short names of the statuses that the worker meets; package intent has all.
const (
	statusPending   = intent.Pending
	statusLeased    = intent.Leased
	statusUnknown   = intent.Unknown
	statusAnswered  = intent.Answered
	statusAwaiting  = intent.AwaitingApproval
	statusParked    = intent.Parked
	statusDead      = intent.Dead
	statusDelivered = intent.Delivered
	statusRefused   = intent.Refused
)

func (s settlement) finishes() bool { return intent.IsFinished(s.status) }

// beforeSend decides whether a claimed pending intent is sent at all; ok is true where it is.
func (a *action) beforeSend(c *db.OutboxQueueClaimRow) (s settlement, ok bool) {
	p := a.policy
	s = settlement{event: "attempt", spent: int(c.Spent), unsend: c.FirstSend}
	switch {
	case a.moved(c):
		s.status, s.outcome, s.answer.Code = statusUnknown, outcomeUnknown, codeMoved
	case !p.Class.repeatable() && !c.FirstSend:
		// It may have been sent before, and nobody said that it was not.
		s.status, s.outcome, s.answer.Code = statusUnknown, outcomeUnknown, "maybe_sent"
	case a.reformed(c):
		s.status, s.outcome, s.answer.Code, s.spent = statusUnknown, outcomeUnknown, codeForm, 0
		s.err = "it may have been sent as another request, or with its key in another header, than the action's now: it is looked up, else parked"
	case c.PastWindow && p.Class == IdempotentWrite:
		s.status, s.outcome, s.answer.Code = statusUnknown, outcomeUnknown, "key_window"
		s.err = fmt.Sprintf("the key window of %v is over, or would be before the attempt's end: it is looked up, else parked", p.KeyWindow)
		s.spent = 0
	case c.PastDeadline || p.Deadline > 0 && c.Now.Sub(c.CreatedAt) >= p.Deadline:
		s.status, s.outcome, s.answer.Code = statusDead, outcomeDead, "deadline"
	case p.Class == IrreversibleWrite && c.ApprovedAt == nil:
		s.status, s.outcome, s.answer.Code = statusAwaiting, outcomeAwaiting, "approval"
	case p.Class.repeatable() && int(c.Spent) >= p.Attempts:
		s.status, s.outcome, s.answer.Code = statusDead, outcomeDead, "attempts"
	default:
		return s, true
	}
	s.leave = p.PassFailed && s.status == statusDead
	return s, false
}

// givenBack is a claim that came too late for its call, or while the worker was stopping: nothing was sent, nothing is
// spent, and it is due.
func (a *action) givenBack(c *db.OutboxQueueClaimRow) settlement {
	s := settlement{event: "attempt", status: statusPending, outcome: outcomeUnsent, spent: int(c.Spent),
		unsend: c.FirstSend, answer: Answer{Code: "given_back"}}
	switch c.Status {
	case statusUnknown:
		s.event, s.status, s.outcome = "lookup", statusUnknown, outcomeRetry
	case statusAnswered:
		s.event, s.status, s.outcome = "apply", statusAnswered, outcomeRetry
	}
	return s
}

// deadUnsent is an attempt that ended before its call, until a person has mended something.
func (a *action) deadUnsent(c *db.OutboxQueueClaimRow, code string, err error) settlement {
	return settlement{event: "attempt", status: statusDead, outcome: outcomeDead, spent: int(c.Spent), unsend: c.FirstSend,
		leave: a.policy.PassFailed, answer: Answer{Code: code}, err: withoutURL(err)}
}

// afterCall decides what an attempt's answer or error means for its intent.
func (a *action) afterCall(c *db.OutboxQueueClaimRow, answer Answer, err error) settlement {
	s := a.meaning(c, answer, err)
	switch s.status {
	case statusPending, statusUnknown, statusAwaiting:
		s.delay = max(s.delay, askedWait(err))
	}
	return s
}

// askedWait is how long a vendor wants to be left alone.
func askedWait(err error) time.Duration {
	var own *attemptError
	if errors.As(err, &own) {
		return min(own.after, maxDelay)
	}
	return 0
}

func (a *action) meaning(c *db.OutboxQueueClaimRow, answer Answer, err error) settlement {
	p := a.policy
	s := settlement{event: "attempt", spent: int(c.Spent), answer: answer, sent: true}
	if err == nil {
		return a.finished(s, statusDelivered)
	}
	failure := classify(err, p.Class.repeatable() && answer.Code == "" && answer.Body == nil)
	if failure.answer.Code != "" || failure.answer.Body != nil {
		s.answer = failure.answer // what the verdict carries goes before what the handler returned beside it
	}
	s.err = withoutURL(failure)
	switch failure.verdict {
	case verdictRefused:
		s.err = ""
		return a.finished(s, statusRefused)
	case verdictUnsent:
		s.status, s.outcome = statusPending, outcomeUnsent
		s.unsend, s.sent = c.FirstSend || !p.Class.repeatable(), false
		if failure.guessed { // it spends no attempt, but proves nothing about the key window
			s.unsend, s.sent = false, true
		}
		s.answer.Code = or(s.answer.Code, "unsent")
		s.delay = p.delay(int(c.Attempt))
	case verdictRetryAfter:
		// The vendor did not act: nothing is spent, and a write that may not be repeated counts as unsent.
		s.status, s.outcome, s.unsend = statusPending, outcomeRetry, !p.Class.repeatable()
		s.answer.Code = or(s.answer.Code, "retry_after")
		s.delay = p.delay(int(c.Attempt))
	case verdictDead, verdictGone:
		s.status, s.outcome, s.unsend = statusDead, outcomeDead, !p.Class.repeatable()
		s.answer.Code = or(s.answer.Code, "dead")
		s.spent++
	case verdictDenied:
		s.status, s.outcome, s.unsend = statusPending, outcomeRetry, c.FirstSend || !p.Class.repeatable()
		s.answer.Code = or(s.answer.Code, "denied")
		s.delay = p.delay(int(c.Attempt))
	case verdictAccepted:
		return a.accepted(s, failure.after)
	case verdictStuck:
		s.answer.Code = or(s.answer.Code, "stuck")
		if p.Class != Read {
			s.status, s.outcome, s.spent, s.delay = statusUnknown, outcomeUnknown, 0, max(p.SettlingDelay, 0)
			return s
		}
		return a.unknown(s)
	case verdictUnknown:
		s.answer.Code = or(s.answer.Code, unknownCode(err))
		return a.unknown(s)
	}
	if s.status == statusPending && p.Class == IrreversibleWrite {
		// An approval is good for one claim.
		s.status, s.delay = statusAwaiting, 0
	}
	s.leave = p.PassFailed && s.status == statusDead
	return s
}

// finished leads to the end of an intent, by way of its Apply where there is one.
func (a *action) finished(s settlement, status string) settlement {
	s.status, s.outcome = status, status
	if a.apply != nil {
		s.status, s.keep, s.spent = statusAnswered, true, 0
	}
	return s
}

// accepted is a call that the vendor finishes later: from now on it is looked up, or completed by an event.
func (a *action) accepted(s settlement, after time.Duration) settlement {
	s.status, s.outcome, s.answer.Code, s.err = statusUnknown, outcomeAccepted, codeAccepted, ""
	s.spent, s.resend = 0, true
	s.delay = max(min(after, maxDelay), a.policy.SettlingDelay, time.Second)
	if a.lookup == nil { // only an event can complete it: the claim that comes when its time is over parks it
		s.delay = a.policy.CompletionTime
	}
	return s
}

// codeAccepted marks an unknown intent as one that the vendor has taken.
const codeAccepted = "accepted"

// unknown is an attempt of which nobody knows whether the vendor acted: it is made again where the class allows that,
// else looked up.
func (a *action) unknown(s settlement) settlement {
	p := a.policy
	s.outcome = outcomeUnknown
	s.spent++
	switch {
	case !p.Class.repeatable():
		s.status, s.spent, s.delay = statusUnknown, 0, max(p.SettlingDelay, 0)
	case s.spent >= p.Attempts:
		s.status, s.leave = statusDead, p.PassFailed
	default:
		s.status, s.delay = statusPending, p.delay(s.spent)
		s.outcome = outcomeRetry
	}
	return s
}

// codeMoved marks an intent that another destination may have seen.
const codeMoved = "moved"

// moved: another destination may have acted on it, and this one would act again. Neither can this one say what became of it.
func (a *action) moved(c *db.OutboxQueueClaimRow) bool {
	return a.policy.Class != Read && !c.FirstSend && c.SentTo != "" && sentDestination(c) != a.destination()
}

func sentDestination(c *db.OutboxQueueClaimRow) string { return strings.Split(c.SentTo, " ")[0] }

// codeForm marks an intent that may have been sent in another form than its action's now.
const codeForm = "form"

func (a *action) reformed(c *db.OutboxQueueClaimRow) bool {
	sent := append(strings.Split(c.SentTo, " "), "", "") // destination, key, request, as far as they are known
	return a.policy.Class == IdempotentWrite && !c.FirstSend && a.form.differs(form{sent[1], sent[2]})
}

// beforeLookup decides whether an unknown intent is looked up now; ask is true where it is.
func (a *action) beforeLookup(c *db.OutboxQueueClaimRow) (s settlement, ask bool) {
	s = settlement{event: "lookup", status: statusParked, outcome: outcomeParked, spent: int(c.Spent), leave: a.policy.PassFailed}
	accepted := c.LastCode != nil && *c.LastCode == codeAccepted
	switch settling := a.policy.SettlingDelay - settlingOrphans; {
	case accepted && c.FirstSentAt != nil && c.Now.Sub(*c.FirstSentAt) >= a.policy.CompletionTime:
		s.answer.Code = "not_completed"
		s.err = fmt.Sprintf("the vendor accepted it, and has not completed it within %v: find out what became of it, then resolve the intent", a.policy.CompletionTime)
	case a.moved(c):
		s.answer.Code = codeMoved
		s.err = fmt.Sprintf("destination %q may have acted on it, and the action goes to %q now: find out what happened there, then resolve the intent", sentDestination(c), a.destination())
	case a.lookup == nil:
		s.answer.Code = "no_lookup"
		s.err = "the action has no look-up: find out what happened at the vendor, then resolve the intent"
	case c.LastCode != nil && *c.LastCode == codeOrphaned && settling > 0:
		// Whoever took it over does not know the policy, and waited settlingOrphans: the rest is waited for here.
		s.status, s.outcome, s.leave = statusUnknown, outcomeRetry, false
		s.answer.Code, s.delay = "settling", settling
	case int(c.Spent) >= a.policy.Attempts: // a look-up that takes its worker along is not made for ever
		s.answer.Code = "attempts"
	default:
		return s, true
	}
	return s, false
}

// afterLookup decides what a finding means.
func (a *action) afterLookup(c *db.OutboxQueueClaimRow, finding Finding, err error) settlement {
	s := settlement{event: "lookup", spent: int(c.Spent) + 1, answer: finding.answer, outcome: or(finding.outcome, outcomeInconclusive)}
	switch {
	case err != nil && spendsNothing(err):
		s.status, s.outcome, s.err, s.spent = statusUnknown, outcomeRetry, withoutURL(err), int(c.Spent)
		s.delay = max(a.policy.delay(int(c.Attempt)), askedWait(err))
		s.answer.Code = or(s.answer.Code, "lookup_failed")
	case err != nil && s.spent < a.policy.Attempts:
		s.status, s.outcome, s.err = statusUnknown, outcomeRetry, withoutURL(err)
		s.delay = max(a.policy.delay(s.spent), askedWait(err))
		s.answer.Code = or(s.answer.Code, "lookup_failed")
	case err != nil:
		s.status, s.outcome, s.err, s.leave = statusParked, outcomeInconclusive, withoutURL(err), a.policy.PassFailed
		s.answer.Code = or(s.answer.Code, "lookup_failed")
	case s.outcome == outcomeDelivered || s.outcome == outcomeRefused:
		return a.finished(s, s.outcome)
	case s.outcome == outcomePending:
		s.status, s.outcome, s.answer.Code, s.spent = statusUnknown, outcomeAccepted, codeAccepted, 0
		s.delay, s.resend = max(min(finding.after, maxDelay), time.Second), true
	case s.outcome == outcomeAbsent && (c.LastCode == nil || *c.LastCode != outcomeAbsent):
		// Once is not enough: what the vendor accepted may show up late.
		s.status, s.answer.Code, s.delay = statusUnknown, outcomeAbsent, max(a.policy.SettlingDelay, 0)
	case s.outcome == outcomeAbsent && a.policy.ResendAbsent && !c.Resent:
		s.status, s.answer.Code, s.spent = statusPending, outcomeAbsent, 0
		s.unsend, s.resend = true, true
	default:
		s.status, s.leave = statusParked, a.policy.PassFailed
		s.answer.Code = or(s.answer.Code, s.outcome)
	}
	return s
}

// spendsNothing: the vendor could not be reached, or wants to be asked later, or refused the credentials.
func spendsNothing(err error) bool {
	switch classify(err, false).verdict {
	case verdictUnsent, verdictRetryAfter, verdictDenied:
		return true
	}
	return false
}

// applyFailed leaves an answered intent to be applied again, for as long as it takes.
func (a *action) applyFailed(c *db.OutboxQueueClaimRow, spent int, err error) settlement {
	return settlement{event: "apply", status: statusAnswered, outcome: outcomeRetry, spent: spent + 1,
		delay: a.policy.delay(spent + 1), answer: Answer{Code: "apply_failed"}, err: withoutURL(err)}
}

// codeOrphaned is what OutboxQueueRelease writes.
const codeOrphaned = "orphaned"

// classify finds the verdict in a handler's error. Where it may guess, it takes what net says of a dial or of a name for
// a vendor that cannot be reached. That is no proof: a client may have followed a redirect, or a handler may have acted
// before it dialled somebody else. Only Unsent is.
func classify(err error, guess bool) *attemptError {
	var own *attemptError
	if errors.As(err, &own) {
		return own
	}
	var op *net.OpError
	var name *net.DNSError
	if guess && (errors.As(err, &op) && op.Op == "dial" || errors.As(err, &name)) {
		return &attemptError{verdict: verdictUnsent, err: err, guessed: true}
	}
	return &attemptError{verdict: verdictUnknown, err: err}
}

// withoutURL is an error's text without the URL that net/http puts into it: query and user may be secrets.
func withoutURL(err error) string {
	text := err.Error()
	var request *url.Error
	if errors.As(err, &request) && request.URL != "" {
		text = strings.ReplaceAll(strings.ReplaceAll(text, fmt.Sprintf("%q", request.URL), "[URL]"), request.URL, "[URL]")
	}
	return text
}

// codePanic is that of a handler that panicked.
const codePanic = "panic"

func unknownCode(err error) string {
	var panicked *panicError
	switch {
	case errors.As(err, &panicked):
		return codePanic
	case errors.Is(err, context.DeadlineExceeded):
		return "timeout"
	case errors.Is(err, context.Canceled):
		return "stopped"
	}
	return "unknown"
}

// panicError is a handler's panic, which must not take the worker along.
type panicError struct{ value any }

func (e *panicError) Error() string { return fmt.Sprintf("panic: %v", e.value) }

// guard turns a panic into an error.
func guard[T any](fn func() (T, error)) (value T, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = &panicError{p}
		}
	}()
	return fn()
}
