package main

import (
	"context"
	"errors"
	"flag"
	"fmt"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/samekey/samekey/internal/names"
	"github.com/samekey/samekey/schema"
)

const adoptUsage = `usage: worker adopt -deployment name

Makes the database the deployment's: from then on its workers deliver what is in it. Needed for a copy (a restored dump,
logical replication, pg_upgrade) and to rename a deployment; a new database is named by its first worker. Its due intents are
then sent: cancel first what must not be sent from a copy. Stop the database's workers first.

environment:
  DATABASE_URL  the database, with the role that owns the tables

flags:
`

func (m *worker) adopt(args []string) int {
	set := flag.NewFlagSet("worker adopt", flag.ContinueOnError)
	deployment := set.String("deployment", "", "the deployment's `name`, as in the configuration of its workers")
	if code, done := m.flags(set, adoptUsage, args); done {
		return code
	}
	if err := names.CheckDeployment(*deployment); err != nil {
		m.print(m.stderr, fmt.Sprintf("worker: -deployment %v\n", err))
		return mistaken
	}
	var unfinished int64
	err := m.onDatabase(func(ctx context.Context, pool *pgxpool.Pool) (err error) {
		unfinished, err = schema.Adopt(ctx, pool, *deployment)
		return err
	})
	switch {
	case errors.Is(err, errDatabaseURL):
		m.print(m.stderr, "worker: "+err.Error()+"\n")
		return mistaken
	case err != nil:
		m.print(m.stderr, "worker: "+err.Error()+"\n")
		return failed
	}
	m.print(m.stdout, fmt.Sprintf("the database belongs to %s; it has %d unfinished intents\n", *deployment, unfinished))
	return 0
}
