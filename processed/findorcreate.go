package processed

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/samekey/samekey"
	"github.com/samekey/samekey/internal/guarded"
	"github.com/samekey/samekey/internal/keyed"
	"github.com/samekey/samekey/internal/sqlstate"
	"github.com/samekey/samekey/internal/sqltext"
)

// maxCreates bounds how often a row is created again that was deleted before it was found. Twice in a row takes two
// other transactions that hit the gap between two statements. Five times is a mistake in the statements.
const maxCreates = 5

// Statement is an SQL statement and its arguments, as tx.Query takes them, without options. Over a pgx.Tx, Args may be
// one pgx.NamedArgs, which the two statements of [FindOrCreate] may share.
type Statement struct {
	SQL  string
	Args []any
}

// FindOrCreate returns the one row that has a natural key: the row that create inserts or, with Result.Deduplicated,
// the existing row that find selects. However many calls run at once, and in whatever order they end, one row is
// created, and every successful call returns it. A unique constraint of the table alone defines what "the same" means.
//
//	res, err := processed.FindOrCreate(ctx, tx,
//		processed.Statement{SQL: `insert into tickets (customer, subject, day) values ($1, $2, $3)
//			on conflict (customer, subject_norm, day) do nothing returning id`, Args: []any{customer, subject, day}},
//		processed.Statement{SQL: `select id from tickets
//			where customer = $1 and subject_norm = normal_subject($2) and day = $3`, Args: []any{customer, subject, day}},
//		pgx.RowTo[int64])
//
// create is an INSERT .. ON CONFLICT (the key's columns) DO NOTHING RETURNING .., and find is a SELECT of the same
// columns by the same key. row makes the value from either row, as in pgx.CollectOneRow: pgx.RowTo for one column,
// pgx.RowToStructByName or pgx.RowToStructByPos for several. The statements are sent unchanged, create first, in one
// round trip over a pgx.Tx and in two over database/sql.
//
// tx is the caller's transaction: the one of [Run] or [Do], a pgx.Tx, or samekey.SQL of a *sql.Tx. A pool or a
// connection is refused, because the row would be committed before what belongs to it is written. An effect that
// belongs to the creation of the row, such as an intent, goes into the same transaction, only if Deduplicated is false.
//
// An existing row stays as it is: the other values of create are not compared. A sequence is drawn from at each call,
// so its numbers have gaps.
//
// After a database error the transaction is aborted and can only be rolled back. The errors:
//
//   - [SafeToRetry]: transactions conflicted (SQLSTATE 40001, 40P01, 55P03). Under RepeatableRead and
//     Serializable this includes a row committed by a transaction that this one cannot see. Roll back, and run the
//     whole transaction again. In Run, return the error: after 40001 and 40P01 Run calls the function again.
//   - SQLSTATE 23505: create violated another unique constraint than the one in its ON CONFLICT. The row is no
//     duplicate by the natural key; the caller must decide what it is.
//   - create inserted a row that find does not select: roll back. The row has a NULL in its key, which equals no other
//     NULL, or another key than find asks for. Both would create a row at each call. Declare the key's columns NOT
//     NULL, or the constraint NULLS NOT DISTINCT with IS NOT DISTINCT FROM in find.
//   - Neither statement returned a row, five times in a row: find selects by something else than the constraint in
//     create.
//
// These are refused before anything is sent, so the transaction stays usable:
//
//   - a create that does not begin with INSERT, such as WITH, because it could return an existing row as new (write
//     INSERT INTO .. WITH ..);
//   - an INSERT without ON CONFLICT .. DO NOTHING, because its first duplicate would abort the transaction;
//   - DO UPDATE, which returns a row in both cases, so that "new" is unknown (a plain upsert needs no help);
//   - a find that inserts.
func FindOrCreate[T any](ctx context.Context, tx samekey.Tx, create, find Statement, row pgx.RowToFunc[T]) (Result[T], error) {
	if err := checkNatural(tx, create, find, row == nil); err != nil {
		return Result[T]{}, fmt.Errorf("processed: FindOrCreate: %w", err)
	}
	for range maxCreates {
		made, found, err := createAndFind(ctx, tx, create, find, row)
		switch {
		case err != nil:
			return Result[T]{}, err
		case made != nil && found == nil:
			return Result[T]{}, errors.New("processed: FindOrCreate: create inserted a row that find does not select, and would insert another each time: roll back. Its key has a NULL (declare the columns NOT NULL, or the constraint NULLS NOT DISTINCT and find with IS NOT DISTINCT FROM), or find does not select by the constraint's columns")
		case made != nil:
			return Result[T]{Value: *made}, nil
		case found != nil:
			return Result[T]{Value: *found, Deduplicated: true}, nil
		}
	}
	return Result[T]{}, fmt.Errorf("processed: FindOrCreate: create inserted no row and find selected none, %d times: let find select by the constraint that create names in ON CONFLICT, and look for a WHERE, a trigger or a row policy that hides the row", maxCreates)
}

// createAndFind sends both statements, find in any case. Each is a statement of its own, with its own snapshot.
func createAndFind[T any](ctx context.Context, tx samekey.Tx, create, find Statement, row pgx.RowToFunc[T]) (made, found *T, err error) {
	sender, ok := tx.(guarded.Batcher)
	if !ok {
		rows, err := tx.Query(ctx, create.SQL, create.Args...)
		if made, err = oneRow(rows, err, row); err != nil {
			return nil, nil, naturalError("create", err)
		}
		rows, err = tx.Query(ctx, find.SQL, find.Args...)
		if found, err = oneRow(rows, err, row); err != nil {
			return nil, nil, naturalError("find", err)
		}
		return made, found, nil
	}
	failed := "create or find" // before either was executed
	batch := &pgx.Batch{}
	batch.Queue(create.SQL, create.Args...).Query(func(rows pgx.Rows) (err error) {
		if made, err = oneRow(rows, nil, row); err != nil {
			failed = "create"
		}
		return err
	})
	batch.Queue(find.SQL, find.Args...).Query(func(rows pgx.Rows) (err error) {
		if found, err = oneRow(rows, nil, row); err != nil {
			failed = "find"
		}
		return err
	})
	if err := sender.SendBatch(ctx, batch).Close(); err != nil {
		return nil, nil, naturalError(failed, err)
	}
	return made, found, nil
}

