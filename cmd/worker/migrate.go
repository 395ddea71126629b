package main

import (
	"context"
	"errors"
	"flag"
	"fmt"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/samekey/samekey/schema"
)

const migrateUsage = `usage: worker migrate [-app-role role] [-worker-role role] [-operator-role role] [-approver-role role]
                      [-print | -for tool -dir folder]

Creates or updates the tables of samekey and River in the Postgres schema "samekey", then grants the named roles what they
need and no more. You can run it any number of times, and in several processes at once.

-for writes the migrations as files for your migration tool instead, one file each, numbered after those in the folder. After
an upgrade it adds the new ones and does not change the others. -print prints all migrations, for psql without
--single-transaction. Both need no database.

environment:
  DATABASE_URL  the database, over a direct connection, with a role that owns the schema or may create it

flags:
`

func (m *worker) migrate(args []string) int {
	set := flag.NewFlagSet("worker migrate", flag.ContinueOnError)
	show := set.Bool("print", false, "print the statements and change nothing")
	forTool := set.String("for", "", "write files for this `tool` instead: goose or golang-migrate")
	dir := set.String("dir", "", "the existing `folder` of the tool's files")
	var roles schema.Roles
	set.StringVar(&roles.App, "app-role", "", "the application's existing `role`")
	set.StringVar(&roles.Worker, "worker-role", "", "the worker's existing `role`")
	set.StringVar(&roles.Operator, "operator-role", "", "the existing `role` of people who redrive, resolve, cancel and pause")
	set.StringVar(&roles.Approver, "approver-role", "", "the existing `role` of people who approve")
	if code, done := m.flags(set, migrateUsage, args); done {
		return code
	}
	if *forTool != "" || *dir != "" {
		return m.migrateFiles(*forTool, *dir, roles)
	}
	if *show {
		steps, err := schema.All()
		if err != nil {
			m.print(m.stderr, "worker: "+err.Error()+"\n")
			return failed
		}
		for _, step := range steps {
			m.print(m.stdout, fmt.Sprintf("-- %s\n%s\n\n", step.Name, step.SQL))
		}
		m.print(m.stdout, schema.Grants(roles))
		return 0
	}
	if err := m.migrateDatabase(roles); err != nil {
		m.print(m.stderr, "worker: "+err.Error()+"\n")
		if errors.Is(err, errDatabaseURL) {
			return mistaken
		}
		return failed
	}
	m.print(m.stdout, fmt.Sprintf("the database has version %d\n", schema.Latest()))
	return 0
}

func (m *worker) migrateFiles(name, dir string, roles schema.Roles) int {
	t, known := tools[name]
	if !known || dir == "" {
		m.print(m.stderr, "worker: -for must be goose or golang-migrate, and -dir the folder of its files\n")
		return mistaken
	}
	names, err := migrationFiles(dir, t, roles)
	for _, name := range names {
		m.print(m.stdout, name+"\n")
	}
	if err != nil {
		m.print(m.stderr, "worker: write migrations: "+err.Error()+"\n")
		return failed
	}
	if len(names) == 0 {
		m.print(m.stderr, "worker: the folder already has all migrations of this release\n")
	}
	return 0
}

var errDatabaseURL = errors.New("DATABASE_URL is not set to a database, such as postgres://user:password@host:5432/name")

func (m *worker) migrateDatabase(roles schema.Roles) error {
	return m.onDatabase(func(ctx context.Context, pool *pgxpool.Pool) error {
		if err := schema.Migrate(ctx, pool); err != nil {
			return err
		}
		if roles == (schema.Roles{}) {
			return nil
		}
		return schema.Grant(ctx, pool, roles)
	})
}

// onDatabase runs a function on the database in DATABASE_URL. A signal ends its context.
func (m *worker) onDatabase(do func(context.Context, *pgxpool.Pool) error) error {
	url, _ := m.lookupEnv("DATABASE_URL")
	config, err := pgxpool.ParseConfig(url) // its error may hold the password
	if url == "" || err != nil {
		return errDatabaseURL
	}
	ctx, cancel := interruptible()
	defer cancel()
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return err
	}
	defer pool.Close()
	return do(ctx, pool)
}
