package schema

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/samekey/samekey/internal/names"
)

// Adopt makes this database the deployment's, such as "production". From then on the workers of that deployment
// (dispatcher.Config.Deployment) deliver what is in it, whatever database it was copied from. Call it after a switchover
// by logical replication or a pg_upgrade, after a restored dump that replaces the original, and to rename a deployment.
// A new database needs no Adopt: its first worker names it.
//
// It returns how many intents are unfinished. Those that are due are sent to the vendors that the workers know, so
// cancel first what must not be sent from a copy.
//
// It needs the owner of the tables, or a role with EXECUTE on samekey.adopt. It fails if a worker is at work in the
// database and something would change: stop the workers first. Adopt of what the database is already changes nothing.
// Workers that wait for it go on within seconds.
func Adopt(ctx context.Context, db DB, deployment string) (unfinished int64, err error) {
	if err := names.CheckDeployment(deployment); err != nil {
		return 0, fmt.Errorf("schema: adopt: deployment %w", err)
	}
	err = db.QueryRow(ctx, `select samekey.adopt($1)`, deployment).Scan(&unfinished)
	var refused *pgconn.PgError
	switch {
	case err == nil:
		return unfinished, nil
	case missing(err, "42883"):
		return 0, fmt.Errorf("%w: run `worker migrate`", ErrTooOld)
	case errors.As(err, &refused) && refused.Hint != "":
		return 0, fmt.Errorf("schema: adopt: %w: %s", err, refused.Hint)
	case errors.As(err, &refused) && refused.Code == "42501":
		return 0, fmt.Errorf("schema: adopt: %w: adopt as the owner of the tables", err)
	}
	return 0, fmt.Errorf("schema: adopt: %w", err)
}
