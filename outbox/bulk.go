package outbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/samekey/samekey"
	"github.com/samekey/samekey/internal/db"
	"github.com/samekey/samekey/internal/sqlstate"
)

// Bulk is one act on many intents: [RedriveAll], [CancelAll], [ResolveAll] or [ReplaceAll]. Look at [Bulk.Plan] before you run it.
//
// It works in batches of 500, oldest first, and each batch is a transaction: so no worker waits for it, and a run that is
// interrupted keeps what it has done. Start it again to continue: it leaves out what is done. Each intent gets its own
// line in the history. Intents that the act on one of them would refuse are left alone, and so are intents that a
// worker, another person or a writer with their ordering key holds at that moment: for those, run it again.
type Bulk struct {
	act      string     // the SQL function
	outcome  string     // of ResolveAll
	patch    *string    // of ReplaceAll
	deadline *time.Time // of ReplaceAll
	filter   Filter
	bad      error // a mistake in the arguments
	by       By
	batch    func(context.Context, *db.Queries, bulkArguments) (bulkBatch, error)
}

// bulkArguments are those of one batch.
type bulkArguments struct {
	filter string
	after  *uuid.UUID
	count  int32
}

// bulkBatch is the result of one batch. last is nil if there is no intent left.
type bulkBatch struct {
	changed int32
	last    *uuid.UUID
	actions []string
}

// bulkSize is the size of a batch. See docs/decisions.md.
const bulkSize = 500

// Plan is what a [Bulk] would do now.
type Plan struct {
	Intents         int         // how many it would change
	Sample          []uuid.UUID // the first ten of them
	MayHaveBeenSent int         // how many it would leave, since they may have been sent: see Resolve
	PastDeadline    int         // ReplaceAll: how many it would leave, since their deadline has passed: set another one
	NotPatchable    int         // ReplaceAll: how many it would leave, since the Patch cannot change their payload
}

// Batch is the progress of a [Bulk].
type Batch struct {
	Changed int // in this batch
	Total   int // in this run
}

// RedriveAll is [Redrive] for every dead or parked intent that the filter finds. Set Status to StatusDead or
// StatusParked, or leave it empty for both. Limit bounds the run; 0 means no bound. After is not used.
//
// A run redrives an intent once, even if it becomes dead again meanwhile. Another run would redrive it again: set
// OlderThan or To to leave out what was inserted since.
func RedriveAll(f Filter, by By) Bulk {
	return Bulk{act: "redrive_all", filter: f, by: by,
		batch: func(ctx context.Context, q *db.Queries, a bulkArguments) (bulkBatch, error) {
			row, err := q.ActRedriveAll(ctx, db.ActRedriveAllParams{
				Filter: a.filter, Actor: by.Actor, Reason: by.Reason, MaxCount: a.count, AfterID: a.after})
			return bulkBatch{row.Changed, row.LastID, row.Actions}, err
		}}
}

// CancelAll is [Cancel] for every intent that the filter finds. Set Status to one of StatusPending, StatusBlocked,
// StatusAwaitingApproval, StatusDead and StatusParked. To stop workers from claiming pending ones meanwhile, [Pause]
// their destination first. Limit bounds the run; 0 means no bound. After is not used.
func CancelAll(f Filter, by By) Bulk {
	return Bulk{act: "cancel_all", filter: f, by: by,
		batch: func(ctx context.Context, q *db.Queries, a bulkArguments) (bulkBatch, error) {
			row, err := q.ActCancelAll(ctx, db.ActCancelAllParams{
				Filter: a.filter, Actor: by.Actor, Reason: by.Reason, MaxCount: a.count, AfterID: a.after})
			return bulkBatch{row.Changed, row.LastID, row.Actions}, err
		}}
}

// ResolveAll is [Resolve] for every intent that the filter finds, all with the same outcome and evidence: for example as
// not sent, after the vendor has confirmed that it received nothing in an outage. Set Status to StatusUnknown,
// StatusDead or StatusParked, or leave it empty for the last two. Limit bounds the run; 0 means no bound. After is not
// used.
func ResolveAll(f Filter, r Resolution, by By) Bulk {
	return Bulk{act: "resolve_all", outcome: string(r.Outcome), filter: f, by: by, bad: r.check(),
		batch: func(ctx context.Context, q *db.Queries, a bulkArguments) (bulkBatch, error) {
			row, err := q.ActResolveAll(ctx, db.ActResolveAllParams{
				Filter: a.filter, Outcome: string(r.Outcome), Actor: by.Actor, Reason: by.Reason, Code: r.Code,
				ResponseType: r.ResponseType, Response: r.Response, Reference: r.Reference, MaxCount: a.count, AfterID: a.after})
			return bulkBatch{row.Changed, row.LastID, row.Actions}, err
		}}
}

