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
	"github.com/samekey/samekey/internal/keyed"
)

// Entry is an intent and its state. Times are the database's. A zero field is not set.
//
// As JSON, the members have the names of the columns of the view samekey.intents, and a field that is not set is left
// out: see [Entry.MarshalJSON].
type Entry struct {
	ID          uuid.UUID         `json:"id,omitzero"`
	Key         samekey.Key       `json:"-"` // in JSON: scope and key
	Action      string            `json:"action,omitzero"`
	Part        string            `json:"part,omitzero"`
	DeliveryKey uuid.UUID         `json:"delivery_key,omitzero"` // the idempotency key that the vendor gets
	Payload     []byte            `json:"-"`                     // from Get only; in JSON: payload, payload_text or payload_base64
	ContentType string            `json:"content_type,omitzero"`
	Headers     map[string]string `json:"headers,omitempty"`
	OrderingKey string            `json:"ordering_key,omitzero"`
	Deadline    time.Time         `json:"deadline,omitzero"`
	CreatedAt   time.Time         `json:"created_at,omitzero"`

	// TraceContext is the traceparent of the request that inserted it.
	TraceContext string `json:"trace_context,omitzero"`

	// RequestedBy is the actor who cannot approve it.
	RequestedBy string `json:"requested_by,omitzero"`

	// WrittenBy is the database login that wrote it, and that cannot approve it.
	WrittenBy string `json:"written_by,omitzero"`

	// Subject is the application's own name of what the intent is about.
	Subject string `json:"subject,omitzero"`

	// Reference is the vendor's id of what it did, such as "ch_123": the last one in the intent's history.
	Reference string `json:"reference,omitzero"`

	// Sent is the request that was stored before the first attempt; from Get only. It is zero if each attempt sends the
	// payload as it is, under the plain delivery key.
	Sent Sent `json:"sent,omitzero"`

	// Status is empty if an unfinished intent lost its row in the queue. A worker's reconcile restores the row.
	Status Status `json:"status,omitzero"`

	// DueAt is the time of the next attempt. For a finished intent it is when it was first due.
	DueAt time.Time `json:"due_at,omitzero"`

	// Code is the code of the last outcome, such as "503" or "timeout".
	Code string `json:"code,omitzero"`

	// Cause is the last error's message without its values, if the intent is dead or parked. See [Groups].
	Cause string `json:"cause,omitzero"`

	// Attempt is the number of the last claim, lookup or decision by a person. AttemptsUsed is how many count against
	// the policy's attempts. Both are 0 for a finished intent: see History.
	Attempt      int `json:"attempt,omitzero"`
	AttemptsUsed int `json:"attempts_used,omitzero"`

	FirstSentAt    time.Time `json:"first_sent_at,omitzero"`    // when the vendor may first have received the delivery key
	KeyWindowUntil time.Time `json:"key_window_until,omitzero"` // when the vendor may forget the delivery key; zero for never
	LeasedBy       int       `json:"leased_by,omitzero"`        // the worker that holds it now, samekey.workers.id
	LeaseUntil     time.Time `json:"lease_until,omitzero"`      // when the worker's lease ends
	ApprovedAt     time.Time `json:"approved_at,omitzero"`
	FinishedAt     time.Time `json:"finished_at,omitzero"`

	// Replaces is the intent that this one replaces, and ReplacedBy its successor: see [Replace]. Revision is 0 for the
	// intent that Insert wrote, and 1 more for each successor.
	Replaces   uuid.UUID `json:"replaces,omitzero"`
	ReplacedBy uuid.UUID `json:"replaced_by,omitzero"`
	Revision   int       `json:"revision,omitzero"`

	// ErasedAt is when its content was erased: see [Erase]. Payload, Headers, Subject, OrderingKey, RequestedBy, Reference
	// and the answers and errors in History are empty since then.
	ErasedAt time.Time `json:"erased_at,omitzero"`

	// History is what happened, in order; from Get only.
	History []Event `json:"history,omitempty"`
}

// Sent is what each attempt sends, byte for byte. As JSON, the members have the names of the columns of
// samekey.outbox_sends; for the request see [Entry.MarshalJSON].
type Sent struct {
	CarriedKey  string    `json:"carried_key,omitzero"`  // the delivery key in the form for this vendor
	Request     []byte    `json:"-"`                     // the rendered request, if the action renders requests
	RequestType string    `json:"request_type,omitzero"` // the type that the action's Render gave it
	MessageID   string    `json:"message_id,omitzero"`   // of a mail
	CreatedAt   time.Time `json:"created_at,omitzero"`
}

