package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os/user"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/samekey/samekey/outbox"
)

const pauseUsage = `usage: worker pause -destination name [-action name] [-for duration] -reason text [-actor name]

Stops the calls to a destination, or of one of its actions, on every worker, within a second. What is due waits.

environment:
  DATABASE_URL  the database, as the worker's role

flags:
`

const resumeUsage = `usage: worker resume -destination name [-action name] -reason text [-actor name]

Ends the pauses of a destination, also one made in River, or those of one of its actions.

environment:
  DATABASE_URL  the database, as the worker's role

flags:
`

// pause pauses, or resumes.
func (m *worker) pause(command, help string, args []string) int {
	set := flag.NewFlagSet("worker "+command, flag.ContinueOnError)
	var what outbox.Target
	var by outbox.By
	set.StringVar(&what.Destination, "destination", "", "the destination's `name`")
	set.StringVar(&what.Action, "action", "", "one action's `name`; without it, all actions of the destination")
	set.StringVar(&by.Actor, "actor", userName(), "who does it: a `name`; default: the system's user")
	set.StringVar(&by.Reason, "reason", "", "why: a `text` for the next person who looks")
	var limit time.Duration
	if command == "pause" {
		set.DurationVar(&limit, "for", 0, "ends by itself after this `duration`, such as 2h; without it, somebody has to resume")
	}
	if code, done := m.flags(set, help, args); done {
		return code
	}
	err := m.onDatabase(func(ctx context.Context, pool *pgxpool.Pool) error {
		if command == "resume" {
			return outbox.Resume(ctx, pool, what, by)
		}
		var until time.Time
		if limit != 0 {
			until = time.Now().Add(limit)
		}
		return outbox.Pause(ctx, pool, what, until, by)
	})
	switch {
	case errors.Is(err, errDatabaseURL):
		m.print(m.stderr, "worker: "+err.Error()+"\n")
		return mistaken
	case err != nil:
		m.print(m.stderr, "worker: "+err.Error()+"\n")
		return failed
	}
	m.print(m.stdout, fmt.Sprintf("%sd %s\n", command, what))
	return 0
}

func userName() string {
	if u, err := user.Current(); err == nil {
		return u.Username
	}
	return ""
}