// Plan counts what Run would do now, and changes nothing. It reads each resting intent: a million take half a second. For
// [ReplaceAll] it also reads the history and the row of each: 5 seconds, and 14 with a Patch.
func (b Bulk) Plan(ctx context.Context, on samekey.Tx) (Plan, error) {
	if err := b.check(); err != nil {
		return Plan{}, b.wrap("plan", err)
	}
	row, err := db.New(on).ActBulkPlan(ctx, db.ActBulkPlanParams{
		Act: b.act, Filter: b.filter.json(b.filter.Status), Outcome: b.outcome, Patch: b.patch, Deadline: b.deadline})
	if err != nil {
		return Plan{}, b.wrap("plan", err)
	}
	return Plan{Intents: int(row.Intents), Sample: row.Sample, MayHaveBeenSent: int(row.MayHaveBeenSent),
		PastDeadline: int(row.PastDeadline), NotPatchable: int(row.NotPatchable)}, nil
}

// Run runs all batches and returns how many intents it changed. If it fails or ctx ends, the number is what was changed
// until then.
func (b Bulk) Run(ctx context.Context, on DB) (total int, err error) {
	for batch, err := range b.Batches(ctx, on) {
		total = batch.Total
		if err != nil {
			return total, err
		}
	}
	return total, nil
}

// Batches runs one batch for each step of the loop, and yields its progress after its commit. A break ends the run
// between two batches. An error is the last step.
//
//	for batch, err := range outbox.RedriveAll(filter, by).Batches(ctx, pool) {
func (b Bulk) Batches(ctx context.Context, on DB) iter.Seq2[Batch, error] {
	return func(yield func(Batch, error) bool) {
		var done Batch
		if err := b.check(); err != nil {
			yield(done, b.wrap("run", err))
			return
		}
		for _, status := range b.statuses() {
			args := bulkArguments{filter: b.filter.json(status)}
			for done.Total < b.filter.Limit || b.filter.Limit == 0 {
				args.count = bulkSize
				if b.filter.Limit > 0 {
					args.count = int32(min(bulkSize, b.filter.Limit-done.Total))
				}
				batch, err := b.one(ctx, on, args)
				done.Changed = int(batch.changed)
				done.Total += done.Changed
				if err != nil {
					yield(done, b.wrap("run", err))
					return
				}
				if batch.last == nil {
					break
				}
				args.after = batch.last
				if !yield(done, nil) {
					return
				}
			}
		}
	}
}

// one runs a batch and wakes the workers.
func (b Bulk) one(ctx context.Context, on DB, args bulkArguments) (batch bulkBatch, err error) {
	err = pgx.BeginFunc(ctx, on, func(tx pgx.Tx) (err error) {
		batch, err = b.batch(ctx, db.New(tx), args)
		return err
	})
	if err != nil {
		return bulkBatch{}, err
	}
	flush(on, batch.actions)
	return batch, nil
}

// statuses are run one after the other: each has its own order of ids.
func (b Bulk) statuses() []Status {
	if b.filter.Status == "" {
		return []Status{StatusDead, StatusParked}
	}
	return []Status{b.filter.Status}
}

func (b Bulk) wrap(what string, err error) error {
	if sqlstate.Of(err) == sqlstate.Denied {
		err = denied(err)
	}
	return fmt.Errorf("outbox: %s %s: %w", what, b.act, err)
}

func (b Bulk) check() error {
	f := b.filter
	switch {
	case b.act == "":
		return errors.New("the Bulk is empty: use RedriveAll, CancelAll, ResolveAll or ReplaceAll")
	case f.Limit < 0:
		return fmt.Errorf("Limit is %d: give how many at most, or 0 for all", f.Limit)
	case f.After != uuid.Nil:
		return errors.New("After is set: it is for List")
	case f.Status == "" && b.act == "cancel_all":
		return errors.New("Status is empty: give the state of the intents to cancel")
	case f.Status == "":
		f.Status = StatusDead // Code and Cause go with both
	}
	f.Limit = 0
	return errors.Join(f.check(), b.bad, b.by.Validate())
}

// json returns the filter as the SQL functions take it.
func (f Filter) json(status Status) string {
	members := map[string]any{}
	for name, text := range map[string]string{
		"status": string(status), "part": f.Part, "code": f.Code, "cause": f.Cause, "scope": f.Scope, "key": f.Key,
		"subject": f.Subject, "reference": f.Reference,
	} {
		if text != "" {
			members[name] = text
		} else if f.exact && (name == "code" || name == "cause") {
			members[name] = nil
		}
	}
	if actions := f.actions(); len(actions) > 0 {
		members["action"] = actions
	}
	if !f.From.IsZero() {
		members["from"] = f.From.UTC().Format(time.RFC3339Nano)
	}
	if !f.To.IsZero() {
		members["to"] = f.To.UTC().Format(time.RFC3339Nano)
	}
	if f.OlderThan > 0 {
		members["older_than"] = fmt.Sprintf("%d microseconds", f.OlderThan.Microseconds())
	}
	text, _ := json.Marshal(members) // strings only
	return string(text)
}
