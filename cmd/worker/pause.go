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

Stops the calls to a destination, or of one of its actions, on every worker within a second. Intents that are due wait.

environment:
  DATABASE_URL  the database, with the operator's role

flags:
`

const resumeUsage = `usage: worker resume -destination name [-action name] -reason text [-actor name]

Ends the pauses of a destination, including one made in River, or those of one of its actions.

environment:
  DATABASE_URL  the database, with the operator's role

flags:
`

// pause is the commands pause and resume.
func (m *worker) pause(command, help string, args []string) int {
	set := flag.NewFlagSet("worker "+command, flag.ContinueOnError)
	var what outbox.Target
	var by outbox.By
	set.StringVar(&what.Destination, "destination", "", "the destination's `name`")
	set.StringVar(&what.Action, "action", "", "an action's `name` (default: all actions of the destination)")
	set.StringVar(&by.Actor, "actor", userName(), "your `name`, for the record")
	set.StringVar(&by.Reason, "reason", "", "the reason, a `text` for the record")
	var limit time.Duration
	if command == "pause" {
		set.DurationVar(&limit, "for", 0, "end the pause after this `duration`, such as 2h (default: until worker resume)")
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
