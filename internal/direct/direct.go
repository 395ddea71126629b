// Package direct opens a connection as a pool would, outside the pool: neither the pool's size nor its limits of age
// touch it.
package direct

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Connect opens a connection with the pool's configuration and runs its hooks: AfterConnect may run `set role`, which
// decides who the connection is. If after is given, it runs instead of AfterConnect.
func Connect(ctx context.Context, config *pgxpool.Config, after func(context.Context, *pgx.Conn) error) (*pgx.Conn, error) {
	if config.BeforeConnect != nil {
		if err := config.BeforeConnect(ctx, config.ConnConfig); err != nil {
			return nil, err
		}
	}
	conn, err := pgx.ConnectConfig(ctx, config.ConnConfig)
	if err != nil {
		return nil, err
	}
	if after == nil {
		after = config.AfterConnect
	}
	if after != nil {
		if err := after(ctx, conn); err != nil {
			Close(ctx, conn)
			return nil, err
		}
	}
	return conn, nil
}

// Close closes a connection within a second, also if ctx has ended.
func Close(ctx context.Context, conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	_ = conn.Close(ctx)
}
