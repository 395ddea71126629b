package testpg

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// cheapPassword stores the superuser's password as an MD5 hash. A SCRAM hash costs the server 4 ms of CPU for each
// connection, and a run of all tests opens about ten thousand.
func cheapPassword(ctx context.Context, dsn string) error {
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(ctx) }()
	config := conn.Config()
	_, err = conn.Exec(ctx, fmt.Sprintf(`set password_encryption = 'md5'; alter role %s password '%s'`,
		pgx.Identifier{config.User}.Sanitize(), config.Password))
	return err
}
