package processed

import (
	"context"
	"errors"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/samekey/samekey"
	"github.com/samekey/samekey/internal/keyed"
)

// errOwned is what Commit and Rollback of Run's transaction return, and what a
// statement that ends it does.
var errOwned = errors.New("processed: the transaction is owned by Run: return nil to commit it, an error to roll it back")

// runTx is the pgx.Tx that Run gives to the function. It knows the request's
// key, and queues intents (keyed.Queue).
type runTx struct {
	tx pgx.Tx // the real one, or a savepoint's
	q  *queue
	//nolint:containedctx // Conn has no context of its own
	ctx    context.Context
	nested bool
	nest   int // the number of a nested one
}

var (
	_ pgx.Tx      = (*runTx)(nil)
	_ keyed.Queue = (*runTx)(nil)
)

func (t *runTx) RequestKey() samekey.Key { return t.q.key }

func (t *runTx) Enqueue(in keyed.Intent) (uuid.UUID, bool, error) { return t.q.enqueue(in) }

func (t *runTx) Wrote(action string) { t.q.wrote(action) }

// spoil keeps Run from committing.
func (t *runTx) spoil(err error) { t.q.fail(err) }

// Begin starts a nested transaction, a savepoint.
func (t *runTx) Begin(ctx context.Context) (pgx.Tx, error) {
	if err := t.q.enter(); err != nil {
		return nil, err
	}
	defer t.q.exit()
	if err := t.q.flush(ctx, t.tx.Conn()); err != nil {
		return nil, err
	}
	nested, err := t.tx.Begin(ctx)
	if err != nil {
		return nil, err
	}
	return &runTx{tx: nested, q: t.q, ctx: t.ctx, nested: true, nest: t.q.nest()}, nil
}

// Commit releases a nested transaction. That of Run is not the function's to
// commit.
func (t *runTx) Commit(ctx context.Context) error {
	if err := t.q.enter(); err != nil {
		return err
	}
	defer t.q.exit()
	if !t.nested {
		return errOwned
	}
	return t.tx.Commit(ctx)
}

// Rollback rolls back a nested transaction, what was queued in it included.
func (t *runTx) Rollback(ctx context.Context) error {
	if err := t.q.enter(); err != nil {
		return err
	}
	defer t.q.exit()
	if !t.nested {
		return errOwned
	}
	err := t.tx.Rollback(ctx)
	if err == nil {
		t.q.rollback(t.nest)
	}
	return err
}

func (t *runTx) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	if err := t.q.enter(); err != nil {
		return pgconn.CommandTag{}, err
	}
	defer t.q.exit()
	if err := t.admit(ctx, sql, args); err != nil {
		return pgconn.CommandTag{}, err
	}
	return t.tx.Exec(ctx, sql, args...)
}

func (t *runTx) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	if err := t.q.enter(); err != nil {
		return refusedRows{err: err}, err
	}
	defer t.q.exit()
	if err := t.admit(ctx, sql, args); err != nil {
		return refusedRows{err: err}, err
	}
	rows, err := t.tx.Query(ctx, sql, args...)
	return runRows{rows, t}, err
}

func (t *runTx) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	if err := t.q.enter(); err != nil {
		return refusedRows{err: err}
	}
	defer t.q.exit()
	if err := t.admit(ctx, sql, args); err != nil {
		return refusedRows{err: err}
	}
	return t.tx.QueryRow(ctx, sql, args...)
}

func (t *runTx) Prepare(ctx context.Context, name, sql string) (*pgconn.StatementDescription, error) {
	if err := t.q.enter(); err != nil {
		return nil, err
	}
	defer t.q.exit()
	if endsTransaction(sql) {
		return nil, errOwned
	}
	return t.tx.Prepare(ctx, name, sql)
}

func (t *runTx) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	if err := t.q.enter(); err != nil {
		return pgx.FailedBatchResults(b, err)
	}
	defer t.q.exit()
	for _, query := range b.QueuedQueries {
		if err := t.admit(ctx, query.SQL, query.Arguments); err != nil {
			return pgx.FailedBatchResults(b, err)
		}
	}
	return t.tx.SendBatch(ctx, b)
}

