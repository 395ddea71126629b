package samekeytest

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/samekey/samekey/internal/sqlstate"
)

// Elapse makes everything stored in the Postgres schema samekey older by d. Intents become due, leases and deadlines
// expire, key windows close and retention ends, without a wait. To test both sides of a limit of 60 s, call it with 59
// s and then 2 s.
//
// It moves every timestamptz column of every table back, in one transaction. It reads the columns from the catalog, so
// new columns move too. It moves neither River's tables nor what a program has in memory: a running dispatcher finds
// due intents at its next full scan, within about a second. The times inside UUIDs stay.
//
// A negative d moves everything into the future. The test fails if a row stays locked for ten seconds: end open
// transactions first.
func Elapse(t testing.TB, db interface {
	Begin(ctx context.Context) (pgx.Tx, error)
}, d time.Duration) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	try := func() error {
		return pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, "set local lock_timeout = '10s'"); err != nil {
				return err
			}
			statements, err := elapseStatements(ctx, tx)
			if err != nil {
				return err
			}
			for _, statement := range statements {
				if _, err := tx.Exec(ctx, statement, d); err != nil {
					return fmt.Errorf("%s: %w", statement, err)
				}
			}
			return nil
		})
	}
	err := try()
	for sqlstate.Of(err) == sqlstate.Deadlock && ctx.Err() == nil { // a worker locks the rows of some tables in another order
		err = try()
	}
	if err != nil {
		t.Fatalf("samekeytest: let %s pass: %v", d, err)
	}
}

// elapseStatements returns one UPDATE per table with times. Partitions move with their parent, and generated columns by
// themselves.
func elapseStatements(ctx context.Context, tx pgx.Tx) ([]string, error) {
	rows, err := tx.Query(ctx, `
		select c.relname, array_agg(a.attname::text order by a.attnum)
		from pg_class c
		join pg_namespace n on n.oid = c.relnamespace
		join pg_attribute a on a.attrelid = c.oid
		where n.nspname = 'samekey'
		  and c.relkind in ('r', 'p') and not c.relispartition
		  and c.relname not like 'river\_%'
		  and a.atttypid = 'timestamptz'::regtype
		  and a.attnum > 0 and a.attgenerated = ''
		group by c.relname
		order by c.relname`)
	if err != nil {
		return nil, err
	}
	var (
		statements []string
		table      string
		columns    []string
	)
	_, err = pgx.ForEachRow(rows, []any{&table, &columns}, func() error {
		moves := make([]string, len(columns))
		for i, column := range columns {
			moves[i] = fmt.Sprintf("%[1]s = %[1]s - $1::interval", quote(column))
		}
		statements = append(statements, fmt.Sprintf("update %s set %s",
			pgx.Identifier{"samekey", table}.Sanitize(), strings.Join(moves, ", ")))
		return nil
	})
	if err == nil && len(statements) == 0 {
		err = fmt.Errorf("no table with times in schema samekey: use a migrated database")
	}
	return statements, err
}
