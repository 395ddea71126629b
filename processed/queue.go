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
	"github.com/samekey/samekey/internal/guarded"
	"github.com/samekey/samekey/internal/keyed"
	"github.com/samekey/samekey/internal/sqlstate"
)

// queue holds the intents of one transaction until the batch that commits.
//
// A rollback to a savepoint must drop exactly the intents inserted since. One rule ensures this: an intent is queued
// only while no newer savepoint exists. Whatever may set a savepoint (Begin, and every text that is not plainly
// something else) has the queue written first. Therefore:
//
//   - An intent that is older than a savepoint is in the database before the savepoint, and survives a rollback to it.
//   - A queued intent is younger than every savepoint, and is forgotten when any savepoint is rolled back to. A nested
//     transaction's Rollback forgets it. Any other text that may roll back has the queue written first, behind the
//     savepoint, where the rollback removes it.
//   - In a failed transaction nothing can be written, and every way out of it loses the queued intents: they are
//     forgotten.
type queue struct {
	gate      guarded.Gate
	key       samekey.Key
	subject   string
	immediate bool // outbox.Insert writes intents at once
	unique    bool // no intent may exist already: see Step

	mu      sync.Mutex // guards the rest; the commit takes it after it has closed the gate
	intents []keyed.Intent
	index   map[name]int  // positions in intents
	written map[name]bool // before the commit; a rollback may have undone it since
	actions []string      // of written intents
	clock   int           // counts the beginnings of nested transactions
	large   bool          // fn asked for large objects
	err     error         // Run must return it
	errAt   int
}

// name distinguishes the intents of one key.
type name struct{ action, part string }

// enqueue does in memory what samekey.enqueue does in the database. An intent that was written before is left to the
// database, which knows whether it still exists.
func (q *queue) enqueue(in keyed.Intent) (uuid.UUID, bool, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	this := name{in.Action, in.Part}
	switch {
	case q.gate.Over():
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

// mustBeNew reports whether an intent that is written at once must not exist yet, and notes that it is written.
func (q *queue) mustBeNew(in keyed.Intent) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	this := name{in.Action, in.Part}
	if !q.unique || q.written[this] {
		return false
	}
	q.note(this)
	return true
}

func (q *queue) note(written name) {
	if q.written == nil {
		q.written = map[name]bool{}
	}
	q.written[written] = true
}

// fail makes Run return err.
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

// rollback forgets the intents and errors since the nested transaction began.
func (q *queue) rollback(nest int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.gate.Over() {
		return
	}
	q.forget()
	if q.errAt >= nest {
		q.err, q.errAt = nil, 0
	}
}

func (q *queue) forget() { q.intents, q.index = nil, nil }

// flush writes the queued intents.
func (q *queue) flush(ctx context.Context, conn *pgx.Conn) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case q.gate.Over():
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
	for _, in := range q.intents {
		q.note(name{in.Action, in.Part})
		q.actions = append(q.actions, in.Action)
	}
	q.forget()
	if err := conn.SendBatch(ctx, batch).Close(); err != nil {
		q.keep(err)
		return err
	}
	return nil
}

// flushAll is flush for good: from now on intents are written at once, because the function's statements can no longer
// be seen.
func (q *queue) flushAll(ctx context.Context, conn *pgx.Conn) {
	q.mu.Lock()
	q.immediate = true
	q.mu.Unlock()
	_ = q.flush(ctx, conn) // the queue keeps the error for Run
}

// addTo adds the queued intents. If they have several ordering keys, these are locked first, in a fixed order, so that
// two transactions cannot wait for each other in a circle.
func (q *queue) addTo(batch *pgx.Batch) {
	if keys := q.ordered(); len(keys) > 1 {
		batch.Queue(db.OutboxQueueLockOrder, keys) // the statement sorts them
	}
	var plain []keyed.Intent
	for _, in := range q.intents {
		if in.OrderingKey == nil {
			plain = append(plain, in)
		} else {
			addOne(batch, in)
		}
	}
	if len(plain) >= keyed.Many {
		batch.Queue(db.OutboxEnqueueMany, keyed.ManyArgs(plain, true)...).Fn = func(results pgx.BatchResults) error {
			_, err := results.Exec()
			return keyed.InsertError(plain[0], err)
		}
		return
	}
	for _, in := range plain {
		addOne(batch, in)
	}
}

func addOne(batch *pgx.Batch, in keyed.Intent) {
	// The callback must fail only if the server did: an error of its own would look like a failed transaction.
	batch.Queue(db.OutboxEnqueue, in.Args(true)...).Fn = func(results pgx.BatchResults) error {
		_, err := results.Exec()
		return keyed.InsertError(in, err)
	}
}

// ordered returns the ordering keys of the queued intents, each once.
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

// addAll adds what the committing batch has to write, and returns the actions of all intents that exist afterwards.
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

// waits reports whether the committing batch may wait for an ordering key.
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

// conflict reports whether an intent exists with another payload.
func conflict(err error) bool { return sqlstate.Of(err) == sqlstate.IntentConflict }
