package processed

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/samekey/samekey"
	"github.com/samekey/samekey/internal/sqlstate"
)

// maxCreates bounds how often a row that is gone again before it is found is
// created anew. Twice in a row takes two other transactions that hit the gap
// between two statements; five times is a mistake in the statements.
const maxCreates = 5

// Statement is an SQL statement and its arguments, as tx.Query takes them. Over
// a pgx.Tx, Args may be one pgx.NamedArgs, and the two statements of
// [FindOrCreate] may share it.
type Statement struct {
	SQL  string
	Args []any
}

// FindOrCreate returns the one row that has a natural key: the row that create
// inserts, or, with Result.Deduplicated, the row that was there already and that
// find selects. However many call at once and in whatever order they end, one
// row is made, and every call that succeeds has it. What the same is, a unique
// constraint of the table says, and nothing else.
//
//	res, err := processed.FindOrCreate(ctx, tx,
//		processed.Statement{SQL: `insert into tickets (customer, subject, day) values ($1, $2, $3)
//			on conflict (customer, subject_norm, day) do nothing returning id`, Args: []any{customer, subject, day}},
//		processed.Statement{SQL: `select id from tickets
//			where customer = $1 and subject_norm = normal_subject($2) and day = $3`, Args: []any{customer, subject, day}},
//		pgx.RowTo[int64])
//
// create is an INSERT .. ON CONFLICT (the key's columns) DO NOTHING RETURNING ..,
// find a SELECT of the same columns by the same key. row makes the value of
// either's row, as for pgx.CollectOneRow: pgx.RowTo for one column,
// pgx.RowToStructByName or pgx.RowToStructByPos for several. The statements are
// sent as they are, create first: one round trip where the row is new, two where
// it is found. Result.Failure is always nil.
//
// What else create would have written is not compared: a row that is found stays
// as it is. An effect that belongs to the row's creation, such as an intent, is
// written in the same transaction and only where Deduplicated is false.
//
// tx is the caller's transaction: that of [Run] or [Do], a pgx.Tx, or
// samekey.SQL of a *sql.Tx. A pool or a connection is refused: the row would be
// committed before what belongs to it is written.
//
// The errors say what to do. After an error of the database's the transaction is
// aborted, and only to be rolled back.
//
//   - [SafeToRetry]: transactions got into each other's way (SQLSTATE 40001,
//     40P01, 55P03), among them under RepeatableRead and Serializable that the row
//     was committed by one which this one cannot see. Roll back, and run the whole
//     transaction again. In Run return the error: after 40001 and 40P01 it runs
//     the function again by itself.
//   - SQLSTATE 23505: create met another unique constraint than the one that its
//     ON CONFLICT names. The row is no duplicate by the natural key, and what it
//     is instead is the caller's to say.
//   - Neither statement had a row, five times over: find looks for something else
//     than what create ran into.
//   - Refused before anything is sent, so that the transaction stays usable: an
//     INSERT without ON CONFLICT, whose first duplicate would abort the
//     transaction; and DO UPDATE, which returns a row in either case, so that
//     nobody could say whether it is new. A plain upsert needs no help.
//
// A sequence is drawn from at each call: numbers have gaps.
func FindOrCreate[T any](ctx context.Context, tx samekey.Tx, create, find Statement, row pgx.RowToFunc[T]) (Result[T], error) {
	if err := checkNatural(tx, create, find, row == nil); err != nil {
		return Result[T]{}, fmt.Errorf("processed: FindOrCreate: %w", err)
	}
	for range maxCreates {
		value, err := oneRow(ctx, tx, create, row)
		if err == nil {
			return Result[T]{Value: value}, nil
		}
		if !errors.Is(err, pgx.ErrNoRows) {
			return Result[T]{}, naturalError("create", err)
		}
		value, err = oneRow(ctx, tx, find, row)
		if err == nil {
			return Result[T]{Value: value, Deduplicated: true}, nil
		}
		if !errors.Is(err, pgx.ErrNoRows) {
			return Result[T]{}, naturalError("find", err)
		}
	}
	return Result[T]{}, fmt.Errorf("processed: FindOrCreate: create inserted no row and find selected none, %d times: let find select by the very constraint that create names in ON CONFLICT, and look for a WHERE, a trigger or a row policy that hides the row", maxCreates)
}

