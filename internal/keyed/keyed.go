// Package keyed is what processed and outbox share, because neither imports the other: transactions that know the key
// of their request, and intents that are written together with the commit.
package keyed

import (
	"time"

	"github.com/google/uuid"

	"github.com/samekey/samekey"
	"github.com/samekey/samekey/internal/db"
)

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
	Subject      *string

	// Conflict makes the error for a key, action and part that another payload has taken, from the database's error or
	// from nil. It is outbox's error. processed needs it when a queued intent meets its conflict, and cannot import
	// outbox.
	Conflict func(cause error) error
}

// Params returns the arguments of db.OutboxEnqueue. The headers are text: if pgx does not ask the server for types (its
// exec and simple protocol modes), it would send bytes as bytea.
func (in Intent) Params(mustBeNew bool) db.OutboxEnqueueParams {
	return db.OutboxEnqueueParams{
		Scope: in.Key.Scope, IdemKey: in.Key.Value, Action: in.Action, Part: in.Part, Payload: in.Payload,
		ContentType: in.ContentType, Headers: string(in.Headers), OrderingKey: in.OrderingKey, DueAt: in.DueAt,
		Deadline: in.Deadline, TraceContext: in.TraceContext, ID: in.ID, MustBeNew: mustBeNew, RequestedBy: in.RequestedBy,
		Subject: in.Subject,
	}
}

// Args returns the same arguments in the order of the statement, for a batch.
func (in Intent) Args(mustBeNew bool) []any {
	return []any{in.Key.Scope, in.Key.Value, in.Action, in.Payload, in.Part, in.ContentType, string(in.Headers),
		in.OrderingKey, in.DueAt, in.Deadline, in.TraceContext, in.ID, mustBeNew, in.RequestedBy, in.Subject}
}

// Many is how many intents without an ordering key are written in one statement, at least: fewer are faster one by one.
const Many = 4

// ManyArgs returns the arguments of db.OutboxEnqueueMany, in the order of the statement. No intent has an ordering key.
func ManyArgs(intents []Intent, mustBeNew bool) []any {
	n := len(intents)
	texts := make([][]string, 9)
	for i := range texts {
		texts[i] = make([]string, n)
	}
	payloads, ids, due, deadlines := make([][]byte, n), make([]string, n), make([]time.Time, n), make([]time.Time, n)
	for i, in := range intents {
		for k, text := range []string{in.Key.Scope, in.Key.Value, in.Action, in.Part, in.ContentType, string(in.Headers),
			OrZero(in.TraceContext), OrZero(in.RequestedBy), OrZero(in.Subject)} {
			texts[k][i] = text
		}
		payloads[i], ids[i], due[i], deadlines[i] = in.Payload, in.ID.String(), OrZero(in.DueAt), OrZero(in.Deadline)
	}
	return []any{texts[0], texts[1], texts[2], payloads, texts[3], texts[4], texts[5], due, deadlines, texts[6], ids, mustBeNew, texts[7], texts[8]}
}

// OrZero returns the zero value for nil, which is NULL.
func OrZero[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}
