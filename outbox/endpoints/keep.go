package endpoints

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/google/uuid"

	"github.com/samekey/samekey"
	"github.com/samekey/samekey/internal/db"
	"github.com/samekey/samekey/internal/sqlstate"
	"github.com/samekey/samekey/outbox"
)

// ErrNotFound means that the destination has no endpoint with this name: it was never put, or was deleted.
var ErrNotFound = errors.New("endpoints: no such endpoint")

// Put adds an endpoint, or replaces the URL, the secrets and the headers of an existing one. A stopped endpoint stays
// stopped until [Start]. by is who changes it, and why: a person, or the customer who registers the receiver. The error
// lists all mistakes, and contains neither URL nor secrets nor values of headers.
//
// All functions in this package take a transaction of yours, including one of database/sql (samekey.SQL), or a pool or
// a connection, where the change commits by itself. Each change is an [Event] of the endpoint's [History].
func Put(ctx context.Context, on samekey.Tx, e Endpoint, by outbox.By) error {
	err := errors.Join(e.check(), by.Validate())
	if err == nil {
		headers := []byte("{}")
		if len(e.Headers) > 0 {
			headers, _ = json.Marshal(e.Headers) // never fails
		}
		err = db.New(on).ActEndpointPut(ctx, db.ActEndpointPutParams{
			Destination: e.Destination, Name: e.Name, Url: e.URL, Secrets: append([]string{}, e.Secrets...), Headers: string(headers),
			Actor: by.Actor, Reason: by.Reason})
	}
	if err != nil {
		return fmt.Errorf("endpoints: put %v: %w", e, err)
	}
	return nil
}

// Stop stops an endpoint: after its commit no intent is claimed for it. Running calls end normally, and intents that
// were claimed just before may still be sent. An endpoint that is stopped already keeps its StoppedBy and StopReason.
// [ErrNotFound] means that there is no such endpoint.
func Stop(ctx context.Context, on samekey.Tx, destination, name string, by outbox.By) error {
	return change("stop", destination, name, by, func() (bool, error) {
		return db.New(on).ActEndpointStop(ctx, db.ActEndpointStopParams{Destination: destination, Name: name, Actor: by.Actor, Reason: by.Reason})
	})
}

// Start allows calls to a stopped endpoint again. Intents that became dead meanwhile stay dead until a redrive
// (outbox.RedriveAll with Code "endpoint_stopped"). If it is not stopped, the answers to calls that were made before do
// not stop it. [ErrNotFound] means that there is no such endpoint.
func Start(ctx context.Context, on samekey.Tx, destination, name string, by outbox.By) error {
	return change("start", destination, name, by, func() (bool, error) {
		return db.New(on).ActEndpointStart(ctx, db.ActEndpointStartParams{Destination: destination, Name: name, Actor: by.Actor, Reason: by.Reason})
	})
}

// Delete deletes an endpoint. Its unfinished intents become dead, unsent, with the code "endpoint_missing". Its [History]
// stays. [ErrNotFound] means that there is no such endpoint.
func Delete(ctx context.Context, on samekey.Tx, destination, name string, by outbox.By) error {
	return change("delete", destination, name, by, func() (bool, error) {
		return db.New(on).ActEndpointDelete(ctx, db.ActEndpointDeleteParams{Destination: destination, Name: name, Actor: by.Actor, Reason: by.Reason})
	})
}

func change(verb, destination, name string, by outbox.By, write func() (bool, error)) error {
	err := errors.Join(checkName(destination, name), by.Validate())
	if err == nil {
		var found bool
		if found, err = write(); err == nil && !found {
			err = ErrNotFound
		}
	}
	if err != nil {
		return fmt.Errorf("endpoints: %s %s/%s: %w", verb, destination, name, err)
	}
	return nil
}

// ErrStopped means that the endpoint is stopped, so that a [Test] could not reach it. The transaction is aborted: roll it
// back, [Start] the endpoint, and test again.
var ErrStopped = errors.New("endpoints: the endpoint is stopped: start it first")