// What can happen between the two statements, and to them.
//
// Under ReadCommitted each statement sees what is committed when it begins:
//
//   - No row with the key: create inserts it. Others wait for this transaction.
//   - A committed row, or one of this transaction's own: create gives no row, and
//     find, a statement of its own with a snapshot of its own, sees it. As one
//     statement (WITH .. UNION ALL SELECT) the snapshot would predate the wait
//     below, and there would be no row at all.
//   - A peer inserted it and has not ended: create waits. The peer commits: as
//     above. It rolls back, whole or to a savepoint: create inserts. lock_timeout
//     passes (55P03), or the peer comes to wait for us too (40P01): everything
//     again, later.
//   - A peer deletes it, or gives it another key, and has not ended: create waits
//     too, and inserts if the peer commits. The same after create gave no row and
//     before find looks: then neither has a row, and create is sent again.
//   - Deleted after find has seen it: the answer was true when it was given. Who
//     needs the row until the commit says FOR KEY SHARE in find; a row that refers
//     to it by a foreign key does that by itself.
//
// Under RepeatableRead and Serializable both see what was committed before the
// transaction's first statement:
//
//   - A row from before: found, even where it is deleted by now (unless find locks
//     it: 40001). A deleted row that a new one has replaced since: as the next.
//   - A row committed since: create runs into it and cannot see it. Postgres
//     answers 40001, and a second try in this transaction would be no better.
//   - Serializable may find out at the commit only: 40001 there is the caller's.
//
// An aborted transaction (25P02) takes neither statement.

func checkNatural(tx samekey.Tx, create, find Statement, noRow bool) error {
	switch tx.(type) {
	case nil:
		return errors.New("tx is nil: begin a transaction")
	case *pgxpool.Pool, *pgxpool.Conn, *pgx.Conn:
		return fmt.Errorf("tx is a %T, where each statement commits by itself: begin a transaction, or call it in Run", tx)
	}
	first, _ := word(create.SQL)
	switch {
	case strings.TrimSpace(create.SQL) == "":
		return errors.New("create has no SQL: give an INSERT .. ON CONFLICT (..) DO NOTHING RETURNING ..")
	case strings.TrimSpace(find.SQL) == "":
		return errors.New("find has no SQL: give a SELECT by the natural key")
	case noRow:
		return errors.New("row is nil: give pgx.RowTo[T], or pgx.RowToStructByName[T] for several columns")
	case doUpdate.MatchString(create.SQL):
		return errors.New("create says DO UPDATE, which returns a row whether it is new or not: say DO NOTHING, and update what was found; or run a plain upsert")
	case first == "insert" && !onConflict.MatchString(create.SQL):
		return errors.New("create is an INSERT without ON CONFLICT, which a duplicate would turn into an aborted transaction: say ON CONFLICT (the key's columns) DO NOTHING")
	}
	return nil
}

// They look at the text, which is help for those who err: what they miss fails
// in the database.
var (
	onConflict = regexp.MustCompile(`(?i)\bon\s+conflict\b`)
	doUpdate   = regexp.MustCompile(`(?i)\bdo\s+update\b`)
)

var errNoColumns = errors.New("the statement returns no columns: say RETURNING what find selects")

// oneRow returns pgx.ErrNoRows where the statement, a good one, gave none.
func oneRow[T any](ctx context.Context, tx samekey.Tx, s Statement, row pgx.RowToFunc[T]) (T, error) {
	rows, err := tx.Query(ctx, s.SQL, s.Args...)
	if err != nil {
		var none T
		return none, err
	}
	value, err := pgx.CollectExactlyOneRow(rows, row)
	if errors.Is(err, pgx.ErrNoRows) && len(rows.FieldDescriptions()) == 0 {
		return value, errNoColumns
	}
	return value, err
}

func naturalError(statement string, err error) error {
	switch sqlstate.Of(err) {
	case sqlstate.Aborted:
		return fmt.Errorf("processed: FindOrCreate: %s: the transaction was aborted by an earlier statement, roll it back: %w", statement, err)
	case sqlstate.Serialization, sqlstate.Deadlock, sqlstate.LockTimeout:
		return unstored("processed: FindOrCreate: %s: roll back and run the whole transaction again: %w", statement, err)
	case sqlstate.UniqueViolation:
		return fmt.Errorf("processed: FindOrCreate: %s: a unique constraint that ON CONFLICT does not name is violated, and the transaction aborted: roll back, and treat it as no duplicate; or say ON CONFLICT DO NOTHING for that constraint and find by it: %w", statement, err)
	}
	if errors.Is(err, pgx.ErrTooManyRows) {
		return fmt.Errorf("processed: FindOrCreate: %s has more than one row: roll back, and give one that has one by the natural key: %w", statement, err)
	}
	return fmt.Errorf("processed: FindOrCreate: %s: %w", statement, err)
}
