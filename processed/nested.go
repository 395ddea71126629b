package processed

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/samekey/samekey"
	"github.com/samekey/samekey/internal/guarded"
	"github.com/samekey/samekey/internal/keyed"
)

// nestedWait bounds the wait for a connection inside Do: Do may itself hold the connection that Run waits for.
const nestedWait = 5 * time.Second

// call is a running call, as the context of its function knows it.
type call struct {
	pool  *pgxpool.Pool // nil in Do, which does not know its transaction's pool; betweenSteps in Steps
	conn  *pgx.Conn     // nil if unknown
	key   samekey.Key
	gate  *guarded.Gate
	outer *call
}

type callKey struct{}

// running returns the context for the function, with this call in it.
func (m *memory) running(ctx context.Context, pool *pgxpool.Pool, conn *pgx.Conn, g *guarded.Gate) context.Context {
	outer, _ := ctx.Value(callKey{}).(*call)
	return context.WithValue(ctx, callKey{}, &call{pool: pool, conn: conn, key: m.key, gate: g, outer: outer})
}

// outerCall returns the nearest running call for which fits is true. A call that has returned does not count, so a
// goroutine may continue with its context.
func outerCall(ctx context.Context, fits func(*call) bool) *call {
	c, _ := ctx.Value(callKey{}).(*call)
	for ; c != nil; c = c.outer {
		if !c.gate.Over() && fits(c) {
			return c
		}
	}
	return nil
}

// checkNested refuses Run inside Run on one pool. If outer calls hold every connection, each waits for the connection
// of another's inner call, forever. It is always refused, and not only when the pool is exhausted, so that it does not
// appear only under load.
func (m *memory) checkNested(ctx context.Context, pool *pgxpool.Pool) error {
	outer := outerCall(ctx, func(c *call) bool { return c.pool == pool || c.pool == betweenSteps && c.key == m.key })
	switch {
	case outer == nil, outer.pool == betweenSteps && m.step != nil:
		return nil
	case outer.key == m.key:
		return m.sameKeyError()
	}
	return fmt.Errorf("%w: Run of key:%s in Run of key:%s, on the same pool: call Do with the outer transaction, or call Run after the outer one has returned",
		ErrNested, m.key.Hash(), outer.key.Hash())
}

// checkSameKey refuses Do if its transaction may be that of an outer call with the same key: the outer call's lock
// would let it in.
func (m *memory) checkSameKey(ctx context.Context, conn *pgx.Conn) error {
	if outerCall(ctx, func(c *call) bool { return c.key == m.key && (c.conn == nil || conn == nil || c.conn == conn) }) != nil {
		return m.sameKeyError()
	}
	return nil
}

// inFlight is the error if another session holds the key's lock. If an outer call has the same key, that call holds the
// lock, and a retry would meet it again.
func (m *memory) inFlight(ctx context.Context) error {
	switch {
	case m.step != nil:
		return m.takenOver()
	case outerCall(ctx, func(c *call) bool { return c.key == m.key }) != nil:
		return m.sameKeyError()
	}
	return m.named(ErrInFlight)
}

func (m *memory) sameKeyError() error {
	return fmt.Errorf("%w: an outer call is doing the request with the same key (key:%s): use another key, or leave out this call", ErrNested, m.key.Hash())
}

// connOf returns the connection of the caller's transaction. It is nil if that is unknown (database/sql), and for a
// transaction of ours, which is checked by its key.
func connOf(tx samekey.Tx) *pgx.Conn {
	if _, ours := tx.(keyed.Tx); ours {
		return nil
	}
	if t, ok := tx.(interface{ Conn() *pgx.Conn }); ok {
		return t.Conn()
	}
	return nil
}