// Test writes an intent of an action for one endpoint, so that its owner can see whether it works, and returns the
// intent's id: [Deliveries] tells what became of it. Payload is JSON, at most 1 MiB. The worker treats the intent as any
// other of this action, with its attempts, its approval and its Attention function, and a failure counts as one of the
// endpoint. Its part is the endpoint's name, so the action must find its endpoint by the part, as
// httpvendor.StandardWebhooks does, and belong to this destination; else the intent is dead, or goes elsewhere.
//
// Each call is another intent: its key is new, in the scope "endpoint_test/" and the destination. Call outbox.Flush with
// the action after the commit. [ErrNotFound] means that there is no such endpoint, and [ErrStopped] that it is stopped.
// An operator's role (schema.Roles) may not call it.
func Test(ctx context.Context, on samekey.Tx, destination, name, action string, payload []byte, by outbox.By) (uuid.UUID, error) {
	err := errors.Join(checkName(destination, name), by.Validate())
	var id uuid.UUID
	if err == nil {
		id, err = db.New(on).ActEndpointTest(ctx, db.ActEndpointTestParams{Destination: destination, Name: name, Action: action, Payload: payload, Actor: by.Actor, Reason: by.Reason})
	}
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		err = ErrNotFound
	case sqlstate.Of(err) == sqlstate.StateRefuses:
		err = ErrStopped
	}
	if err != nil {
		return uuid.Nil, fmt.Errorf("endpoints: test %s/%s: %w", destination, name, err)
	}
	return id, nil
}

// Get returns an endpoint without its secrets. [ErrNotFound] means that there is no such endpoint.
func Get(ctx context.Context, on samekey.Tx, destination, name string) (Endpoint, error) {
	err := checkName(destination, name) // an invalid name would abort the caller's transaction
	var row db.EndpointsGetRow
	if err == nil {
		row, err = db.New(on).EndpointsGet(ctx, db.EndpointsGetParams{Destination: destination, Name: name})
	}
	if errors.Is(err, pgx.ErrNoRows) {
		err = ErrNotFound
	}
	if err != nil {
		return Endpoint{}, fmt.Errorf("endpoints: get %s/%s: %w", destination, name, err)
	}
	return endpoint(row), nil
}

// List returns a page of a destination's endpoints in the order of their names, without their secrets. The page starts
// after the name after, or with the first endpoint if it is empty. Limit is 1 to 1000. The last page has fewer than
// limit.
func List(ctx context.Context, on samekey.Tx, destination, after string, limit int) ([]Endpoint, error) {
	err := checkPage(destination, cmp.Or(after, "a"), limit) // the first page is after no name
	var rows []db.EndpointsListRow
	if err == nil {
		rows, err = db.New(on).EndpointsList(ctx, db.EndpointsListParams{Destination: destination, AfterName: after, MaxCount: int32(limit)})
	}
	if err != nil {
		return nil, fmt.Errorf("endpoints: list %s: %w", destination, err)
	}
	out := make([]Endpoint, len(rows))
	for i, row := range rows {
		out[i] = endpoint(db.EndpointsGetRow(row))
	}
	return out, nil
}

// Event is a change of an endpoint.
type Event struct {
	ID int64
	At time.Time

	// Event is what happened: "created", "changed", "stopped", "started", "tested" or "deleted".
	Event string

	// Actor is the person or the program, as the caller of the act named them. Empty: the receiver stopped the endpoint,
	// by its answer or by failing for too long.
	Actor  string
	Reason string

	// DBUser is the database's login (session_user) that made the change.
	DBUser string
}

// History returns a page of what happened to an endpoint, newest first, for a year: also of a deleted one. The page ends
// before the event before, or starts with the newest if it is 0. Limit is 1 to 1000. The last page has fewer than limit.
func History(ctx context.Context, on samekey.Tx, destination, name string, before int64, limit int) ([]Event, error) {
	err := checkPage(destination, name, limit)
	if before == 0 {
		before = math.MaxInt64
	}
	var rows []db.EndpointHistoryListRow
	if err == nil {
		rows, err = db.New(on).EndpointHistoryList(ctx, db.EndpointHistoryListParams{
			Destination: destination, Name: name, BeforeID: before, MaxCount: int32(limit)})
	}
	if err != nil {
		return nil, fmt.Errorf("endpoints: history of %s/%s: %w", destination, name, err)
	}
	out := make([]Event, len(rows))
	for i, row := range rows {
		out[i] = Event{ID: row.ID, At: row.At, Event: row.Event, Actor: row.Actor, Reason: row.Reason, DBUser: row.DbUser}
	}
	return out, nil
}
