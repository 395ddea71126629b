package dispatcher

import (
	"time"

	"github.com/samekey/samekey/internal/db"
)

// decide returns the settlement of a call's outcome. This is the one place where a [Class] and an [Outcome] meet.
func (a *action) decide(row *db.OutboxQueueClaimRow, o Outcome) (s settlement) {
	if row.Status == statusUnknown {
		s = a.afterLookup(row, o)
	} else {
		s = a.afterSend(row, o)
	}
	switch s.status {
	case statusPending, statusUnknown, statusAwaiting:
		s.delay = max(s.delay, o.wait())
	}
	return s
}

// afterSend decides what the outcome of an attempt means for its intent.
func (a *action) afterSend(row *db.OutboxQueueClaimRow, o Outcome) settlement {
	p := a.policy
	repeatable := p.Class.repeatable()
	s := settlement{event: "attempt", attemptsUsed: int(row.AttemptsUsed), response: o.response, reference: o.reference(), err: o.text(), wasSent: true}
	switch o.kind {
	case outcomeDelivered, outcomeRefused:
		return a.finished(s, o.kind)
	case outcomeAccepted:
		return a.accepted(s, o, p.SettlingDelay)
	case outcomeUnsent:
		s.status, s.outcome, s.clearSent, s.wasSent = statusPending, outcomeUnsent, row.FirstSend || !repeatable, false
		s.response.Code, s.delay = o.code("unsent"), p.wait(int(row.Attempt))
	case outcomeRetry:
		// The vendor did not act: no attempt is used, and a write that may not be repeated counts as unsent.
		s.status, s.outcome, s.clearSent = statusPending, outcomeRetry, !repeatable
		s.response.Code, s.delay = o.code("retry_after"), p.wait(int(row.Attempt))
	case outcomeDenied:
		s.status, s.outcome, s.clearSent = statusPending, outcomeRetry, row.FirstSend || !repeatable
		s.response.Code, s.delay = o.code("denied"), p.wait(int(row.Attempt))
	case outcomeDead, outcomeGone:
		s.status, s.outcome, s.clearSent, s.leaveOrder = statusDead, outcomeDead, !repeatable, p.PassFailed
		s.response.Code = o.code("dead")
		s.attemptsUsed++
	case outcomeStuck:
		s.response.Code = o.code("stuck")
		if p.Class != Read {
			s.status, s.outcome, s.attemptsUsed, s.delay = statusUnknown, outcomeUnknown, 0, max(p.SettlingDelay, 0)
			return s
		}
		return a.unknown(s)
	default: // unknown, or an error
		s.response.Code = o.code(unknownCode(o.reason))
		return a.unknown(s)
	}
	if s.status == statusPending && p.Class == IrreversibleWrite {
		// An approval is good for one claim.
		s.status, s.delay = statusAwaiting, 0
	}
	return s
}

// afterLookup decides what the outcome of a lookup means for its intent.
func (a *action) afterLookup(row *db.OutboxQueueClaimRow, o Outcome) settlement {
	p := a.policy
	s := settlement{event: "lookup", attemptsUsed: int(row.AttemptsUsed) + 1, response: o.response, reference: o.reference(), err: o.text()}
	absentBefore := row.LastCode != nil && *row.LastCode == outcomeAbsent
	switch {
	case o.kind == outcomeDelivered || o.kind == outcomeRefused:
		return a.finished(s, o.kind)
	case o.kind == outcomeAccepted:
		return a.accepted(s, o, 0)
	case o.kind == outcomeAbsent && !absentBefore:
		// Once is not enough: what the vendor accepted may show up late.
		s.status, s.outcome, s.response.Code, s.delay = statusUnknown, outcomeAbsent, outcomeAbsent, max(p.SettlingDelay, 0)
	case o.kind == outcomeAbsent && p.ResendAbsent && !row.NoResend:
		s.status, s.outcome, s.response.Code, s.attemptsUsed = statusPending, outcomeAbsent, outcomeAbsent, 0
		s.clearSent, s.forbidResend = true, true
	case o.kind == outcomeAbsent:
		s.status, s.outcome, s.leaveOrder, s.response.Code = statusParked, outcomeAbsent, p.PassFailed, or(o.response.Code, outcomeAbsent)
	case o.kind == outcomeUnsent || o.kind == outcomeRetry || o.kind == outcomeDenied:
		// The vendor could not be asked, and no attempt is used.
		s.status, s.outcome, s.response.Code = statusUnknown, outcomeRetry, o.code("lookup_failed")
		s.attemptsUsed, s.delay = int(row.AttemptsUsed), p.wait(int(row.Attempt))
	case o.kind == outcomeFailed && s.attemptsUsed < p.Attempts:
		s.status, s.outcome, s.response.Code = statusUnknown, outcomeRetry, o.code("lookup_failed")
		s.delay = p.wait(s.attemptsUsed)
	case o.kind == outcomeFailed:
		s.status, s.outcome, s.leaveOrder, s.response.Code = statusParked, outcomeUnknown, p.PassFailed, o.code("lookup_failed")
	default: // it cannot tell: unknown, stuck, dead, or no outcome
		s.status, s.outcome, s.leaveOrder, s.response.Code = statusParked, outcomeUnknown, p.PassFailed, o.code(o.kind)
	}
	return s
}

// finished leads to the end of an intent, through its Apply if it has one.
func (a *action) finished(s settlement, status string) settlement {
	s.status, s.outcome = status, status
	if a.apply != nil {
		s.status, s.keepLease, s.attemptsUsed = statusAnswered, true, 0
	}
	return s
}

// accepted is a call that the vendor finishes later: from now on it is looked up, or completed by an event.
func (a *action) accepted(s settlement, o Outcome, atLeast time.Duration) settlement {
	s.status, s.outcome, s.response.Code = statusUnknown, outcomeAccepted, codeAccepted
	s.attemptsUsed, s.forbidResend = 0, true
	s.delay = max(atLeast, time.Second)
	if a.lookup == nil { // only an event can complete it: the claim after CompletionTime parks it
		s.delay = a.policy.CompletionTime
	}
	return s
}

// unknown is an attempt after which the vendor may have acted: it is made again if the class allows that, else looked
// up.
func (a *action) unknown(s settlement) settlement {
	p := a.policy
	s.outcome = outcomeUnknown
	s.attemptsUsed++
	switch {
	case !p.Class.repeatable():
		s.status, s.attemptsUsed, s.delay = statusUnknown, 0, max(p.SettlingDelay, 0)
	case s.attemptsUsed >= p.Attempts:
		s.status, s.leaveOrder = statusDead, p.PassFailed
	default:
		s.status, s.delay = statusPending, p.wait(s.attemptsUsed)
	}
	return s
}