func (t *runTx) CopyFrom(ctx context.Context, table pgx.Identifier, columns []string, source pgx.CopyFromSource) (int64, error) {
	if err := t.q.enter(); err != nil {
		return 0, err
	}
	defer t.q.exit()
	return t.tx.CopyFrom(ctx, table, columns, source)
}

// LargeObjects returns those of a closed transaction once Run has ended.
func (t *runTx) LargeObjects() pgx.LargeObjects {
	if err := t.q.enter(); err != nil {
		batch := &pgx.Batch{}
		batch.BeginTx(pgx.TxOptions{})
		return pgx.FailedBatchResults(batch, err).Tx().LargeObjects()
	}
	defer t.q.exit()
	t.q.setLarge()
	return t.tx.LargeObjects()
}

// Conn returns the connection itself, past which nothing is seen any more: what
// is queued is written before.
func (t *runTx) Conn() *pgx.Conn {
	conn := t.tx.Conn()
	if t.q.enter() == nil {
		defer t.q.exit()
		t.q.flushAll(t.ctx, conn)
	}
	return conn
}

// runRows are the rows of Run's transaction: their connection is its own.
type runRows struct {
	pgx.Rows
	tx *runTx
}

func (r runRows) Conn() *pgx.Conn { return r.tx.Conn() }

// admit refuses statements that would end the transaction, and writes what is
// queued before a statement that may set a savepoint or roll back to one.
func (t *runTx) admit(ctx context.Context, sql string, args []any) error {
	if endsTransaction(sql) {
		return errOwned
	}
	if !plain(sql, args) {
		return t.q.flush(ctx, t.tx.Conn())
	}
	return nil
}

// plain reports whether sql is certainly one statement that has nothing to do with
// savepoints. Of the rest much is harmless too (a prepared statement's name, a
// literal with a semicolon): it costs a round trip where intents are queued.
func plain(sql string, args []any) bool {
	for _, arg := range args {
		switch arg.(type) {
		case pgx.NamedArgs, pgx.StrictNamedArgs: // put in arguments only
		case pgx.QueryRewriter:
			return false
		}
	}
	first, rest := word(sql)
	if rest == "" || !strings.ContainsRune(" \t\r\n(*-/'", rune(rest[0])) {
		return false
	}
	switch first {
	case "select", "insert", "update", "delete", "with", "values", "merge":
		return !strings.Contains(strings.TrimRight(rest, "; \t\r\n"), ";")
	}
	return false
}

// endsTransaction reports whether a statement of sql begins or ends a transaction.
// It is help for those who err: Run also looks at the state that the function
// leaves behind, and whether the transaction is still the one that it began.
func endsTransaction(sql string) bool {
	for more := true; more; sql, more = nextStatement(sql) {
		if first, rest := word(sql); endsWith(first, rest) {
			return true
		} else if first == "create" && strings.Contains(strings.ToLower(rest), "atomic") {
			return false // the body of a function in SQL: its END is no statement
		}
	}
	return false
}

// endsWith looks at the first words of one statement.
func endsWith(first, rest string) bool {
	second, rest := word(rest)
	switch first {
	case "commit", "end", "abort", "begin":
		return true
	case "start", "prepare":
		return second == "transaction"
	case "rollback":
		third, _ := word(rest)
		return second != "to" && third != "to"
	}
	return false
}

