package outbox

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/samekey/samekey"
	"github.com/samekey/samekey/internal/db"
	"github.com/samekey/samekey/internal/sqlstate"
)

// Content says whose content [Erase] drops. Set one field.
type Content struct {
	Subject string // of intents and of requests, each by its own
	Scope   string // of their keys
}

// Erased counts what [Erase] did.
type Erased struct {
	Intents int
	Records int // processed records
}

// ErasePlan is what [Erase] would do now. It refuses as long as Unfinished or Requests is not 0.
type ErasePlan struct {
	Intents int // finished ones, which it would erase
	Records int // completed ones, which it would erase

	Unfinished int         // intents that are not finished, or whose attention events the application has yet to take
	Sample     []uuid.UUID // the first ten of those
	Requests   int         // operations in several transactions (processed.Steps) that are not completed
}

// UnfinishedError means that [Erase] found intents that are not finished, or operations that are not completed. Finish,
// cancel or resolve them first (processed.AbandonOperation for an operation that no caller resumes), and erase again.
// What an earlier batch of the same call has erased stays erased.
type UnfinishedError struct {
	Intents  int         // how many are not finished
	Sample   []uuid.UUID // the first ten of them
	Requests int         // how many operations are not completed
}

func (e *UnfinishedError) Error() string {
	return fmt.Sprintf("outbox: erase: %d intents are not finished %v, and %d operations are not completed: finish, cancel or resolve them first",
		e.Intents, e.Sample, e.Requests)
}

// errHeld is the error after the last batch if it had to skip something.
var errHeld = errors.New("other transactions, such as a prune, hold the rest: erase again")

// Erase drops what finished intents and completed requests of a subject or a scope contain: payloads, headers, subjects,
// ordering keys, rendered requests, answers, references, error texts, and the results of steps. It keeps ids, keys,
// scopes, parts, hashes, statuses, codes and times, and who decided what and why. docs/retention.md has the list.
//
// Nothing is executed again: a repeated request gets processed.ErrErased, and a repeated insert the id of its intent. A
// payload that differs from the erased one is a [*ConflictError] still. Acts on an erased intent are a [*StateError].
//
// If something is unfinished, nothing is erased and the error is an [*UnfinishedError]. Erase works in batches of 500,
// each a transaction. Each intent gets a line in its history, and each record a last step, with by. If it fails or ctx
// ends, Erased counts what was done; call it again to continue. It does not see what other transactions have yet to
// commit: stop the writers of the subject first, or erase again. Rows that a prune or an archive holds are left, and the
// error says so. For a scope it walks the work queue, and then reads both tables once.
func Erase(ctx context.Context, on DB, what Content, by By) (done Erased, err error) {
	if err := errors.Join(what.check(), by.Validate()); err != nil {
		return done, fmt.Errorf("outbox: erase: %w", err)
	}
	skipped := 0
	for after := (*string)(nil); after == nil || *after != ""; {
		var batch db.ActEraseSubjectRow
		err := pgx.BeginFunc(ctx, on, func(tx pgx.Tx) (err error) {
			batch, err = what.erase(ctx, db.New(tx), by, after)
			return err
		})
		if err != nil {
			return done, what.refused(ctx, on, err)
		}
		done.Intents += int(batch.Intents)
		done.Records += int(batch.Records)
		skipped += int(batch.Skipped)
		after = &batch.Next
	}
	if skipped > 0 {
		return done, fmt.Errorf("outbox: erase: %d rows were left: %w", skipped, errHeld)
	}
	return done, nil
}

// erase does one batch.
func (c Content) erase(ctx context.Context, q *db.Queries, by By, after *string) (db.ActEraseSubjectRow, error) {
	if c.Subject != "" {
		return q.ActEraseSubject(ctx, db.ActEraseSubjectParams{
			Subject: c.Subject, Actor: by.Actor, Reason: by.Reason, MaxCount: bulkSize, After: after})
	}
	row, err := q.ActEraseScope(ctx, db.ActEraseScopeParams{
		Scope: c.Scope, Actor: by.Actor, Reason: by.Reason, MaxCount: bulkSize, After: after})
	return db.ActEraseSubjectRow(row), err
}

// refused returns the error of a batch.
func (c Content) refused(ctx context.Context, on DB, err error) error {
	switch sqlstate.Of(err) {
	case sqlstate.StateRefuses:
		refusal := &UnfinishedError{}
		lookErr := pgx.BeginFunc(ctx, on, func(tx pgx.Tx) error {
			plan, err := c.plan(ctx, tx)
			*refusal = UnfinishedError{Intents: plan.Unfinished, Sample: plan.Sample, Requests: plan.Requests}
			return err
		})
		if lookErr == nil && refusal.Intents+refusal.Requests > 0 { // otherwise they were finished meanwhile
			return refusal
		}
	case sqlstate.Denied:
		err = denied(err)
	}
	return fmt.Errorf("outbox: erase: %w", err)
}

// PlanErase counts what [Erase] would do now, and changes nothing. For a scope it reads both tables.
func PlanErase(ctx context.Context, on samekey.Tx, what Content) (ErasePlan, error) {
	if err := what.check(); err != nil {
		return ErasePlan{}, fmt.Errorf("outbox: plan erase: %w", err)
	}
	plan, err := what.plan(ctx, on)
	if err != nil {
		if sqlstate.Of(err) == sqlstate.Denied {
			err = denied(err)
		}
		return ErasePlan{}, fmt.Errorf("outbox: plan erase: %w", err)
	}
	return plan, nil
}

func (c Content) plan(ctx context.Context, on samekey.Tx) (ErasePlan, error) {
	row, err := db.New(on).ActErasePlan(ctx, db.ActErasePlanParams{Subject: c.Subject, Scope: c.Scope})
	return ErasePlan{Intents: int(row.Intents), Records: int(row.Records), Unfinished: int(row.Unfinished), Sample: row.Sample,
		Requests: int(row.Requests)}, err
}

func (c Content) check() error {
	if (c.Subject == "") == (c.Scope == "") {
		return errors.New("set either Subject or Scope")
	}
	return nil
}
