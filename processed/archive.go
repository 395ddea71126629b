package processed

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/samekey/samekey/internal/appfunction"
	"github.com/samekey/samekey/internal/db"
)

// An archive gets what a page of Prune is about to delete, in the page's transaction:
//
//   - The function fails: the transaction rolls back. All rows are still there, and the next Prune hands them over again.
//   - The process or the connection is lost before the COMMIT: the same, and what the function wrote is gone too.
//   - The COMMIT happens: what the function wrote is committed together with the deletes. So each row was handed over at
//     least once, and what the function wrote to this database is there exactly once.
//   - Another Prune runs: it skips the records of the page, or the keys of the intents without a record. They are locked.
//   - An erasure is under way: the page waits for it, and hands over erased intents. Records that it holds are left to the
//     next Prune.
//   - An erasure comes later: the page has locked its records and its intents. The erasure leaves them, and says so. Run
//     again after the COMMIT, it finds nothing. So after an erasure without an error, nothing of what it erased is handed
//     over, and what was handed over before can be seen in the archive.
//   - A late answer arrives between the function's read and the delete, days after the intent was finished: it is deleted
//     with the intent.

// ArchiveError means that Pruning.ArchiveFunction failed. The page that it was called for is still there. Correct the
// function: the next Prune hands the same rows over again.
type ArchiveError struct {
	Function string
	Err      error // the database's
}

func (e *ArchiveError) Error() string {
	return fmt.Sprintf("the archive function %s failed, and its rows were kept: correct it; the next prune calls it with the same rows: %v", e.Function, e.Err)
}

// Unwrap returns Err.
func (e *ArchiveError) Unwrap() error { return e.Err }

// The bounds of one call of the function. A single intent or record can be larger. A page of records is small, since
// they stay locked while the function runs.
const (
	archivePage  = 100
	archiveRows  = 500     // of one call
	archiveBytes = 4 << 20 // of one call: the contents, as they are stored
)

// archive is the function, or "".
type archive string

// check looks at the function with the rights of the pool: it must not run with them.
func (a archive) check(ctx context.Context, pool *pgxpool.Pool) error {
	if a == "" {
		return nil
	}
	if !appfunction.IsName(string(a)) {
		return fmt.Errorf("processed: Pruning.ArchiveFunction: %q %w", string(a), appfunction.ErrName)
	}
	found, err := appfunction.LookAt(ctx, pool, string(a))
	if err != nil {
		return fmt.Errorf("processed: Pruning.ArchiveFunction: look at %s: %w", string(a), err)
	}
	if mistakes := found.Mistakes(); len(mistakes) > 0 {
		return fmt.Errorf("processed: Pruning.ArchiveFunction: %s", mistakes[0])
	}
	return nil
}

// doomed are the rows of a page.
type doomed struct {
	ids          []uuid.UUID
	keys, scopes []string
	bytes        int64
}

// handOver calls the function with the rows, and deletes them.
func (a archive) handOver(ctx context.Context, tx pgx.Tx, page doomed) error {
	if a == "" || len(page.ids)+len(page.keys) == 0 {
		return nil
	}
	q := db.New(tx)
	if err := q.ArchiveLock(ctx, page.ids); err != nil {
		return err
	}
	records, err := q.ProcessedEventsSizes(ctx, db.ProcessedEventsSizesParams{Keys: page.keys, Scopes: page.scopes})
	if err != nil {
		return err
	}
	intents, err := q.ArchiveIntentSizes(ctx, page.ids)
	if err != nil {
		return err
	}
	part := doomed{}
	for _, r := range records {
		if err := a.makeRoom(ctx, tx, &part, r.Bytes); err != nil {
			return err
		}
		part.keys, part.scopes = append(part.keys, r.IdemKey), append(part.scopes, r.Scope)
	}
	for _, r := range intents {
		if err := a.makeRoom(ctx, tx, &part, r.Bytes); err != nil {
			return err
		}
		part.ids = append(part.ids, r.ID)
	}
	if err := a.call(ctx, tx, part); err != nil {
		return err
	}
	return q.ProcessedEventsPruneDelete(ctx, db.ProcessedEventsPruneDeleteParams{Ids: page.ids, Keys: page.keys, Scopes: page.scopes})
}

// makeRoom calls the function with the part if a row of this size does not fit into it any more.
func (a archive) makeRoom(ctx context.Context, tx pgx.Tx, part *doomed, bytes int64) error {
	rows := len(part.ids) + len(part.keys)
	if rows > 0 && (rows == archiveRows || part.bytes+bytes > archiveBytes) {
		if err := a.call(ctx, tx, *part); err != nil {
			return err
		}
		*part = doomed{}
	}
	part.bytes += bytes
	return nil
}

// call calls the function. The server makes its argument, so the rows do not travel.
func (a archive) call(ctx context.Context, tx pgx.Tx, part doomed) error {
	_, err := tx.Exec(ctx, "select "+appfunction.Quoted(string(a))+"(samekey.archive_batch($1::uuid[], $2::text[], $3::text[]))",
		notNil(part.ids), notNil(part.keys), notNil(part.scopes))
	if err != nil {
		return &ArchiveError{Function: string(a), Err: err}
	}
	return nil
}

// notNil returns an empty array for a nil one, which would be NULL.
func notNil[T any](rows []T) []T { return append([]T{}, rows...) }
