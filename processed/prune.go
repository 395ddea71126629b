package processed

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/samekey/samekey/internal/db"
	"github.com/samekey/samekey/internal/sqlstate"
)

// Pruning configures Prune. The zero value is the default.
type Pruning struct {
	// Batch is how many records one transaction looks at: 1 to 10,000, 0 for 1,000. 1,000 take some tens of
	// milliseconds, far below any statement timeout. For intents without a record the limit is 1,000, because their
	// keys are locked meanwhile.
	Batch int

	// IntentRetain is how long a finished intent without a record is kept; such intents are written outside Run and Do.
	// 1 minute to 10 years, 0 for 72 hours. A negative value keeps them, and saves a look at every intent.
	IntentRetain time.Duration

	// ArchiveFunction names an SQL function of the application, with its schema, such as "shop.archive". Prune calls it
	// with what it is about to delete, in the same transaction, so each row is handed over at least once before it is
	// gone. If the function fails, its rows are kept and Prune returns an [*ArchiveError].
	//
	// It has one argument of type jsonb: {"intents": [..], "records": [..]}, at most 500 rows and, unless one alone is
	// larger, 4 MiB. docs/retention.md has their members. It must be security definer with a search_path of its own, and
	// its owner neither a superuser, nor the role of the pool, nor the owner of samekey's tables; otherwise Prune
	// deletes nothing. Default: none.
	ArchiveFunction string
}

// Pruned counts what Prune did.
type Pruned struct {
	Records int64 // deleted
	Intents int64 // deleted, with their history
	Kept    int64 // records past their retention that had to stay, see Prune

	// Abandoned counts operations of Steps that are past their retention, not completed, and on which no call works.
	// They stay: someone has to call again with the key, or call AbandonOperation. The worker logs them as an error.
	Abandoned int64
}

// Prune deletes the records past their retention, each with its intents and their history, until all are deleted or ctx
// ends. The counts are right in both cases. The worker calls Prune from time to time; several calls may run at once.
//
// A record and its intents are deleted together or kept together. They are kept until every intent is finished, and
// until the vendor that received it has forgotten the key (the policy's key window; a window without an end counts as
// over when the retention is). Otherwise a new request under the same key would meet the old intent, or the vendor's
// memory, and its effect would silently not happen. So the record of a dead or parked intent stays until a person has
// dealt with the intent. Intents without a record are deleted after Pruning.IntentRetain, under the same conditions,
// and all intents of a key together.
//
// An operation in progress ([Steps]) is never deleted, however old it is: its next call would start it afresh, and do
// its finished steps again. See Pruned.Abandoned.
//
// Prune works in small transactions, and what one has committed stays. If one fails, Prune returns the error (after ten
// attempts for a statement timeout), and the next call continues from there.
func Prune(ctx context.Context, pool *pgxpool.Pool, how Pruning) (Pruned, error) {
	var done Pruned
	if how.Batch == 0 {
		how.Batch = 1000
	}
	if how.Batch < 1 || how.Batch > 10_000 {
		return done, fmt.Errorf("processed: Pruning.Batch is %d: give 1 to 10,000, or zero for 1,000", how.Batch)
	}
	if how.IntentRetain == 0 {
		how.IntentRetain = defaultRetain
	}
	if how.IntentRetain > 0 && (how.IntentRetain < minRetain || how.IntentRetain > maxRetain) {
		return done, fmt.Errorf("processed: Pruning.IntentRetain is %s: give %s to %s, zero for %s, or a negative value to keep such intents",
			how.IntentRetain, minRetain, maxRetain, defaultRetain)
	}
	to := archive(how.ArchiveFunction)
	if err := to.check(ctx, pool); err != nil {
		return done, err
	}
	if err := done.records(ctx, pool, int32(how.Batch), to); err != nil {
		return done, fmt.Errorf("processed: prune records: %w", err)
	}
	var err error
	if done.Abandoned, err = db.New(pool).OperationsAbandoned(ctx); err != nil {
		return done, fmt.Errorf("processed: count abandoned operations: %w", err)
	}
	if how.IntentRetain < 0 {
		return done, nil
	}
	if err := done.orphans(ctx, pool, int32(how.Batch), how.IntentRetain, to); err != nil {
		return done, fmt.Errorf("processed: prune intents without a record: %w", err)
	}
	return done, nil
}

// maxOrphans bounds a page of intents without a record, whose keys are locked while the page is processed.
const maxOrphans = 1000

