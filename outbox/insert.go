package outbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/samekey/samekey"
	"github.com/samekey/samekey/internal/db"
	"github.com/samekey/samekey/internal/keyed"
)

// Insert writes an intent in the caller's transaction and returns its id. The intent exists if and only if the
// transaction commits. For an action that is declared with [NewAction], [Action.Insert] is shorter.
//
// Inserting the same key, action, part and payload again changes nothing and returns the first id; the other fields are
// not compared. Another payload is a [*ConflictError].
//
// In processed.Run the intent takes the request's key and is written together with the commit, without a round trip of
// its own; Run then returns a conflict. In processed.Do and a handler's Apply it takes the key and is written at once.
// Any other transaction (a pgx.Tx, or [samekey.SQL] of a *sql.Tx) needs a Key, and the intent is written at once; call
// [Flush] or
// [FlushSQL] after the commit.
//
// An intent that breaks the rules of [Intent] is an [*IntentError]. No SQL ran then, and the transaction can go on. An
// error of the database aborts the transaction: roll it back. After SQLSTATE 40001 or 40P01, run the transaction again.
//
// With an ordering key, Insert locks the key until the transaction ends. Two transactions that insert several ordering
// keys in opposite orders deadlock (40P01); use [InsertMany], which sorts them.
func Insert(ctx context.Context, tx samekey.Tx, in Intent) (uuid.UUID, error) {
	ready, err := prepare(tx, in)
	if err != nil {
		return uuid.Nil, fmt.Errorf("outbox: insert %q intent: %w", in.Action, err)
	}
	queue, queues := tx.(keyed.Queue)
	if queues {
		id, queued, err := queue.Enqueue(ready)
		if err != nil || queued {
			return id, enqueueError(ready, err)
		}
	}
	id, err := db.New(tx).OutboxEnqueue(ctx, ready.Params(keyed.MustBeNew(tx, ready)))
	if err != nil {
		return uuid.Nil, keyed.InsertError(ready, err)
	}
	if queues {
		queue.Wrote(ready.Action)
	}
	return id, nil
}

// InsertMany writes the intents in the caller's transaction, in one round trip, and returns their ids in the order
// given. Each intent is treated as [Insert] does. If one breaks the rules, nothing is written. Intents with the same
// ordering key keep the order given.
//
// Two calls of InsertMany never deadlock with each other. With [samekey.SQL] it makes one round trip per intent.
func InsertMany(ctx context.Context, tx samekey.Tx, intents []Intent) ([]uuid.UUID, error) {
	ready := make([]keyed.Intent, len(intents))
	for i, in := range intents {
		var err error
		if ready[i], err = prepare(tx, in); err != nil {
			return nil, fmt.Errorf("outbox: insert intent %d of %d, %q: %w", i+1, len(intents), in.Action, err)
		}
	}
	ids := make([]uuid.UUID, len(intents))
	rest, err := enqueue(tx, ready, ids)
	if err != nil || len(rest) == 0 {
		return ids, err
	}
	orders := sortForLocks(ready, rest)
	if batcher, ok := tx.(interface {
		SendBatch(context.Context, *pgx.Batch) pgx.BatchResults
	}); ok {
		err = insertBatch(ctx, tx, batcher.SendBatch, ready, rest, orders, ids)
	} else {
		err = insertEach(ctx, tx, ready, rest, orders, ids)
	}
	if err != nil {
		return nil, err
	}
	if queue, ok := tx.(keyed.Queue); ok {
		for _, i := range rest {
			queue.Wrote(ready[i].Action)
		}
	}
	return ids, nil
}

// prepare checks the intent and gives it its key and its subject.
func prepare(tx samekey.Tx, in Intent) (keyed.Intent, error) {
	key := in.Key
	if err := keyed.CheckTx(tx); err != nil {
		return keyed.Intent{}, err
	}
	switch t := tx.(type) {
	case keyed.Tx:
		if key.IsZero() {
			key = t.RequestKey()
		}
		if key != t.RequestKey() {
			return keyed.Intent{}, invalid("Key", errors.New("Key differs from the request's key: a repeated request must lead to the same delivery key; leave Key zero, and use Part for several intents"))
		}
		in.Subject = cmp.Or(in.Subject, t.RequestSubject())
	default:
		if key.IsZero() {
			return keyed.Intent{}, invalid("Key", errors.New("Key is required outside processed.Run, Do and Apply: set the key of the operation that this effect belongs to"))
		}
	}
	if err := key.Validate(); err != nil {
		return keyed.Intent{}, invalid("Key", err)
	}
	ready, err := in.checked()
	ready.Key = key
	ready.Conflict = func(cause error) error {
		return &ConflictError{Action: in.Action, Part: in.Part, KeyHash: key.Hash(), Err: cause}
	}
	return ready, err
}

