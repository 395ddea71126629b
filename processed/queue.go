package processed

import (
	"bytes"
	"context"
	"fmt"
	"sync"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/samekey/samekey"
	"github.com/samekey/samekey/internal/db"
	"github.com/samekey/samekey/internal/keyed"
	"github.com/samekey/samekey/internal/sqlstate"
)

// queue holds the intents of one transaction until the batch that commits.
//
// What is rolled back to a savepoint takes its intents along, and nothing else,
// because of one rule: an intent is queued only as long as no savepoint is newer
// than it. Whatever may set a savepoint (Begin, and every text that is not
// plainly something else) has the queue written first. So
//
//   - an intent that is older than a savepoint is in the database before the
//     savepoint is, and stays when it is rolled back to;
//   - an intent that is still queued is younger than every savepoint, and is
//     forgotten when any of them is rolled back to: a nested transaction's
//     Rollback does it, any other text that may do it has the queue written first,
//     behind the savepoint, where the rollback takes it;
//   - in a failed transaction nothing can be written, and what is queued is lost
//     with every way on from there: it is forgotten.
type queue struct {
	gate
	key       samekey.Key
	immediate bool // intents are written at once, by the inserter
	intents   []keyed.Intent
	index     map[name]int  // where in intents
	written   map[name]bool // before the commit; a rollback may have taken it back since
	actions   []string      // of intents that were written
	clock     int           // counts the beginnings of nested transactions
	large     bool          // large objects were given out
	err       error         // what must come out of Run
	errAt     int
}

// name tells the intents of one key apart.
type name struct{ action, part string }

// enqueue does in memory what samekey.enqueue does in the database. What was
// written before is left to the database, which knows whether it is still there.
func (q *queue) enqueue(in keyed.Intent) (uuid.UUID, bool, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	this := name{in.Action, in.Part}
	switch {
	case q.closed:
		return uuid.Nil, false, pgx.ErrTxClosed
	case q.immediate || q.written[this]:
		return uuid.Nil, false, nil
	}
	if at, ok := q.index[this]; ok {
		have := q.intents[at]
		if !bytes.Equal(have.Payload, in.Payload) {
			err := in.Conflict(nil)
			q.keep(err)
			return uuid.Nil, false, err
		}
		return have.ID, true, nil
	}
	if q.index == nil {
		q.index = map[name]int{}
	}
	q.index[this] = len(q.intents)
	q.intents = append(q.intents, in)
	return in.ID, true, nil
}

// fail makes err come out of Run.
func (q *queue) fail(err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.keep(err)
}

// keep keeps the first error, as a transaction does.
func (q *queue) keep(err error) {
	if q.err == nil && err != nil {
		q.err, q.errAt = err, q.clock
	}
}

// nest notes that a nested transaction begins, and returns its number.
func (q *queue) nest() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.clock++
	return q.clock
}

// rollback forgets what is queued and what failed since the nested transaction
// began.
func (q *queue) rollback(nest int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return
	}
	q.forget()
	if q.errAt >= nest {
		q.err, q.errAt = nil, 0
	}
}

func (q *queue) forget() { q.intents, q.index = nil, nil }

// flush writes what is queued.
func (q *queue) flush(ctx context.Context, conn *pgx.Conn) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case q.closed:
		return pgx.ErrTxClosed
	case len(q.intents) == 0:
		return nil
	case conn.PgConn().TxStatus() == 'E':
		q.forget()
		return nil
	case conn.PgConn().IsBusy():
		err := fmt.Errorf("processed: %d intents are queued and cannot be written while rows are open: close them before tx.Begin, tx.Conn and statements that deal with savepoints", len(q.intents))
		q.keep(err)
		return err
	}
	batch := &pgx.Batch{}
	q.addTo(batch)
	if q.written == nil {
		q.written = map[name]bool{}
	}
	for _, in := range q.intents {
		q.written[name{in.Action, in.Part}] = true
		q.actions = append(q.actions, in.Action)
	}
	q.forget()
	if err := conn.SendBatch(ctx, batch).Close(); err != nil {
		q.keep(err)
		return err
	}
	return nil
}

// flushAll is flush, after which intents are written at once: nothing is seen any
// more of what the function does.
func (q *queue) flushAll(ctx context.Context, conn *pgx.Conn) {
	q.mu.Lock()
	q.immediate = true
	q.mu.Unlock()
	_ = q.flush(ctx, conn) // the queue keeps the error for Run
}

// addTo adds what is queued. Several ordering keys are locked in one order first,
// so that two transactions do not wait for each other in a circle.
func (q *queue) addTo(batch *pgx.Batch) {
	if keys := q.ordered(); len(keys) > 1 {
		batch.Queue(db.OutboxQueueLockOrder, keys) // the statement sorts them
	}
	for _, in := range q.intents {
		// The callback fails only where the server did: one that failed by itself
		// would look like a transaction that was not committed.
		batch.Queue(db.OutboxEnqueue, in.Args(true)...).Fn = func(results pgx.BatchResults) error {
			_, err := results.Exec()
			return keyed.InsertError(in, err)
		}
	}
}

// ordered returns the ordering keys of what is queued, each once.
func (q *queue) ordered() (keys []string) {
	var seen map[string]bool // most have none
	for _, in := range q.intents {
		if k := in.OrderingKey; k != nil && !seen[*k] {
			if seen == nil {
				seen = map[string]bool{}
			}
			seen[*k] = true
			keys = append(keys, *k)
		}
	}
	return keys
}

// addAll adds what the batch that commits has to write, and returns the actions of
// all intents that are there afterwards.
func (q *queue) addAll(batch *pgx.Batch) (actions []string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.addTo(batch)
	actions = append(actions, q.actions...)
	for _, in := range q.intents {
		actions = append(actions, in.Action)
	}
	return actions
}

// waits reports whether the batch that commits may wait for an ordering key.
func (q *queue) waits() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.ordered()) > 0
}

func (q *queue) setLarge() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.large = true
}

func (q *queue) wrote(action string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.actions = append(q.actions, action)
}

func (q *queue) failure() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.err
}

// conflict reports whether err says that an intent has another payload.
func conflict(err error) bool { return sqlstate.Of(err) == sqlstate.IntentConflict }

// gate lets statements through until the function has returned.
type gate struct {
	mu     sync.Mutex
	closed bool
	open   int // statements under way
}

// close lets no further statement begin. It reports whether none is under way:
// else the connection is still in the hands of a goroutine that fn has left behind.
func (g *gate) close() (idle bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = true
	return g.open == 0
}

// enter lets a statement begin; exit ends it.
func (g *gate) enter() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return pgx.ErrTxClosed
	}
	g.open++
	return nil
}

func (g *gate) exit() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.open--
}

func (g *gate) over() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.closed
}