// Prune does not lock the key of a record. It can meet a call with that key in these ways:
//
//   - The call looks before the delete is committed, or with an older snapshot: it sees the record and replays, as if
//     it had come earlier.
//   - The call looks afterwards: it sees neither record nor intents, because both were deleted in one commit. The
//     request is done again, with new intents. That is the meaning of retention.
//   - The call loses its insert to another attempt, whose record is pruned before the call can read it: it finds
//     nothing and runs again.
//   - The INSERT .. ON CONFLICT of a failure meets the row that is being deleted: it waits for Prune's commit and
//     inserts.
//   - Outside Run, samekey.enqueue meets an intent that is being deleted: it waits and writes a new one. Or it has just
//     returned the id of an old intent as a no-op, and that is deleted then: its effect happened long ago, as the no-op
//     said.
//   - A transaction that Prune cannot see writes a new intent under the key: it is not deleted, and goes later as an
//     intent without a record.
//
// Prune does lock the keys of intents without a record, a page at a time, and skips keys that others hold:
//
//   - Run or Do under such a key, which never had a record, may get ErrInFlight while the page is processed.
//   - A call that holds the lock keeps its key's intents until the next Prune.
//
// None of these loses an effect, or does one twice within the retention.

func (done *Pruned) records(ctx context.Context, pool *pgxpool.Pool, batch int32, to archive) error {
	if to != "" {
		batch = min(batch, archivePage)
	}
	page := db.ProcessedEventsPruneParams{MaxCount: batch, OnlyPick: to != ""}
	for {
		var seen db.ProcessedEventsPruneRow
		err := inBatch(ctx, pool, func(tx pgx.Tx) (err error) {
			if seen, err = db.New(tx).ProcessedEventsPrune(ctx, page); err != nil {
				return err
			}
			return to.handOver(ctx, tx, doomed{ids: seen.Ids, keys: seen.Keys, scopes: seen.Scopes})
		})
		if err != nil {
			return err
		}
		done.Records += int64(seen.Records)
		done.Intents += int64(seen.Intents)
		done.Kept += int64(seen.Seen - seen.Records)
		if seen.Seen < batch {
			return nil
		}
		page.AfterExpires, page.AfterKey, page.AfterScope = seen.LastExpires, seen.LastKey, seen.LastScope
	}
}

func (done *Pruned) orphans(ctx context.Context, pool *pgxpool.Pool, batch int32, retain time.Duration, to archive) error {
	after := uuid.Nil
	batch = min(batch, maxOrphans)
	for {
		var seen db.ProcessedEventsPruneOrphansRow
		err := inBatch(ctx, pool, func(tx pgx.Tx) (err error) {
			seen, err = db.New(tx).ProcessedEventsPruneOrphans(ctx, db.ProcessedEventsPruneOrphansParams{
				After: after, MaxCount: batch, RetainUs: retain.Microseconds(), OnlyPick: to != "",
			})
			if err != nil {
				return err
			}
			return to.handOver(ctx, tx, doomed{ids: seen.Ids})
		})
		if err != nil {
			return err
		}
		done.Intents += int64(seen.Intents)
		if seen.Seen < batch {
			return nil
		}
		after = seen.Last
	}
}

// byIndex makes each page a walk along an index. If a table was filled after its last ANALYZE, the planner believes it
// is small, and for each page reads and sorts everything that has expired: 6 s with 2 million rows. The same estimate,
// and the penalty on the other plans, make JIT compilation look worthwhile; it takes longer than the page.
const byIndex = "set local enable_seqscan = off; set local enable_bitmapscan = off; set local jit = off"

// inBatch runs one transaction, read committed whatever the default: a row that another transaction has locked is
// skipped, and a row that changed is looked at again.
//
// The first page of a call steps over the index entries that earlier calls left dead, until a vacuum removes them.
// After a million deletes on a busy server this took longer than a statement timeout of 5 s. A cancelled scan has
// marked the entries that it met, and the next scan passes them quickly, so another attempt gets further.
func inBatch(ctx context.Context, pool *pgxpool.Pool, do func(pgx.Tx) error) error {
	for try := 1; ; try++ {
		err := pgx.BeginTxFunc(ctx, pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, byIndex); err != nil {
				return err
			}
			return do(tx)
		})
		if _, ofFunction := errors.AsType[*ArchiveError](err); ofFunction || sqlstate.Of(err) != sqlstate.Cancelled || try == maxTries || ctx.Err() != nil {
			return err
		}
	}
}
