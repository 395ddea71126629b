package processed

import (
	"bytes"
	"context"
	"sync"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/samekey/samekey"
	"github.com/samekey/samekey/internal/db"
	"github.com/samekey/samekey/internal/keyed"
)

// queue holds the intents of one transaction until the batch that commits, and
// what happened to them when part of the transaction was rolled back. Moments
// are counted, not measured: every event has a number of its own.
type queue struct {
	key samekey.Key

	mu        sync.Mutex
	immediate bool // intents are written at once, by the inserter
	intents   []queued
	actions   []string // of intents written at once
	clock     int      // the last event's number
	err       error    // what must come out of Run
	errAt     int
	closed    bool
	open      int // statements under way
}

type queued struct {
	keyed.Intent
	written int // when it was written before the commit, 0 for not yet
}

// enqueue does in memory what samekey.enqueue does in the database.
func (q *queue) enqueue(in keyed.Intent) (uuid.UUID, bool, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return uuid.Nil, false, pgx.ErrTxClosed
	}
	if q.immediate {
		return uuid.Nil, false, nil
	}
	for _, have := range q.intents {
		if have.Key != in.Key || have.Action != in.Action || have.Part != in.Part {
			continue
		}
		if !bytes.Equal(have.Payload, in.Payload) {
			err := &keyed.ConflictError{Action: in.Action, Part: in.Part, KeyHash: in.Key.Hash()}
			q.fail(err)
			return uuid.Nil, false, err
		}
		return have.ID, true, nil
	}
	q.intents = append(q.intents, queued{Intent: in})
	return in.ID, true, nil
}

// fail keeps the first error, as a transaction does.
func (q *queue) fail(err error) {
	if q.err == nil && err != nil {
		q.clock++
		q.err, q.errAt = err, q.clock
	}
}

// mark is a moment to which a nested transaction may roll back.
type mark struct{ length, clock int }

func (q *queue) mark() mark {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.clock++
	return mark{len(q.intents), q.clock}
}

// rollback forgets what was queued since the mark, and takes back as queued
// what was queued before it and written since: those rows are gone.
func (q *queue) rollback(to mark) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return
	}
	q.intents = q.intents[:min(to.length, len(q.intents))]
	for i := range q.intents {
		if q.intents[i].written > to.clock {
			q.intents[i].written = 0
		}
	}
	if q.errAt > to.clock {
		q.err, q.errAt = nil, 0
	}
}

// flush writes what is queued now, and queues no more.
func (q *queue) flush(ctx context.Context, conn *pgx.Conn) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return pgx.ErrTxClosed
	}
	q.immediate = true
	batch := &pgx.Batch{}
	if q.addTo(batch); batch.Len() == 0 {
		return nil
	}
	if err := conn.SendBatch(ctx, batch).Close(); err != nil {
		q.fail(err)
		return err
	}
	q.clock++
	for i := range q.intents {
		if q.intents[i].written == 0 {
			q.intents[i].written = q.clock
		}
	}
	return nil
}

// addAll is addTo for the batch that commits.
func (q *queue) addAll(batch *pgx.Batch) (actions []string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.addTo(batch)
}

// addTo adds what is not written yet, and returns the actions of all that will
// be when the batch has committed. Several ordering keys are locked in one
// order first, so that two transactions do not wait for each other in a circle.
func (q *queue) addTo(batch *pgx.Batch) (actions []string) {
	orders := map[string]bool{}
	for _, in := range q.intents {
		if in.written == 0 && in.OrderingKey != nil {
			orders[*in.OrderingKey] = true
		}
	}
	if len(orders) > 1 {
		keys := make([]string, 0, len(orders))
		for k := range orders {
			keys = append(keys, k) // the statement sorts them
		}
		batch.Queue(db.OutboxQueueLockOrder, keys)
	}
	actions = append(actions, q.actions...)
	for _, in := range q.intents {
		actions = append(actions, in.Action)
		if in.written != 0 {
			continue
		}
		// The callback fails only where the server did: one that failed by itself
		// would look like a transaction that was not committed.
		batch.Queue(db.OutboxEnqueue, in.Args(true)...).Fn = func(results pgx.BatchResults) error {
			_, err := results.Exec()
			return keyed.InsertError(in.Intent, err)
		}
	}
	return actions
}

func (q *queue) wrote(action string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.actions = append(q.actions, action)
}

// close lets no further statement begin. It reports whether none is under way:
// else the connection is still in the hands of a goroutine that fn has left behind.
func (q *queue) close() (idle bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	return q.open == 0
}

// enter lets a statement begin, until Run has ended; exit ends it.
func (q *queue) enter() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return pgx.ErrTxClosed
	}
	q.open++
	return nil
}

func (q *queue) exit() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.open--
}

func (q *queue) failure() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.err
}
