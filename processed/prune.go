package processed

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/samekey/samekey/internal/db"
	"github.com/samekey/samekey/internal/sqlstate"
)

// Pruning says how Prune works. The zero value is the default.
type Pruning struct {
	// Batch is how many records one transaction looks at: 1 to 10,000, zero for
	// 1,000, which take some tens of milliseconds, far from any statement timeout.
	// Of intents without a record it looks at 1,000 at most, since it holds the
	// locks of their keys meanwhile.
	Batch int

	// IntentRetain is how long intents are kept, after they were finished, that
	// have no record since they were written outside Run and Do: 1 minute to 10
	// years, zero for DefaultRetain. Negative leaves them alone, and saves a look
	// at each intent that there is.
	IntentRetain time.Duration
}

// Pruned counts what Prune did.
type Pruned struct {
	Records int64 // deleted
	Intents int64 // deleted, with their history
	Kept    int64 // records past their retention that must stay, see Prune
}

// Prune deletes the records past their retention, each together with its
// intents and their history, until none is left or ctx ends. The counts are
// right in both cases.
//
// A record and its intents are deleted together or kept together, and kept
// until every intent is finished, and the vendor that got it has forgotten the
// key (the policy's key window; one without end counts as over when the
// retention is). Else a key that is new again would meet its old intent, or the
// vendor's memory, and an effect would silently not happen. So the record of an
// intent that is dead or parked stays until somebody has dealt with that.
// Intents without a record go by Pruning.IntentRetain, under the same
// conditions, all that share a key together.
//
// It works in small transactions, each of which lasts; one that fails ends
// Prune with an error, after ten tries if it is the statement timeout, and the
// next call goes on from there. Several may run at once. The worker calls it
// from time to time by itself.
func Prune(ctx context.Context, pool *pgxpool.Pool, how Pruning) (Pruned, error) {
	var done Pruned
	if how.Batch == 0 {
		how.Batch = 1000
	}
	if how.Batch < 1 || how.Batch > 10_000 {
		return done, fmt.Errorf("processed: Pruning.Batch is %d: give 1 to 10,000, or zero for 1,000", how.Batch)
	}
	if how.IntentRetain == 0 {
		how.IntentRetain = DefaultRetain
	}
	if how.IntentRetain > 0 && (how.IntentRetain < minRetain || how.IntentRetain > maxRetain) {
		return done, fmt.Errorf("processed: Pruning.IntentRetain is %s: give %s to %s, zero for %s, or a negative one to leave such intents alone",
			how.IntentRetain, minRetain, maxRetain, DefaultRetain)
	}
	if err := done.records(ctx, pool, int32(how.Batch)); err != nil {
		return done, fmt.Errorf("processed: prune records: %w", err)
	}
	if how.IntentRetain < 0 {
		return done, nil
	}
	if err := done.orphans(ctx, pool, int32(how.Batch), how.IntentRetain); err != nil {
		return done, fmt.Errorf("processed: prune intents without a record: %w", err)
	}
	return done, nil
}

// maxOrphans bounds a page of intents without a record: for as long as it takes,
// their keys are locked.
const maxOrphans = 1000

// Prune takes no lock on the key of a record. These are the ways in which it
// meets a call with the key of a record that it deletes:
//
//   - The call looks up before the delete is committed, or with an older
//     snapshot: it sees the record and replays. It is as if it had come earlier.
//   - It looks up afterwards: it sees neither record nor intents, since both went
//     in one commit, and the request is done again, new intents included. That is
//     what retention means.
//   - It lost its insert to another attempt, whose record is pruned before it can
//     read it: it finds nothing and runs again, as one that comes afterwards.
//   - Its failure's INSERT .. ON CONFLICT meets the row that is being deleted: it
//     waits for the pruner's commit and inserts.
//   - samekey.enqueue meets an intent that is being deleted, outside Run: it waits
//     and writes a new one. Or it has just returned the id of one, as a no-op,
//     and that is deleted then: its effect happened long ago, as the no-op said.
//   - A new intent is written under the key by a transaction that the pruner
//     cannot see: it is not deleted, and later goes as one without a record.
//
// Of intents without a record it does take the key's lock, all at once for a
// page, and leaves out whose key is locked by others:
//
//   - A Run or Do under such a key, which never had a record, may get ErrInFlight
//     for as long as the page takes, and is made again.
//   - One that holds the lock keeps its key's intents until the next prune.
//
// None of them loses an effect, or does one twice within the retention.

func (done *Pruned) records(ctx context.Context, pool *pgxpool.Pool, batch int32) error {
	page := db.ProcessedEventsPruneParams{MaxCount: batch}
	for {
		var seen db.ProcessedEventsPruneRow
		err := inBatch(ctx, pool, func(q *db.Queries) (err error) {
			seen, err = q.ProcessedEventsPrune(ctx, page)
			return err
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

func (done *Pruned) orphans(ctx context.Context, pool *pgxpool.Pool, batch int32, retain time.Duration) error {
	after := uuid.Nil
	batch = min(batch, maxOrphans)
	for {
		var seen db.ProcessedEventsPruneOrphansRow
		err := inBatch(ctx, pool, func(q *db.Queries) (err error) {
			seen, err = q.ProcessedEventsPruneOrphans(ctx, db.ProcessedEventsPruneOrphansParams{
				After: after, MaxCount: batch, RetainUs: retain.Microseconds(),
			})
			return err
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

// byIndex keeps a page a walk along an index. Of a table that was filled since it
// was last analyzed the planner thinks that it is small, and for each page would
// read and sort all that has expired, 6 s with 2 million rows. Such a guess, and
// the price put on the other ways, also look worth compiling for, which takes
// longer than the page.
const byIndex = "set local enable_seqscan = off; set local enable_bitmapscan = off; set local jit = off"

// inBatch is one transaction, in which a row that another one locks is skipped
// and one that changed is looked at again: read committed, whatever the default.
//
// The first page of a call steps over the index entries that earlier calls left
// dead, until a vacuum takes them: after a million deletes, on a busy server,
// that outlasted a statement timeout of 5 s. A scan that is cancelled has marked
// the entries that it met, and the next one passes them in no time; so another
// try gets further.
func inBatch(ctx context.Context, pool *pgxpool.Pool, do func(*db.Queries) error) error {
	for try := 1; ; try++ {
		err := pgx.BeginTxFunc(ctx, pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, byIndex); err != nil {
				return err
			}
			return do(db.New(tx))
		})
		if sqlstate.Of(err) != sqlstate.Cancelled || try == maxTries || ctx.Err() != nil {
			return err
		}
	}
}
