package outbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/samekey/samekey"
	"github.com/samekey/samekey/internal/db"
)

// Entry is an intent and its state. Times are the database's. A zero field is not set.
type Entry struct {
	ID          uuid.UUID
	Key         samekey.Key
	Action      string
	Part        string
	DeliveryKey uuid.UUID // the idempotency key that the vendor gets
	Payload     []byte    // from Get only
	ContentType string
	Headers     map[string]string
	OrderingKey string
	Deadline    time.Time
	CreatedAt   time.Time

	// TraceContext is the traceparent of the request that inserted it.
	TraceContext string

	// RequestedBy is the actor who cannot approve it.
	RequestedBy string

	// Subject is the application's own name of what the intent is about.
	Subject string

	// Reference is the vendor's id of what it did, such as "ch_123": the last one in the intent's history.
	Reference string

	// Sent is the request that was stored before the first attempt; from Get only. It is zero if each attempt sends the
	// payload as it is, under the plain delivery key.
	Sent Sent

	// Status is empty if an unfinished intent lost its row in the queue. A worker's reconcile restores the row.
	Status Status

	// DueAt is the time of the next attempt. For a finished intent it is when it was first due.
	DueAt time.Time

	// Code is the code of the last outcome, such as "503" or "timeout".
	Code string

	// Cause is the last error's message without its values, if the intent is dead or parked. See [Groups].
	Cause string

	// Attempt is the number of the last claim, lookup or decision by a person. AttemptsUsed is how many count against
	// the policy's attempts. Both are 0 for a finished intent: see History.
	Attempt, AttemptsUsed int

	FirstSentAt    time.Time // when the vendor may first have received the delivery key
	KeyWindowUntil time.Time // when the vendor may forget the delivery key; zero for never
	LeasedBy       int       // the worker that holds it now, samekey.workers.id
	LeaseUntil     time.Time // when the worker's lease ends
	ApprovedAt     time.Time
	FinishedAt     time.Time

	// Replaces is the intent that this one replaces, and ReplacedBy its successor: see [Replace].
	Replaces, ReplacedBy uuid.UUID

	// History is what happened, in order; from Get only.
	History []Event
}

// Sent is what each attempt sends, byte for byte.
type Sent struct {
	CarriedKey  string // the delivery key in the form for this vendor
	Request     []byte // the rendered request, if the action renders requests
	RequestType string // the type that the action's Render gave it
	MessageID   string // of a mail
	At          time.Time
}

// Event is a line of an intent's history. Fields that do not apply are zero.
type Event struct {
	At    time.Time
	Event string // attempt, lookup, apply, orphaned, late, approved, rejected, redriven, resolved, cancelled, restored

	Attempt   int
	Worker    int
	StartedAt time.Time
	Outcome   string // delivered, refused, retry, unsent, unknown, dead, parked, awaiting_approval, absent, accepted, not_sent
	Code      string
	Error     string

	Response     []byte
	ResponseType string
	Reference    string // the vendor's id of what it did

	Actor, Reason string // of a person's decision
	DBUser        string // the database login that made the decision

	FinalStatus Status // the final state that this event put the intent in
}

// Get returns the intent with its payload and its history, or [ErrNotFound]. It also works outside a transaction, with
// a pool or a connection.
func Get(ctx context.Context, on samekey.Tx, id uuid.UUID) (Entry, error) {
	q := db.New(on)
	rows, err := q.OutboxEntries(ctx, db.OutboxEntriesParams{Ids: texts([]uuid.UUID{id}), WithPayload: true})
	if err == nil && len(rows) == 0 {
		err = ErrNotFound
	}
	if err != nil {
		return Entry{}, fmt.Errorf("outbox: get intent %s: %w", id, err)
	}
	events, err := q.OutboxHistory(ctx, id)
	if err != nil {
		return Entry{}, fmt.Errorf("outbox: get intent %s: read its history: %w", id, err)
	}
	e := entry(rows[0])
	if e.Sent, err = sent(ctx, q, id); err != nil {
		return Entry{}, fmt.Errorf("outbox: get intent %s: read what was sent: %w", id, err)
	}
	for _, row := range events {
		event := event(row)
		if event.FinalStatus != "" { // perhaps since the first query
			e.Status, e.FinishedAt, e.Code = event.FinalStatus, event.At, event.Code
		}
		e.History = append(e.History, event)
	}
	return e, nil
}