// Event is a line of an intent's history. Fields that do not apply are zero. As JSON, the members have the names of the
// columns of the view samekey.timeline; for the response see [Entry.MarshalJSON].
type Event struct {
	At    time.Time `json:"at,omitzero"`
	Event string    `json:"event,omitzero"` // attempt, lookup, apply, orphaned, late, approved, rejected, redriven, resolved, cancelled, replaced, restored, held, erased

	Attempt   int       `json:"attempt,omitzero"`
	Worker    int       `json:"worker,omitzero"`
	StartedAt time.Time `json:"started_at,omitzero"`
	Outcome   string    `json:"outcome,omitzero"` // delivered, refused, retry, unsent, unknown, dead, parked, awaiting_approval, absent, accepted, not_sent
	Code      string    `json:"code,omitzero"`
	Error     string    `json:"error,omitzero"`

	Response     []byte `json:"-"` // in JSON: response, response_text or response_base64
	ResponseType string `json:"response_type,omitzero"`
	Reference    string `json:"reference,omitzero"` // the vendor's id of what it did

	Actor  string `json:"actor,omitzero"` // the person who decided
	Reason string `json:"reason,omitzero"`
	DBUser string `json:"db_user,omitzero"` // the database login that made the decision

	FinalStatus Status `json:"final_status,omitzero"` // the final state that this event put the intent in
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
	return Sent{CarriedKey: row.CarriedKey, Request: row.Request, RequestType: keyed.OrZero(row.RequestType),
		MessageID: keyed.OrZero(row.MessageID), CreatedAt: row.CreatedAt}, err
}

func entry(r db.OutboxEntriesRow) Entry {
	e := Entry{
		ID: r.ID, Key: samekey.Key{Scope: r.Scope, Value: r.IdemKey}, Action: r.Action, Part: r.Part,
		DeliveryKey: r.DeliveryKey, Payload: r.Payload, ContentType: r.ContentType, Headers: headers(r.Headers),
		OrderingKey: keyed.OrZero(r.OrderingKey), Deadline: r.Deadline, CreatedAt: r.CreatedAt,
		TraceContext: keyed.OrZero(r.TraceContext), RequestedBy: keyed.OrZero(r.RequestedBy), WrittenBy: r.WrittenBy, Subject: keyed.OrZero(r.Subject), Reference: r.Reference, Status: Status(keyed.OrZero(r.Status)), DueAt: r.DueAt, Code: keyed.OrZero(r.LastCode), Cause: keyed.OrZero(r.Cause),
		Attempt: int(keyed.OrZero(r.Attempt)), AttemptsUsed: int(keyed.OrZero(r.AttemptsUsed)), FirstSentAt: keyed.OrZero(r.FirstSentAt),
		KeyWindowUntil: keyed.OrZero(r.KeyWindowUntil), LeasedBy: int(keyed.OrZero(r.LeasedBy)), LeaseUntil: keyed.OrZero(r.LeaseUntil),
		ApprovedAt: keyed.OrZero(r.ApprovedAt), FinishedAt: keyed.OrZero(r.FinishedAt),
		Replaces: keyed.OrZero(r.Replaces), ReplacedBy: r.ReplacedBy, Revision: int(r.Revision), ErasedAt: keyed.OrZero(r.ErasedAt),
	}
	if !e.ErasedAt.IsZero() {
		e.Payload = nil
	}
	if e.Deadline.IsZero() {
		e.Deadline = time.Time{} // in no time zone
	}
	if r.FinalStatus != nil {
		e.Status, e.Code = Status(*r.FinalStatus), keyed.OrZero(r.FinishedCode)
	}
	return e
}

func event(r db.OutboxHistoryRow) Event {
	return Event{
		At: r.At, Event: r.Event, Attempt: int(keyed.OrZero(r.Attempt)), Worker: int(keyed.OrZero(r.Worker)), StartedAt: keyed.OrZero(r.StartedAt),
		Outcome: keyed.OrZero(r.Outcome), Code: keyed.OrZero(r.Code), Error: keyed.OrZero(r.Error), Response: r.Response,
		ResponseType: keyed.OrZero(r.ResponseType), Reference: keyed.OrZero(r.Reference), Actor: keyed.OrZero(r.Actor), Reason: keyed.OrZero(r.Reason), DBUser: keyed.OrZero(r.DbUser), FinalStatus: Status(keyed.OrZero(r.FinalStatus)),
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
