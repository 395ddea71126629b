// Package wake notifies workers after a commit, without a cost to the committing transaction.
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

// Channel is the channel that workers LISTEN on. A notification's payload is the action that has new work.
const Channel = "samekey_outbox"

// Ended is the channel on which workers announce the ends of intents to the processes that wait for them. A
// notification's payload is ids with commas between them. Any role can send one, so it is a hint to read the state.
const Ended = "samekey_ended"

// AwaitedFor is for how long workers announce the ends of an action after they heard that it is awaited (Await).
const AwaitedFor = 15 * time.Second

// awaited begins a payload on Channel that names an action whose ends are awaited. No action's name begins like this.
const awaited = "?"

const (
	// patience limits one notification, including the wait for a connection of a busy pool. By then the sweep has found
	// the work.
	patience = 3 * time.Second
	// pause follows each notification, so a pool sends at most 200 per second. The first of a burst is sent at once. A
	// notifying transaction takes a server-wide lock when it commits, and a worker that was just woken is still
	// searching.
	pause = 5 * time.Millisecond
)

var (
	mu sync.Mutex
	// waiting holds the actions that are flushed but not sent. A pool is in it only while its goroutine runs, so a
	// closed pool does not stay reachable.
	waiting = map[pool][]string{}
)

// pool sends notifications: one of the two types below.
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

// Flush wakes the workers that handle the actions. It returns at once. Actions that are flushed while a notification of
// the same pool is running are sent with the next one, each once. Call it after the commit, never inside a transaction,
// where NOTIFY makes commits wait for each other.
//
// A failed notification is dropped without an error: each worker's sweep finds the work within half a second. Without a
// pool or an action, Flush does nothing.
func Flush(pool *pgxpool.Pool, actions ...string) {
	if pool != nil {
		flush(pgxPool{pool}, actions)
	}
}

// Await tells the workers that this process waits for the ends of intents of the actions. Like Flush it returns at once
// and never fails. A worker announces the ends of an action for AwaitedFor after it heard this.
func Await(pool *pgxpool.Pool, actions ...string) {
	marked := make([]string, len(actions))
	for i, action := range actions {
		marked[i] = awaited + action
	}
	Flush(pool, marked...)
}

// Awaited returns the action of a payload that Await sent.
func Awaited(payload string) (action string, ok bool) { return strings.CutPrefix(payload, awaited) }

// FlushSQL is Flush with a pool of database/sql, with any driver.
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

// send notifies until nothing is waiting.
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

// take returns the waiting actions. If there are none, it removes the pool, and the next Flush starts a new goroutine.
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

// notify makes one round trip. Its commit does not wait for the disk, since it stores nothing.
//
// The actions are one text, since not every driver has arrays. Their names have no commas.
func notify(p pool, actions []string) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	// The error is dropped on purpose: the row is the truth, and the sweep finds it.
	_ = p.exec(ctx, `select set_config('synchronous_commit', 'off', true), pg_notify($1::text, a.action)
		from unnest(string_to_array($2::text, ',')) as a (action)`, Channel, strings.Join(actions, ","))
}
