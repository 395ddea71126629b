package processed

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/samekey/samekey"
	"github.com/samekey/samekey/internal/keyed"
)

// nestedWait bounds the wait for a connection inside Do, whose own connection may
// be the one that is waited for.
const nestedWait = 5 * time.Second

// call is one that is running, as the context of its function knows it.
type call struct {
	pool  *pgxpool.Pool // nil in Do, which does not know where its transaction is from
	conn  *pgx.Conn     // nil where that is not known
	key   samekey.Key
	gate  *gate
	outer *call
}

type callKey struct{}

// running marks the context for the function.
func (m *memory) running(ctx context.Context, pool *pgxpool.Pool, conn *pgx.Conn, g *gate) context.Context {
	outer, _ := ctx.Value(callKey{}).(*call)
	return context.WithValue(ctx, callKey{}, &call{pool: pool, conn: conn, key: m.key, gate: g, outer: outer})
}

// outerCall returns the nearest running call that fits: one that has returned does
// not count, so that a goroutine may go on with its context.
func outerCall(ctx context.Context, fits func(*call) bool) *call {
	c, _ := ctx.Value(callKey{}).(*call)
	for ; c != nil; c = c.outer {
		if !c.gate.over() && fits(c) {
			return c
		}
	}
	return nil
}

// checkNested refuses what could only wait for itself: Run in Run of one pool. With
// every connection held by an outer call, each waits for the inner one of another. It
// is refused always, and not only where the pool is exhausted, which would come with
// the load.
func (m *memory) checkNested(ctx context.Context, pool *pgxpool.Pool) error {
	outer := outerCall(ctx, func(c *call) bool { return c.pool == pool })
	switch {
	case outer == nil:
		return nil
	case outer.key == m.key:
		return m.sameKeyError()
	}
	return fmt.Errorf("%w: Run of key:%s in Run of key:%s, on the same pool: call Do with the outer transaction, or call Run after the outer one has returned",
		ErrNested, m.key.Hash(), outer.key.Hash())
}

// checkSameKey refuses Do where its transaction may be that of an outer call with the
// same key, whose lock would let it in.
func (m *memory) checkSameKey(ctx context.Context, conn *pgx.Conn) error {
	if outerCall(ctx, func(c *call) bool { return c.key == m.key && (c.conn == nil || conn == nil || c.conn == conn) }) != nil {
		return m.sameKeyError()
	}
	return nil
}

// inFlight is the error where another session holds the key's lock. Where an outer
// call has the same key, it is that one, and stays so for as long as it is asked; in
// another database the same key is another one, and its lock is free.
func (m *memory) inFlight(ctx context.Context) error {
	if outerCall(ctx, func(c *call) bool { return c.key == m.key }) != nil {
		return m.sameKeyError()
	}
	return m.named(ErrInFlight)
}

func (m *memory) sameKeyError() error {
	return fmt.Errorf("%w: the request with this very key is being done (key:%s): use another key, or no call", ErrNested, m.key.Hash())
}

// connOf returns the connection of the caller's transaction, or nil where it cannot be
// told (database/sql), or was checked by its key.
func connOf(tx samekey.Tx) *pgx.Conn {
	if _, ours := tx.(keyed.Tx); ours {
		return nil
	}
	if t, ok := tx.(interface{ Conn() *pgx.Conn }); ok {
		return t.Conn()
	}
	return nil
}

func (m *memory) acquire(ctx context.Context, pool *pgxpool.Pool) (*pgxpool.Conn, error) {
	within := ctx
	outer := outerCall(ctx, func(c *call) bool { return c.pool == nil })
	if outer != nil {
		var cancel context.CancelFunc
		within, cancel = context.WithTimeout(ctx, nestedWait)
		defer cancel()
	}
	pooled, err := pool.Acquire(within)
	if err == nil {
		return pooled, nil
	}
	stat := pool.Stat()
	if stat.AcquiredConns() == stat.MaxConns() {
		err = fmt.Errorf("all %d connections of the pool are in use: %w", stat.MaxConns(), err)
	}
	switch cancelled := ended(ctx); {
	case outer != nil && errors.Is(err, within.Err()):
		return nil, fmt.Errorf("%w: Run of key:%s in Do of key:%s got no connection, and may be waiting for that of Do: call Do for both: %w",
			ErrNested, m.key.Hash(), outer.key.Hash(), err)
	case cancelled != nil:
		return nil, fmt.Errorf("processed: nothing was stored: acquire a connection: %w", err)
	}
	return nil, unstored("processed: acquire a connection: %w", err)
}