// nextStatement returns what follows the first semicolon of sql that is not in a
// literal, a name or a comment.
func nextStatement(sql string) (rest string, ok bool) {
	last := strings.LastIndexByte(sql, ';') // most texts have none
	for i := 0; i <= last; i++ {
		switch sql[i] {
		case ';':
			return sql[i+1:], true
		case '\'':
			i = afterQuoted(sql, i, i > 0 && sql[i-1]|0x20 == 'e' && (i == 1 || !inName(sql[i-2]))) - 1
		case '"':
			i = afterQuoted(sql, i, false) - 1
		case '$':
			if tag := dollarTag(sql, i); tag != "" {
				end := strings.Index(sql[i+len(tag):], tag)
				if end < 0 {
					return "", false
				}
				i += end + 2*len(tag) - 1
			}
		case '-', '/':
			if strings.HasPrefix(sql[i:], "--") || strings.HasPrefix(sql[i:], "/*") {
				i = len(sql) - len(skipComments(sql[i:])) - 1
			}
		}
	}
	return "", false
}

// afterQuoted returns the index behind what is quoted at i. A quotation mark that
// is written twice begins it again.
func afterQuoted(sql string, i int, escapes bool) int {
	quote := sql[i]
	for i++; i < len(sql); i++ {
		switch {
		case escapes && sql[i] == '\\':
			i++
		case sql[i] == quote:
			return i + 1
		}
	}
	return len(sql)
}

// dollarTag returns the tag that begins a dollar-quoted literal at i, "" for none.
func dollarTag(sql string, i int) string {
	if i > 0 && inName(sql[i-1]) {
		return ""
	}
	end := i + 1
	for end < len(sql) && inName(sql[end]) && sql[end] != '$' {
		end++
	}
	if end == len(sql) || sql[end] != '$' || end > i+1 && sql[i+1] >= '0' && sql[i+1] <= '9' {
		return ""
	}
	return sql[i : end+1]
}

func inName(c byte) bool {
	return c|0x20 >= 'a' && c|0x20 <= 'z' || c >= '0' && c <= '9' || c == '_' || c == '$' || c >= 0x80
}

// word returns the first word of sql in lower case, and what follows. White space
// and comments before it are left out. No keyword that matters here is longer
// than 16 bytes.
func word(sql string) (first, rest string) {
	sql = skipComments(sql)
	end := 0
	for end < len(sql) && end < 16 && (sql[end]|0x20 >= 'a' && sql[end]|0x20 <= 'z') {
		end++
	}
	return strings.ToLower(sql[:end]), sql[end:]
}

// skipComments returns sql from its first byte that is neither white space nor in
// a comment, as Postgres counts them: comments in /* */ nest.
func skipComments(sql string) string {
	for {
		sql = strings.TrimLeft(sql, " \t\r\n\f\v")
		switch {
		case strings.HasPrefix(sql, "--"):
			end := strings.IndexAny(sql, "\r\n")
			if end < 0 {
				return ""
			}
			sql = sql[end:]
		case strings.HasPrefix(sql, "/*"):
			sql = afterComment(sql[2:])
		default:
			return sql
		}
	}
}

// afterComment returns what follows the comment in which sql begins.
func afterComment(sql string) string {
	for depth := 1; depth > 0; {
		at := strings.IndexAny(sql, "*/")
		if at < 0 || at+1 == len(sql) {
			return ""
		}
		switch sql[at : at+2] {
		case "/*":
			depth++
		case "*/":
			depth--
		default:
			at-- // one of the two by itself
		}
		sql = sql[at+2:]
	}
	return sql
}

// refusedRows are the rows of a statement that was not sent.
type refusedRows struct{ err error }

func (r refusedRows) Close()                                       {}
func (r refusedRows) Err() error                                   { return r.err }
func (r refusedRows) CommandTag() pgconn.CommandTag                { return pgconn.CommandTag{} }
func (r refusedRows) FieldDescriptions() []pgconn.FieldDescription { return nil }
func (r refusedRows) Next() bool                                   { return false }
func (r refusedRows) Scan(...any) error                            { return r.err }
func (r refusedRows) Values() ([]any, error)                       { return nil, r.err }
func (r refusedRows) RawValues() [][]byte                          { return nil }
func (r refusedRows) Conn() *pgx.Conn                              { return nil }
func (r refusedRows) TypeMap() *pgtype.Map                         { return pgtype.NewMap() }