// enqueue queues the intents that the transaction can queue, and returns the indexes of the rest.
func enqueue(tx samekey.Tx, ready []keyed.Intent, ids []uuid.UUID) (rest []int, err error) {
	queue, queues := tx.(keyed.Queue)
	for i, in := range ready {
		queued := false
		if queues {
			if ids[i], queued, err = queue.Enqueue(in); err != nil {
				return nil, enqueueError(in, err)
			}
		}
		if !queued {
			rest = append(rest, i)
		}
	}
	return rest, nil
}

// enqueueError is keyed.InsertError for an error of a queue, which may be a conflict already.
func enqueueError(in keyed.Intent, err error) error {
	if conflict, ok := errors.AsType[*ConflictError](err); ok {
		return conflict
	}
	return keyed.InsertError(in, err)
}

// sortForLocks sorts the indexes in order into the order of writing, and returns the ordering keys to lock before. All
// transactions take their locks in the same order, so they cannot deadlock: first the ordering keys, as the database
// sorts them, then the entries of the unique index, sorted here. Ordered intents come first and keep the order given.
func sortForLocks(ready []keyed.Intent, order []int) (orderingKeys []string) {
	slices.SortStableFunc(order, func(i, j int) int {
		a, b := ready[i], ready[j]
		switch {
		case a.OrderingKey != nil && b.OrderingKey != nil:
			return 0
		case a.OrderingKey != nil:
			return -1
		case b.OrderingKey != nil:
			return 1
		}
		return cmp.Or(cmp.Compare(a.Key.Value, b.Key.Value), cmp.Compare(a.Key.Scope, b.Key.Scope),
			cmp.Compare(a.Action, b.Action), cmp.Compare(a.Part, b.Part))
	})
	for _, i := range order {
		if k := ready[i].OrderingKey; k != nil {
			orderingKeys = append(orderingKeys, *k)
		}
	}
	return orderingKeys
}

// insertBatch writes the intents in one round trip: those without an ordering key in one statement, if there are many.
// It needs a second one if some of these exist already.
func insertBatch(ctx context.Context, tx samekey.Tx, send func(context.Context, *pgx.Batch) pgx.BatchResults,
	ready []keyed.Intent, order []int, orderingKeys []string, ids []uuid.UUID,
) error {
	batch := &pgx.Batch{}
	if len(orderingKeys) > 0 {
		batch.Queue(db.OutboxQueueLockOrder, orderingKeys)
	}
	mustBeNew := map[int]bool{} // asked once for each intent
	for _, i := range order {
		mustBeNew[i] = keyed.MustBeNew(tx, ready[i])
	}
	var refused error
	each := func(batch *pgx.Batch, order []int) {
		for _, i := range order {
			batch.Queue(db.OutboxEnqueue, ready[i].Args(mustBeNew[i])...).QueryRow(func(row pgx.Row) error {
				err := keyed.InsertError(ready[i], row.Scan(&ids[i]))
				refused = cmp.Or(refused, err)
				return err
			})
		}
	}
	together := order[len(orderingKeys):]
	if len(together) < keyed.Many {
		together = nil
	}
	each(batch, order[:len(order)-len(together)])
	var rest []int
	if len(together) > 0 {
		many := make([]keyed.Intent, len(together))
		for k, i := range together {
			many[k], ids[i] = ready[i], ready[i].ID
		}
		batch.Queue(db.OutboxEnqueueMany, keyed.ManyArgs(many, false)...).QueryRow(func(row pgx.Row) error {
			var positions []int
			err := row.Scan(&positions)
			for _, p := range positions {
				rest = append(rest, together[p-1])
			}
			refused = cmp.Or(refused, keyed.InsertError(many[0], err))
			return err
		})
	}
	err := send(ctx, batch).Close()
	if err == nil && len(rest) > 0 {
		batch = &pgx.Batch{}
		each(batch, rest)
		err = send(ctx, batch).Close()
	}
	if refused != nil {
		return refused // the first error; the later ones only report an aborted transaction
	}
	if err != nil {
		return fmt.Errorf("outbox: insert %d intents: %w", len(order), err)
	}
	return nil
}

func insertEach(ctx context.Context, tx samekey.Tx, ready []keyed.Intent, order []int, orderingKeys []string, ids []uuid.UUID) error {
	q := db.New(tx)
	if len(orderingKeys) > 0 {
		if err := q.OutboxQueueLockOrder(ctx, orderingKeys); err != nil {
			return fmt.Errorf("outbox: insert %d intents: lock their ordering keys: %w", len(order), err)
		}
	}
	for _, i := range order {
		var err error
		if ids[i], err = q.OutboxEnqueue(ctx, ready[i].Params(keyed.MustBeNew(tx, ready[i]))); err != nil {
			return keyed.InsertError(ready[i], err)
		}
	}
	return nil
}