// What can happen between the two statements, and to them.
//
// Under ReadCommitted each statement sees what is committed when the statement begins:
//
//   - No row has the key: create inserts it, and find sees it. Others wait for this transaction.
//   - The row is committed, or this transaction's own: create returns no row, and find sees it, because it is a
//     statement of its own with its own snapshot. In one statement (WITH .. UNION ALL SELECT) the snapshot would
//     predate the wait below, and neither part would return a row.
//   - Another transaction inserted it and has not ended: create waits. If the other commits: as above. If it rolls
//     back, fully or to a savepoint: create inserts. After lock_timeout (55P03) or a deadlock (40P01): everything
//     again, later.
//   - Another transaction deletes it, or changes its key, and has not ended: create waits too, and inserts if the other
//     commits. If that happens after create returned no row and before find looks, neither has a row, and create is
//     sent again.
//   - It is deleted after find has seen it: the answer was true when it was given. If you need the row until the
//     commit, use FOR KEY SHARE in find; a row that refers to it by a foreign key has the same effect.
//
// Under RepeatableRead and Serializable both see what was committed before the transaction's first statement:
//
//   - A row from before: found, even if it is deleted by now (unless find locks it: 40001). If a new row has replaced
//     it since: as in the next case.
//   - A row committed since: create runs into it and cannot see it. Postgres answers 40001, and a second attempt in
//     this transaction would fare no better.
//   - Serializable may notice only at the commit: 40001 there is the caller's.
//
// An aborted transaction (25P02) takes neither statement.

func checkNatural(tx samekey.Tx, create, find Statement, noRow bool) error {
	if err := keyed.CheckTx(tx); err != nil {
		return err
	}
	text := sqltext.Bare(create.SQL)
	switch {
	case strings.TrimSpace(create.SQL) == "":
		return errors.New("create has no SQL: give an INSERT .. ON CONFLICT (..) DO NOTHING RETURNING ..")
	case strings.TrimSpace(find.SQL) == "":
		return errors.New("find has no SQL: give a SELECT by the natural key")
	case noRow:
		return errors.New("row is nil: give pgx.RowTo[T], or pgx.RowToStructByName[T] for several columns")
	case sqltext.FirstWord(create.SQL) != "insert":
		return errors.New("create does not begin with INSERT, and could return an existing row as new: write INSERT INTO .. WITH .. SELECT .. ON CONFLICT (..) DO NOTHING RETURNING ..")
	case doUpdate.MatchString(text):
		return errors.New("create has DO UPDATE, which returns a row whether it is new or not: use DO NOTHING, and update the row that was found; or run a plain upsert")
	case !doNothing.MatchString(text):
		return errors.New("create is an INSERT without ON CONFLICT .. DO NOTHING, so a duplicate would abort the transaction: add ON CONFLICT (the key's columns) DO NOTHING")
	case inserts.MatchString(sqltext.Bare(find.SQL)):
		return errors.New("find inserts, and would return a new row as an existing one: give a SELECT by the natural key")
	}
	return nil
}

// The patterns read the text without its comments and literals (sqltext.Bare).
var (
	doNothing = regexp.MustCompile(`(?is)\bon\s+conflict\b.*\bdo\s+nothing\b`)
	doUpdate  = regexp.MustCompile(`(?i)\bdo\s+update\b`)
	inserts   = regexp.MustCompile(`(?i)\b(insert|merge)\s+into\b`)
)

var errNoColumns = errors.New("the statement returns no columns: add RETURNING with the columns that find selects")

// oneRow returns nil if a valid statement returned no row.
func oneRow[T any](rows pgx.Rows, err error, row pgx.RowToFunc[T]) (*T, error) {
	if err != nil {
		return nil, err
	}
	value, err := pgx.CollectExactlyOneRow(rows, row)
	switch {
	case errors.Is(err, pgx.ErrNoRows) && len(rows.FieldDescriptions()) == 0:
		return nil, errNoColumns
	case errors.Is(err, pgx.ErrNoRows):
		return nil, nil
	case err != nil:
		return nil, err
	}
	return &value, nil
}

func naturalError(statement string, err error) error {
	switch state := sqlstate.Of(err); {
	case state == sqlstate.Aborted:
		return fmt.Errorf("processed: FindOrCreate: %s: an earlier statement aborted the transaction: roll it back: %w", statement, err)
	case sqlstate.Transient(state):
		return unstored("processed: FindOrCreate: %s: roll back, and run the whole transaction again: %w", statement, err)
	case state == sqlstate.UniqueViolation:
		return fmt.Errorf("processed: FindOrCreate: %s: the row violates a unique constraint that ON CONFLICT does not name, and the transaction is aborted: roll back, and treat the row as no duplicate; or name that constraint in ON CONFLICT DO NOTHING and find by it: %w", statement, err)
	}
	if errors.Is(err, pgx.ErrTooManyRows) {
		return fmt.Errorf("processed: FindOrCreate: %s returned more than one row: roll back, and select by the natural key: %w", statement, err)
	}
	return fmt.Errorf("processed: FindOrCreate: %s: %w", statement, err)
}
