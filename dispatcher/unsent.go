package dispatcher

import (
	"context"
	"log/slog"
	"time"

	"github.com/samekey/samekey/internal/db"
	"github.com/samekey/samekey/internal/redact"
)

// givenBack is the settlement of a claim that was made too late for its call, or while the worker stops: nothing was
// sent, no attempt is used, and the intent is due.
func (a *action) givenBack(row *db.OutboxQueueClaimRow) settlement {
	s := settlement{event: "attempt", status: statusPending, outcome: outcomeUnsent, attemptsUsed: int(row.AttemptsUsed),
		clearSent: row.FirstSend, response: Response{Code: "given_back"}}
	if row.Status == statusUnknown {
		s.event, s.status, s.outcome = "lookup", statusUnknown, outcomeRetry
	}
	return s
}

// waitAfter returns the wait after an attempt or a lookup. If it uses no attempt, the wait follows how many were made. The
// claim's number is not that: it also counts claims that were postponed, and it goes on after a redrive. With it, an
// intent of an endpoint that was down for an hour would wait for the last value of its Schedule.
func (d *destination) waitAfter(c *claim, o Outcome, s settlement) time.Duration {
	free := o.kind == outcomeUnsent || o.kind == outcomeRetry || o.kind == outcomeDenied
	if !free || c.Attempt == 1 || s.status != statusPending && s.status != statusUnknown {
		return s.delay
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(d.core.calls), settleTimeout)
	defer cancel()
	made, err := d.core.q.OutboxHistoryMade(ctx, db.OutboxHistoryMadeParams{ID: c.ID, Event: s.event})
	if err != nil { // the settlement meets the same database, and reports it
		return s.delay
	}
	return max(c.action.policy.wait(int(made)+1), o.wait())
}

// deadUnsent is the settlement of an attempt that ends before its call, because a person must correct something first.
func (a *action) deadUnsent(row *db.OutboxQueueClaimRow, code string, err error) settlement {
	return settlement{event: "attempt", status: statusDead, outcome: outcomeDead, attemptsUsed: int(row.AttemptsUsed), clearSent: row.FirstSend,
		leaveOrder: a.policy.PassFailed, response: Response{Code: code}, err: redact.WithoutURLs(err)}
}

// notSent gives a claim back because the database did not answer. Nothing was sent.
func (d *destination) notSent(ctx context.Context, c *claim, message string, err error) settlement {
	if err != nil {
		d.core.log.WarnContext(ctx, message, append(c.attrs(), slog.String("error", errorText(err)))...)
	}
	s := c.action.givenBack(&c.OutboxQueueClaimRow)
	s.delay = time.Second // no busy loop against a database in trouble
	return s
}
