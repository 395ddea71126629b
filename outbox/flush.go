package outbox

import (
	"database/sql"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/samekey/samekey/internal/wake"
)

// Flush wakes the workers that handle these actions. Call it after the commit of a transaction of your own in which you
// inserted; processed.Run does it by itself. Flush returns at once and never fails. Without it, or if the notification
// is lost, a worker finds the intents within half a second.
func Flush(pool *pgxpool.Pool, actions ...string) { wake.Flush(pool, actions...) }

// FlushSQL is [Flush] for database/sql and libraries built on it, with any Postgres driver. It takes the pool and not a
// transaction: a notification inside a transaction makes commits wait for each other.
func FlushSQL(db *sql.DB, actions ...string) { wake.FlushSQL(db, actions...) }
