package dispatcher

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/samekey/samekey/internal/db"
	"github.com/samekey/samekey/internal/redact"
	"github.com/samekey/samekey/internal/wake"
	"github.com/samekey/samekey/outbox"
)

// applyRunner runs single Applies.
type applyRunner struct {
	core      *core
	reports   *reports
	attention *attentionRunner
	settle    func(*claim, settlement) (written bool) // of an Apply that failed
	poke      func(actions ...string)
	announcer *announcer
}

// apply runs the Apply of an answered intent, from loading its payload to finishing it. It returns the intent's
// outcome.
func (r *applyRunner) apply(ctx context.Context, c *claim) (outcome string, err error) {
	if err := r.loadForApply(ctx, c); err != nil {
		return "", err
	}
	r.renewForApply(ctx, c)
	outcome, err = r.applyOnce(ctx, c)
	if waits := (*waitsForAttention)(nil); !errors.As(err, &waits) || c.action.attention == nil {
		return outcome, err
	}
	// The attention events of the intent come first. If another worker is running one, or one has failed and waits for
	// its next try, the second applyOnce returns the error again.
	for {
		r.renewForApply(ctx, c)
		if ran, err := r.attention.next(ctx, c.action, &c.ID); err != nil {
			return "", err
		} else if !ran {
			return r.applyOnce(ctx, c)
		}
	}
}

// waitsForAttention is the error of an Apply whose intent has attention events that come first.
type waitsForAttention struct{ delay time.Duration } // until the first of them is due

func (e *waitsForAttention) Error() string {
	return "dispatcher: the Apply waits for earlier attention events of its intent"
}

// attentionPatience is how soon an Apply that waits for attention events is tried again, at the soonest.
const attentionPatience = time.Second

// loadForApply loads what the claim of an answered intent left out.
func (r *applyRunner) loadForApply(ctx context.Context, c *claim) error {
	if !c.unloaded {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, c.action.policy.Timeout)
	defer cancel()
	rows, err := r.core.q.OutboxLoad(ctx, []uuid.UUID{c.ID})
	if err == nil && len(rows) != 1 {
		err = errors.New("the intent is not there")
	}
	if err != nil {
		return fmt.Errorf("load the intent for its Apply: %w", err)
	}
	c.loaded(rows[0])
	return nil
}

// renewForApply renews the lease of a call's claim if less of it is left than the Apply may take. If that fails, the
// fence decides.
func (r *applyRunner) renewForApply(ctx context.Context, c *claim) {
	p := c.action.policy
	if time.Until(c.asked.Add(p.Lease)) > p.Timeout+minSettle {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, settleTimeout)
	defer cancel()
	err := r.core.q.OutboxQueueRenew(ctx, db.OutboxQueueRenewParams{Worker: c.worker, Lease: p.Lease, Ids: []uuid.UUID{c.ID}, Attempts: []int32{c.Attempt}})
	if err != nil {
		r.core.log.WarnContext(ctx, "dispatcher: a lease could not be renewed for an Apply", append(c.attrs(), slog.String("error", errorText(err)))...)
	}
}

// errGaveWay ends an Apply that takes long while others have no slot.
var errGaveWay = errors.New("it took long while the Applies of other actions had no connection: rolled back, and tried again")

// applied ends a claim after its Apply.
func (r *applyRunner) applied(c *claim, failures int, outcome string, err error) {
	var waits *waitsForAttention
	switch {
	case err == nil:
		r.reports.end(outcome, true)
	case errors.Is(err, errFenced):
		r.reports.end(statusAnswered, false)
	case errors.As(err, &waits):
		c.visit.delay = max(waits.delay, attentionPatience)
		r.core.log.InfoContext(r.core.calls, waits.Error(), append(c.attrs(), slog.Duration("again_in", c.visit.delay))...)
		if err := writePostpone(r.core.calls, r.core.q, []*claim{c}, false); err != nil {
			r.core.log.WarnContext(r.core.calls, "dispatcher: an answered intent could not be given back; it is taken up again when its lease runs out",
				append(c.attrs(), slog.String("error", errorText(err)))...)
		}
		r.reports.end(statusAnswered, true)
	default:
		level, message := slog.LevelError, "dispatcher: Apply failed; the vendor has answered and is not called again"
		if errors.Is(err, errGaveWay) {
			level, message = slog.LevelWarn, "dispatcher: an Apply takes long and others have no connection; it is rolled back and tried again"
		}
		r.core.log.Log(r.core.calls, level, message, append(c.attrs(), slog.Int("failures", failures+1), slog.String("error", causeOf(c, err)))...)
		s := c.action.applyFailed(&c.OutboxQueueClaimRow, failures, err)
		r.reports.report(r.core.calls, c, s)
		r.reports.end(s.status, r.settle(c, s))
	}
}

// applyFailed leaves an answered intent to be applied again, for as long as it takes.
func (a *action) applyFailed(row *db.OutboxQueueClaimRow, failures int, err error) settlement {
	return settlement{event: "apply", status: statusAnswered, outcome: outcomeRetry, attemptsUsed: failures + 1,
		delay: a.policy.delay(failures + 1), response: Response{Code: "apply_failed"}, err: redact.WithoutURLs(err)}
}

