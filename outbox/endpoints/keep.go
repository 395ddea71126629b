package endpoints

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/samekey/samekey"
	"github.com/samekey/samekey/internal/db"
	"github.com/samekey/samekey/outbox"
)

// ErrNotFound says that there is no endpoint of this name behind this destination: it was never put, or was deleted.
var ErrNotFound = errors.New("endpoints: no such endpoint")

// Put adds an endpoint, or changes the URL and the secrets of the one that is there; Secrets that are left out are taken
// away. One that is stopped stays so until [Start]. The error holds every mistake at once, and neither URL nor secrets.
//
// Each function here writes through a transaction of yours, of database/sql too (samekey.SQL), or through a pool or a
// connection, where it commits by itself.
func Put(ctx context.Context, on samekey.Tx, e Endpoint) error {
	err := e.check()
	if err == nil {
		secrets := append([]string{}, e.Secrets...)
		err = db.New(on).EndpointsPut(ctx, db.EndpointsPutParams{Destination: e.Destination, Name: e.Name, Url: e.URL, Secrets: secrets})
	}
	if err != nil {
		return fmt.Errorf("endpoints: put %v: %w", e, err)
	}
	return nil
}

// Stop has nothing more be claimed for an endpoint and sent to it from its commit on; calls under way end as they do, and what
// was claimed right before may still be sent. One that is stopped already keeps who stopped it and why. [ErrNotFound] means that there is none of this name.
func Stop(ctx context.Context, on samekey.Tx, destination, name string, by outbox.By) error {
	return change("stop", destination, name, by.Validate(), func() (int64, error) {
		return db.New(on).EndpointsStop(ctx, db.EndpointsStopParams{Destination: destination, Name: name, Actor: by.Actor, Reason: by.Reason})
	})
}

// Start lets an endpoint be called again. What became dead meanwhile stays so until it is redriven (outbox.RedriveAll, with
// Code "endpoint_stopped"). One that is not stopped stays as it is. [ErrNotFound] means that there is none of this name.
func Start(ctx context.Context, on samekey.Tx, destination, name string) error {
	return change("start", destination, name, nil, func() (int64, error) {
		return db.New(on).EndpointsStart(ctx, db.EndpointsStartParams{Destination: destination, Name: name})
	})
}

// Delete forgets an endpoint. What is on its way for it becomes dead, unsent, with the code "endpoint_missing".
// [ErrNotFound] means that there is none of this name.
func Delete(ctx context.Context, on samekey.Tx, destination, name string) error {
	return change("delete", destination, name, nil, func() (int64, error) {
		return db.New(on).EndpointsDelete(ctx, db.EndpointsDeleteParams{Destination: destination, Name: name})
	})
}

func change(verb, destination, name string, bad error, write func() (int64, error)) error {
	err := errors.Join(checkName(destination, name), bad)
	if err == nil {
		var n int64
		if n, err = write(); err == nil && n == 0 {
			err = ErrNotFound
		}
	}
	if err != nil {
		return fmt.Errorf("endpoints: %s %s/%s: %w", verb, destination, name, err)
	}
	return nil
}

// Get returns an endpoint, without its secrets. [ErrNotFound] means that there is none of this name.
func Get(ctx context.Context, on samekey.Tx, destination, name string) (Endpoint, error) {
	err := checkName(destination, name) // else the statement may fail, and with it the caller's transaction
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

// List returns up to limit endpoints of a destination, 1 to 1000, in the order of their names, behind a name or from the
// first on where it is empty; without their secrets. Fewer than limit are the last ones.
func List(ctx context.Context, on samekey.Tx, destination, behind string, limit int) ([]Endpoint, error) {
	if limit < 1 || limit > 1000 {
		return nil, fmt.Errorf("endpoints: list %s: limit %d is outside 1 to 1000", destination, limit)
	}
	rows, err := db.New(on).EndpointsList(ctx, db.EndpointsListParams{Destination: destination, AfterName: behind, MaxCount: int32(limit)})
	if err != nil {
		return nil, fmt.Errorf("endpoints: list %s: %w", destination, err)
	}
	out := make([]Endpoint, len(rows))
	for i, row := range rows {
		out[i] = endpoint(db.EndpointsGetRow(row))
	}
	return out, nil
}
