package processed_test

import (
	"context"
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/samekey/samekey/processed"
)

// late is an argument that pgx rewrites when it runs the statement, as pgx.NamedArgs is.
type late struct{ begun, goOn chan struct{} }

func (l late) RewriteQuery(_ context.Context, _ *pgx.Conn, sql string, _ []any) (string, []any, error) {
	close(l.begun)
	<-l.goOn
	return sql, nil, nil
}

// A goroutine that the function has left behind in a statement must not find the connection in the hands of the next
// request.
func TestStatementLeftBehindReachesNoOtherTransaction(t *testing.T) {
	for name, end := range map[string]func() error{
		"the function returned": func() error { return nil },
		"it failed":             func() error { return errors.New("mine") },
		"it kept a failure":     func() error { return processed.Fail(409, nil) },
		"it panicked":           func() error { panic("mine") },
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t)
			pool := b.pool(b.db.DSN, 1, nil)
			arg, done := late{make(chan struct{}), make(chan struct{})}, make(chan error, 1)
			func() {
				defer func() { _ = recover() }()
				_, err := processed.Run(t.Context(), pool, request(t, "k1", "1"), func(ctx context.Context, tx pgx.Tx) (int, error) {
					go func() {
						_, err := tx.Exec(context.WithoutCancel(ctx), "insert into orders (id, amount) values ('late', 1)", arg)
						done <- err
					}()
					<-arg.begun
					return 1, end()
				})
				if err == nil || name == "the function returned" && !errors.Is(err, processed.ErrAborted) {
					t.Errorf("the first: %v", err)
				}
			}()
			_, err := processed.Run(t.Context(), pool, request(t, "k2", "1"), func(ctx context.Context, tx pgx.Tx) (int, error) {
				close(arg.goOn)
				if err := <-done; err == nil {
					t.Error("the late statement was executed")
				}
				return 2, nil
			})
			if err != nil {
				t.Errorf("the second: %v", err)
			}
			b.stored(0, 0, 1)
		})
	}
}
