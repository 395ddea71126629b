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
// created again. Twice in a row takes two other transactions that hit the gap
// between two statements; five times is a mistake in the statements.
const maxCreates = 5

// Statement is an SQL statement and its arguments, as tx.Query takes them, without
// options. Over a pgx.Tx, Args may be one pgx.NamedArgs, and the two statements of
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
// sent as they are, create first, in one round trip over a pgx.Tx and in two over
// database/sql.
//
// A new row is one that create inserted, and that find selects too: a row that
// find does not see has a NULL in its key, which no other equals, or has another
// key than find asks for. Both would make a row at each call, and are refused.
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
//   - create inserted a row that find does not select: roll back. Declare the key's
//     columns NOT NULL, or the constraint NULLS NOT DISTINCT with an IS NOT DISTINCT
//     FROM in find.
//   - Neither statement had a row, five times over: find looks for something else
//     than what create ran into.
//   - Refused before anything is sent, so that the transaction stays usable: a
//     create that does not begin with INSERT, such as WITH, which could return a row
//     that was there as a new one (put the WITH behind INSERT INTO ..); an INSERT
//     without ON CONFLICT .. DO NOTHING, whose first duplicate would abort the
//     transaction; DO UPDATE, which returns a row in either case, so that nobody
//     could say whether it is new (a plain upsert needs no help); and a find that
//     inserts.
//
// A sequence is drawn from at each call: numbers have gaps.
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
			return Result[T]{}, errors.New("processed: FindOrCreate: create inserted a row that find does not select, and would insert another each time: roll back. Its key has a NULL (declare the columns NOT NULL, or the constraint NULLS NOT DISTINCT and find with IS NOT DISTINCT FROM), or find selects by something else than the constraint")
		case made != nil:
			return Result[T]{Value: *made}, nil
		case found != nil:
			return Result[T]{Value: *found, Deduplicated: true}, nil
		}
	}
	return Result[T]{}, fmt.Errorf("processed: FindOrCreate: create inserted no row and find selected none, %d times: let find select by the very constraint that create names in ON CONFLICT, and look for a WHERE, a trigger or a row policy that hides the row", maxCreates)
}

// createAndFind sends both statements, find in either case. Each is a statement of
// its own, with a snapshot of its own.
func createAndFind[T any](ctx context.Context, tx samekey.Tx, create, find Statement, row pgx.RowToFunc[T]) (made, found *T, err error) {
	sender, ok := tx.(batcher)
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
// Under ReadCommitted each statement sees what is committed when it begins:
//
//   - No row with the key: create inserts it, and find, which comes later, sees it.
//     Others wait for this transaction.
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
	text := bare(create.SQL)
	switch {
	case strings.TrimSpace(create.SQL) == "":
		return errors.New("create has no SQL: give an INSERT .. ON CONFLICT (..) DO NOTHING RETURNING ..")
	case strings.TrimSpace(find.SQL) == "":
		return errors.New("find has no SQL: give a SELECT by the natural key")
	case noRow:
		return errors.New("row is nil: give pgx.RowTo[T], or pgx.RowToStructByName[T] for several columns")
	case first != "insert":
		return errors.New("create does not begin with INSERT, and could return a row that was there as a new one: write INSERT INTO .. WITH .. SELECT .. ON CONFLICT (..) DO NOTHING RETURNING ..")
	case doUpdate.MatchString(text):
		return errors.New("create says DO UPDATE, which returns a row whether it is new or not: say DO NOTHING, and update what was found; or run a plain upsert")
	case !doNothing.MatchString(text):
		return errors.New("create is an INSERT without ON CONFLICT .. DO NOTHING, which a duplicate would turn into an aborted transaction: say ON CONFLICT (the key's columns) DO NOTHING")
	case inserts.MatchString(bare(find.SQL)):
		return errors.New("find inserts, and would return a new row as one that was there: give a SELECT by the natural key")
	}
	return nil
}

// They look at the text without its comments and literals.
var (
	doNothing = regexp.MustCompile(`(?is)\bon\s+conflict\b.*\bdo\s+nothing\b`)
	doUpdate  = regexp.MustCompile(`(?i)\bdo\s+update\b`)
	inserts   = regexp.MustCompile(`(?i)\b(insert|merge)\s+into\b`)
	dollar    = regexp.MustCompile(`^\$([A-Za-z_\x80-\xff][A-Za-z0-9_\x80-\xff]*)?\$`)
)

// bare returns sql with a space in the place of each comment, literal and quoted
// name.
func bare(sql string) string {
	var b strings.Builder
	last := byte(' ')
	for sql != "" {
		rest, skipped := sql, true
		switch {
		case strings.HasPrefix(sql, "--"), strings.HasPrefix(sql, "/*"):
			rest = skipComments(sql)
		case sql[0] == '\'' || sql[0] == '"':
			rest = afterQuote(sql, last|0x20 == 'e')
		case sql[0] == '$' && dollar.MatchString(sql):
			tag := dollar.FindString(sql)
			_, rest, _ = strings.Cut(sql[len(tag):], tag)
		default:
			skipped = false
			b.WriteByte(sql[0])
			rest = sql[1:]
		}
		if last = sql[0]; skipped {
			b.WriteByte(' ')
			last = ' '
		}
		sql = rest
	}
	return b.String()
}

// afterQuote returns what follows the quoted text with which sql begins. A quotation
// mark that is doubled begins another one right behind. In E'..' a backslash
// escapes.
func afterQuote(sql string, escapes bool) string {
	for i := 1; i < len(sql); i++ {
		switch {
		case sql[i] == '\\' && escapes && sql[0] == '\'':
			i++
		case sql[i] == sql[0]:
			return sql[i+1:]
		}
	}
	return ""
}

var errNoColumns = errors.New("the statement returns no columns: say RETURNING what find selects")

// oneRow returns nil where the statement, a good one, gave no row.
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
		return fmt.Errorf("processed: FindOrCreate: %s: the transaction was aborted by an earlier statement, roll it back: %w", statement, err)
	case sqlstate.Transient(state):
		return unstored("processed: FindOrCreate: %s: roll back and run the whole transaction again: %w", statement, err)
	case state == sqlstate.UniqueViolation:
		return fmt.Errorf("processed: FindOrCreate: %s: a unique constraint that ON CONFLICT does not name is violated, and the transaction aborted: roll back, and treat it as no duplicate; or say ON CONFLICT DO NOTHING for that constraint and find by it: %w", statement, err)
	}
	if errors.Is(err, pgx.ErrTooManyRows) {
		return fmt.Errorf("processed: FindOrCreate: %s has more than one row: roll back, and give one that has one by the natural key: %w", statement, err)
	}
	return fmt.Errorf("processed: FindOrCreate: %s: %w", statement, err)
}
