// Package wake tells workers that something was committed, without a cost to
// the transaction that committed it.
package wake

import (
	"context"
	"database/sql"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// Channel is what workers LISTEN on. A notification's payload is the action
// that has new work.
const Channel = "samekey_outbox"

const (
	// patience bounds one notification, the wait for a connection of a busy
	// pool included. Later than this the sweep has found the work.
	patience = 3 * time.Second
	// pause follows a notification. The first of a burst goes out at once; while
	// commits rain, a pool sends at most 200 a second: a notifying transaction
	// takes a lock of the whole server as it commits, and a worker that was woken
	// a moment ago is still looking.
	pause = 5 * time.Millisecond
)

var (
	mu sync.Mutex
	// waiting holds the actions that were flushed and not sent yet. A pool is in
	// it only while its goroutine runs, so that no closed pool stays reachable.
	waiting = map[pool][]string{}
)

// pool is what notifications are sent through: one of the two below.
type pool interface {
	exec(ctx context.Context, query string, args ...any) error
}

type pgxPool struct{ *pgxpool.Pool }

func (p pgxPool) exec(ctx context.Context, query string, args ...any) error {
	_, err := p.Exec(ctx, query, args...)
	return err
}

type sqlPool struct{ *sql.DB }

func (p sqlPool) exec(ctx context.Context, query string, args ...any) error {
	_, err := p.ExecContext(ctx, query, args...)
	return err
}

// Flush wakes the workers that handle the actions, soon and once: it returns at
// once, and what is flushed while a notification of the same pool is under way
// goes out with the next one, each action once. Call it after the commit; never
// inside a transaction, where NOTIFY would make commits queue up behind each
// other.
//
// A notification that fails is dropped, without an error: the sweep of each
// worker finds the work within half a second. A nil pool and no action are
// no-ops.
func Flush(pool *pgxpool.Pool, actions ...string) {
	if pool != nil {
		flush(pgxPool{pool}, actions)
	}
}

// FlushSQL is Flush through a pool of database/sql, with any driver.
func FlushSQL(db *sql.DB, actions ...string) {
	if db != nil {
		flush(sqlPool{db}, actions)
	}
}

func flush(p pool, actions []string) {
	if len(actions) == 0 {
		return
	}
	mu.Lock()
	defer mu.Unlock()
	have, running := waiting[p]
	for _, action := range actions {
		if !slices.Contains(have, action) {
			have = append(have, action)
		}
	}
	waiting[p] = have
	if !running {
		go send(p)
	}
}

// send notifies until nothing is waiting, and ends.
func send(p pool) {
	for {
		actions := take(p)
		if len(actions) == 0 {
			return
		}
		notify(p, actions)
		time.Sleep(pause)
	}
}

// take returns what is waiting; where nothing is, it forgets the pool, and the
// next Flush starts anew.
func take(p pool) []string {
	mu.Lock()
	defer mu.Unlock()
	actions := waiting[p]
	if len(actions) == 0 {
		delete(waiting, p)
		return nil
	}
	waiting[p] = nil
	return actions
}

// notify is one statement, so one round trip. Nothing is lost by a commit that
// does not wait for the disk: there is nothing in it to keep.
//
// The actions are one text, since not every driver has arrays; their names have no
// commas.
func notify(p pool, actions []string) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	// The error is dropped on purpose: a wake-up is a hint, the row is the truth,
	// and the sweep finds it.
	_ = p.exec(ctx, `select set_config('synchronous_commit', 'off', true), pg_notify($1::text, a.action)
		from unnest(string_to_array($2::text, ',')) as a (action)`, Channel, strings.Join(actions, ","))
}
