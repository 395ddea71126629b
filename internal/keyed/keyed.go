// Package keyed is what processed and outbox share, since neither imports the other: a transaction that knows the key
// of the request it works for, and may write intents together with its commit.
package keyed

import (
	"time"

	"github.com/google/uuid"

	"github.com/samekey/samekey"
	"github.com/samekey/samekey/internal/db"
)

// Tx is a transaction that knows its request's key: that of processed.Run, of processed.Do, and of a dispatcher's
// Apply. outbox.Insert takes the key from it.
type Tx interface {
	samekey.Tx
	RequestKey() samekey.Key
}

// Queue is a Tx that holds intents back and writes them in the batch that commits: processed.Run's.
type Queue interface {
	Tx
	// Enqueue takes an intent and returns its id, or that of the same intent queued before. Where ok is false the
	// transaction does not queue (any more): write the intent at once.
	Enqueue(Intent) (id uuid.UUID, ok bool, err error)
	// Wrote notes the action of an intent that was written at once, so that its worker is woken after the commit.
	Wrote(action string)
}

// Intent is one intent, checked and encoded: the arguments of samekey.enqueue.
type Intent struct {
	ID           uuid.UUID
	Key          samekey.Key
	Action, Part string
	Payload      []byte
	ContentType  string
	Headers      []byte // a JSON object of strings
	OrderingKey  *string
	DueAt        *time.Time
	Deadline     *time.Time
	TraceContext *string
	RequestedBy  *string

	// Conflict makes the error that says that the intent's key, action and part are taken by one with another payload, from
	// the database's or from nil. It is outbox's, which processed, where a queued intent meets its conflict, does not
	// import.
	Conflict func(cause error) error
}

// Params are the arguments for db.OutboxEnqueue. The headers are text, since where pgx does not ask the server for types
// (its exec and simple protocol modes) it would send bytes as bytea.
func (in Intent) Params(mustBeNew bool) db.OutboxEnqueueParams {
	return db.OutboxEnqueueParams{
		Scope: in.Key.Scope, IdemKey: in.Key.Value, Action: in.Action, Part: in.Part, Payload: in.Payload,
		ContentType: in.ContentType, Headers: string(in.Headers), OrderingKey: in.OrderingKey, DueAt: in.DueAt,
		Deadline: in.Deadline, TraceContext: in.TraceContext, ID: in.ID, MustBeNew: mustBeNew, RequestedBy: in.RequestedBy,
	}
}

// Args are the same in the order of the statement, for a batch.
func (in Intent) Args(mustBeNew bool) []any {
	return []any{in.Key.Scope, in.Key.Value, in.Action, in.Payload, in.Part, in.ContentType, string(in.Headers),
		in.OrderingKey, in.DueAt, in.Deadline, in.TraceContext, in.ID, mustBeNew, in.RequestedBy}
}