func sent(ctx context.Context, q *db.Queries, id uuid.UUID) (Sent, error) {
	row, err := q.OutboxSendsGet(ctx, id)
	if errors.Is(err, pgx.ErrNoRows) {
		return Sent{}, nil
	}
	return Sent{CarriedKey: row.CarriedKey, Request: row.Request, RequestType: orZero(row.RequestType),
		MessageID: orZero(row.MessageID), At: row.CreatedAt}, err
}

func entry(r db.OutboxEntriesRow) Entry {
	e := Entry{
		ID: r.ID, Key: samekey.Key{Scope: r.Scope, Value: r.IdemKey}, Action: r.Action, Part: r.Part,
		DeliveryKey: r.DeliveryKey, Payload: r.Payload, ContentType: r.ContentType, Headers: headers(r.Headers),
		OrderingKey: orZero(r.OrderingKey), Deadline: r.Deadline, CreatedAt: r.CreatedAt,
		TraceContext: orZero(r.TraceContext), RequestedBy: orZero(r.RequestedBy), Subject: orZero(r.Subject), Reference: r.Reference, Status: Status(orZero(r.Status)), DueAt: r.DueAt, Code: orZero(r.LastCode), Cause: orZero(r.Cause),
		Attempt: int(orZero(r.Attempt)), AttemptsUsed: int(orZero(r.AttemptsUsed)), FirstSentAt: orZero(r.FirstSentAt),
		KeyWindowUntil: orZero(r.KeyWindowUntil), LeasedBy: int(orZero(r.LeasedBy)), LeaseUntil: orZero(r.LeaseUntil),
		ApprovedAt: orZero(r.ApprovedAt), FinishedAt: orZero(r.FinishedAt),
		Replaces: orZero(r.Replaces), ReplacedBy: r.ReplacedBy,
	}
	if e.Deadline.IsZero() {
		e.Deadline = time.Time{} // in no time zone
	}
	if r.FinalStatus != nil {
		e.Status, e.Code = Status(*r.FinalStatus), orZero(r.FinishedCode)
	}
	return e
}

func event(r db.OutboxHistoryRow) Event {
	return Event{
		At: r.At, Event: r.Event, Attempt: int(orZero(r.Attempt)), Worker: int(orZero(r.Worker)), StartedAt: orZero(r.StartedAt),
		Outcome: orZero(r.Outcome), Code: orZero(r.Code), Error: orZero(r.Error), Response: r.Response,
		ResponseType: orZero(r.ResponseType), Reference: orZero(r.Reference), Actor: orZero(r.Actor), Reason: orZero(r.Reason), DBUser: orZero(r.DbUser), FinalStatus: Status(orZero(r.FinalStatus)),
	}
}

// headers decodes the stored headers. A value that SQL wrote with another type than string becomes its JSON text, so
// that every intent can be read.
func headers(stored []byte) map[string]string {
	members := map[string]json.RawMessage{}
	_ = json.Unmarshal(stored, &members) // the database keeps only objects
	if len(members) == 0 {
		return nil
	}
	texts := make(map[string]string, len(members))
	for name, member := range members {
		var text string
		if json.Unmarshal(member, &text) != nil {
			text = string(member)
		}
		texts[name] = text
	}
	return texts
}

// texts returns ids in the form that every exec mode of pgx can encode.
func texts(ids []uuid.UUID) []string {
	out := make([]string, len(ids))
	for i, id := range ids {
		out[i] = id.String()
	}
	return out
}

// orZero returns the zero value for nil, which is NULL.
func orZero[T any](p *T) T {
	if p == nil {
		return *new(T)
	}
	return *p
}
