package dispatcher

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/samekey/samekey/internal/db"
)

// A worker delivers for one deployment, and only from the database of that deployment. A copy of production's database
// must not charge production's customers again. queries/deployment.sql has the interleavings.

// ErrDeployment means that the database belongs to another deployment than Config.Deployment, or that it is a copy. The
// error says which, and what to do: connect to the right database, or run `worker adopt` (schema.Adopt) if this one is
// to be delivered from now on. Nothing is claimed. [Dispatcher.Run] waits, and [Dispatcher.Ready] returns the error;
// [Dispatcher.Drain] returns it at once.
var ErrDeployment = errors.New("the database is not that of this worker's deployment")

// errNoDeployment is in the words of [ConfigErrors], which Run returns.
const errNoDeployment = `missing: name the deployment whose intents this worker delivers, such as "production". The first worker names a new database; later ones deliver only if they have the same name`

// deployment is what a session knows of the deployment of its database.
type deployment struct {
	name string // Config.Deployment
	log  *slog.Logger
	// id is that of the row that the last check accepted. A claim compares it in its own statement.
	id      atomic.Pointer[uuid.UUID]
	refusal *refusal
}

// refusal is why the database is not delivered from, or nil. A dispatcher has one, since a worker that waits at its
// start is not ready either.
type refusal struct{ err atomic.Pointer[error] }

func (r *refusal) get() error {
	if err := r.err.Load(); err != nil {
		return *err
	}
	return nil
}

// check asks the database, on a connection that the session is about to use or uses. It logs a refusal once.
func (d *deployment) check(ctx context.Context, conn *pgx.Conn) error {
	ctx, cancel := context.WithTimeout(ctx, sessionTimeout)
	defer cancel()
	row, err := db.New(conn).DeploymentCheck(ctx, d.name)
	if err != nil {
		return err
	}
	if row.Problem == "" {
		d.id.Store(row.ID)
		if d.refusal.err.Swap(nil) != nil {
			d.log.InfoContext(ctx, "dispatcher: the database is now that of this worker's deployment", slog.String("deployment", d.name))
		}
		return nil
	}
	if row.Problem == "unnamed" {
		var errs ConfigErrors
		errs.Add(itemConfig, "Deployment", errNoDeployment)
		return errs
	}
	err = fmt.Errorf("dispatcher: nothing is claimed: %w: %s", ErrDeployment, d.advice(row))
	if old := d.refusal.get(); old == nil || old.Error() != err.Error() {
		d.log.ErrorContext(ctx, err.Error(), slog.String("deployment", d.name))
	}
	d.refusal.err.Store(&err)
	return err
}

// advice says what was found, and the next step.
func (d *deployment) advice(row db.DeploymentCheckRow) string {
	adopt := fmt.Sprintf("if this database is to be delivered from now on, run `worker adopt -deployment %s` as the owner of the tables, which sends its due intents", d.name)
	switch row.Problem {
	case "name":
		return fmt.Sprintf("it belongs to %q, and this worker delivers for %q. Connect to the right database or correct the name; %s", row.BelongsTo, d.name, adopt)
	case "copy":
		return fmt.Sprintf("it is a copy of the database of %q (a restored dump, a template, logical replication, pg_upgrade). Connect to the original; %s", or(row.BelongsTo, "(no name)"), adopt)
	case "several":
		return fmt.Sprintf("samekey.deployment has the rows of several databases (%s), so data of another one was restored into it. Remove that data; then, or %s", row.BelongsTo, adopt)
	}
	return "samekey.deployment has no row, as in a database that was restored in part; " + adopt
}

// current is the id that a claim compares. Before the first check, no database has it but one of a test.
func (d *deployment) current() uuid.UUID {
	if id := d.id.Load(); id != nil {
		return *id
	}
	return uuid.Nil
}