// applyOnce runs the action's Apply in the transaction that finishes the intent. It takes locks in the order in which
// the application's own transactions take them, which write their rows first and their intents last: the rows of Apply,
// then the ordering key, then the queue's row, whose fence decides whether any of it is committed.
//
// An Apply can end the transaction by a statement of its own. applyTx refuses the statements that it sees. The others
// ("insert ..; commit" in one text, or by tx.Conn) are found by the finishing statement, which compares the
// transaction's id:
//
//	rollback; or rollback, begin     the rows are gone: nothing is finished, and Apply is tried again
//	commit; or commit, begin         the rows are there: another try would write them twice, so the intent is finished now, in
//	                                 a transaction of its own, with an error in the log. After a crash between the two, Apply
//	                                 runs again: that is what the Apply gave up
func (r *applyRunner) applyOnce(ctx context.Context, c *claim) (outcome string, err error) {
	ctx, cancel := context.WithTimeout(ctx, c.action.policy.Timeout)
	defer cancel()
	var promoted []string
	var answer db.OutboxHistoryAnswerRow
	var committed bool
	written := &applyTx{of: c}
	err = pgx.BeginTxFunc(ctx, r.core.pool, isReadCommitted, func(tx pgx.Tx) error {
		q := r.core.q.WithTx(tx)
		written.begun(tx)
		claimed, err := q.OutboxQueueCheckClaim(ctx, c.held())
		if err != nil {
			return fenced(err)
		}
		if claimed.AttentionInUs >= 0 {
			return &waitsForAttention{time.Duration(claimed.AttentionInUs) * time.Microsecond}
		}
		if answer, err = q.OutboxHistoryAnswer(ctx, c.ID); err != nil {
			return err
		}
		c.reference = answer.Reference
		touch(tx.Conn())
		if err := r.callApply(ctx, written, c, answer); err != nil {
			return written.failed(err)
		}
		promoted, err = r.finishApplied(ctx, q, c, answer, claimed.Began)
		if committed = errors.Is(err, errCommitted); committed {
			return nil // what the Apply wrote after its commit is its own as well
		}
		return err
	})
	if err == nil && committed {
		r.core.log.Error("dispatcher: Apply committed its transaction itself; its rows and the end of the intent are not one: take COMMIT out of it", c.attrs()...)
		promoted, err = r.finishCommitted(ctx, c, answer)
	}
	if err == nil {
		r.announcer.settled(c, answer.Outcome)
		r.poke(promoted...)
		wake.Flush(r.core.pool, written.actions...)
	}
	return answer.Outcome, err
}

func (c *claim) held() db.OutboxQueueCheckClaimParams {
	return db.OutboxQueueCheckClaimParams{ID: c.ID, Attempt: c.Attempt, Worker: c.worker}
}

func (r *applyRunner) finishApplied(ctx context.Context, q *db.Queries, c *claim, answer db.OutboxHistoryAnswerRow, began string) (promoted []string, err error) {
	var keys []string
	if c.OrderingKey != nil {
		keys = []string{*c.OrderingKey}
		if err := q.OutboxQueueLockOrder(ctx, keys); err != nil {
			return nil, err
		}
	}
	rows, err := q.OutboxQueueFinish(ctx, db.OutboxQueueFinishParams{
		ID: c.ID, Attempt: c.Attempt, Worker: c.worker, Began: began, Outcome: answer.Outcome, Code: answer.Code})
	if err != nil {
		return nil, err
	}
	if rows != 1 {
		return nil, notEnded(ctx, q, began)
	}
	if len(keys) == 0 {
		return nil, nil
	}
	return q.OutboxQueuePromote(ctx, keys)
}

// finishCommitted finishes the intent of an Apply that committed its own transaction.
func (r *applyRunner) finishCommitted(ctx context.Context, c *claim, answer db.OutboxHistoryAnswerRow) (promoted []string, err error) {
	err = pgx.BeginTxFunc(ctx, r.core.pool, isReadCommitted, func(tx pgx.Tx) error {
		q := r.core.q.WithTx(tx)
		claimed, err := q.OutboxQueueCheckClaim(ctx, c.held())
		if err == nil {
			promoted, err = r.finishApplied(ctx, q, c, answer, claimed.Began)
		}
		return fenced(err)
	})
	return promoted, err
}

func (r *applyRunner) callApply(ctx context.Context, tx *applyTx, c *claim, answer db.OutboxHistoryAnswerRow) error {
	if c.action.apply == nil {
		return nil // resolved by a person, or registered without its Apply in this release
	}
	_, err := guard(func() (struct{}, error) { return struct{}{}, c.action.apply(ctx, tx, settledOf(c, answer)) })
	return err
}

func fenced(err error) error {
	if errors.Is(err, pgx.ErrNoRows) {
		return errFenced
	}
	return err
}

// settledOf is what the Apply of a claim is told.
func settledOf(c *claim, last db.OutboxHistoryAnswerRow) Settled {
	s := Settled{
		Call: c.call(), Status: outbox.Status(last.Outcome), Resolved: last.Resolved,
		Response: Response{Code: last.Code, ContentType: last.ResponseType, Body: last.Response},
	}
	s.Endpoint = nil // it was read only if the same claim made the call
	return s
}
