package outbox

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/samekey/samekey"
	"github.com/samekey/samekey/internal/db"
	"github.com/samekey/samekey/internal/keyed"
)

// Awaited is the state of an intent, as [Await] last saw it.
type Awaited struct {
	ID     uuid.UUID // the intent, or the last one of those that replaced it
	Status Status    // empty if Await returned an error before it saw the intent
	Code   string    // of the last outcome, such as "402"; may be empty
}

// ErrTooManyWaiters means that 10,000 calls of Await wait on this pool already. The intent is not affected: answer that
// it is pending, as after a timeout.
var ErrTooManyWaiters = errors.New("outbox: 10,000 calls of Await wait on this pool already")

// Await waits for the end of an intent, so that a request can be answered with its outcome ("paid"). Call it after the
// transaction that wrote the intent has committed, with the intent's key and id. It returns without an error when
//
//   - the intent is finished (delivered, refused or cancelled) and its Apply (completion callback) has committed: the
//     rows that Apply wrote are there to be read
//   - the intent rests: it is dead, parked or awaiting_approval, and a person decides. Await does not wait for that
//     person, and [Status.Finished] is false
//
// If the intent has ended already, Await returns at once. If the intent was replaced, it waits for the successor.
//
// Await waits until ctx ends, so give ctx a limit: how long the caller is ready to wait. Then it returns the last state
// that it saw, such as pending or unknown, with an error that matches context.DeadlineExceeded. The intent goes on, and
// the next call of Await returns its outcome.
//
// Other errors: [ErrNotFound] if no committed intent has this id under this key; [ErrTooManyWaiters];
// [samekey.KeyError]; an error of the database, if the state cannot be read now or for 5 seconds. After each of them
// the outcome is unknown to the caller, who answers as after a timeout.
//
// All calls of a process with the same pool share one listener. It holds one connection of the pool while at least one
// call waits and at least one other connection is free, and reads all states in one query when a worker announces an
// end. An answer comes 1 to 2 ms after the commit that ends the intent. If LISTEN does not work (the pool has no
// connection to spare, PgBouncer in transaction mode, a pool with an OnNotification of its own) or an announcement is
// lost, the listener's regular read finds the end: it takes place every 250 ms while nothing listens, and every second
// otherwise. The end of an intent by a person's decision is not announced.
//
// Do not hold a transaction or a connection of the pool while you wait: the intent is not visible to workers before
// the commit, and the listener needs connections too. The application's role needs no right on the tables: Await calls
// samekey.intent_states, which wants both key and id.
func Await(ctx context.Context, pool *pgxpool.Pool, key samekey.Key, id uuid.UUID) (Awaited, error) {
	w := &waiter{key: key, id: id, ended: make(chan error, 1)}
	err := key.Validate()
	if err == nil {
		err = w.await(ctx, pool)
	}
	if err != nil {
		err = fmt.Errorf("outbox: await intent %s: %w", id, err)
	}
	return w.seen, err
}

// waiter is one call of Await.
type waiter struct {
	key samekey.Key
	id  uuid.UUID

	// The listener's lock guards these while the waiter is one of its waiters.
	seen   Awaited
	action string
	ended  chan error // gets one value: nil after the end, or why the state cannot be read
}

func (w *waiter) await(ctx context.Context, pool *pgxpool.Pool) error {
	// Most repeated requests find an end here, and need no listener.
	states, err := readStates(ctx, pool, []*waiter{w})
	if err != nil {
		return keyed.Named(err)
	}
	if len(states) == 0 {
		return fmt.Errorf("%w under key:%s; call Await after the commit", ErrNotFound, w.key.Hash())
	}
	if w.see(states[0]) {
		return nil
	}
	l, err := join(pool, w)
	if err != nil {
		return err
	}
	select {
	case err = <-w.ended:
	case <-ctx.Done():
		err = ctx.Err()
	}
	failure := l.leave(w)
	select {
	case err = <-w.ended: // ctx ended at the same moment
	default:
	}
	if err != nil && ctx.Err() != nil {
		err = fmt.Errorf("it is still %s: %w", w.seen.Status, errors.Join(err, failure))
	}
	return err
}

// see takes a state, and reports whether the wait is over.
func (w *waiter) see(state db.OutboxStatesRow) (over bool) {
	w.seen, w.action = Awaited{ID: state.ID, Status: Status(state.Status), Code: state.Code}, state.Action
	return w.seen.Status.Finished() || slices.Contains(resting, w.seen.Status)
}

// stateTimeout bounds one read, including the wait for a connection of a busy pool.
const stateTimeout = 5 * time.Second

// readStates reads what the waiters wait for, in one query. A state's N is the waiter's position, from 1. A waiter
// without a state waits for an intent that is not there.
func readStates(ctx context.Context, pool *pgxpool.Pool, waiters []*waiter) ([]db.OutboxStatesRow, error) {
	ctx, cancel := context.WithTimeout(ctx, stateTimeout)
	defer cancel()
	var p db.OutboxStatesParams
	for _, w := range waiters {
		p.Scopes = append(p.Scopes, w.key.Scope)
		p.IdemKeys = append(p.IdemKeys, w.key.Value)
		p.Ids = append(p.Ids, w.id.String())
	}
	return db.New(pool).OutboxStates(ctx, p)
}
