package httpkey

import (
	"bytes"
	"context"
	"io"
	"net/http"

	"github.com/jackc/pgx/v5"

	"github.com/samekey/samekey"
)

// call is one run of the handler.
type call struct {
	tx      pgx.Tx
	key     samekey.Key
	answer  *held
	verdict verdict
	err     error // of Abort
}

// handle calls the handler in the transaction.
func (c *call) handle(ctx context.Context, next http.Handler, r *http.Request, body []byte) {
	r = r.Clone(context.WithValue(ctx, callKey{}, c)) // what a handler changes in it, the next run must not find
	r.Body = io.NopCloser(bytes.NewReader(body))
	r.ContentLength = int64(len(body))
	defer func() {
		if r.MultipartForm != nil {
			_ = r.MultipartForm.RemoveAll() // net/http does it for its own request only
		}
	}()
	next.ServeHTTP(c.answer, r)
}

// fate is what becomes of the answer and of the rows that were written for it.
type fate int

const (
	forgotten  fate = iota // the rows too
	rolledBack             // the answer is stored, and nothing else
	committed
)

// fate is the table in the package comment.
func (c *call) fate() fate {
	byStatus := forgotten
	switch status := c.answer.status; {
	case status >= 200 && status < 400:
		byStatus = committed
	case status == http.StatusPaymentRequired, status == http.StatusNotFound, status == http.StatusConflict, status == http.StatusGone:
		byStatus = rolledBack
	}
	switch {
	case c.verdict == discard:
		return forgotten
	case c.verdict == keep && byStatus == forgotten:
		return rolledBack
	}
	return byStatus
}

type verdict int

const (
	none verdict = iota
	keep
	discard
)

type callKey struct{}

func callOf(ctx context.Context, what string) *call {
	c, ok := ctx.Value(callKey{}).(*call)
	if !ok {
		panic("httpkey: " + what + ": the context is not that of a POST or PATCH behind Middleware.Handler")
	}
	return c
}

// Tx returns the transaction in which the handler runs: its rows, its intents
// and its answer exist together, or none does. It is processed.Run's, whose rules
// hold: it is not the handler's to commit, and it ends when the handler returns.
// It takes one statement at a time.
//
// ctx is the request's context, or comes from it. With another, and for methods
// that take no key (GET, HEAD, OPTIONS, PUT, DELETE), Tx panics.
func Tx(ctx context.Context) pgx.Tx { return callOf(ctx, "Tx").tx }

// Key returns the request's key in its scope. It panics where Tx does.
func Key(ctx context.Context) samekey.Key { return callOf(ctx, "Key").key }

// Keep makes the answer one that is stored and replays, where its status alone
// would have it forgotten, such as a 422 that will be the same for ever. Rows are
// kept for a status of 200 to 399 only, as always. The last of Keep and Discard
// counts. It panics where Tx does.
func Keep(ctx context.Context) { callOf(ctx, "Keep").verdict = keep }

// Discard has everything rolled back and forgotten, whatever the status: the
// answer is sent, and the key may be used again, as for a dry run. The last of
// Keep and Discard counts. It panics where Tx does.
func Discard(ctx context.Context) { callOf(ctx, "Discard").verdict = discard }

// Abort hands over an error for which the handler has no answer, such as one of
// the database's. Everything is rolled back and forgotten, also what was written
// to the client. After a serialization failure or a deadlock the handler is
// called again, as processed.Run says; else the client gets a 503 where the same
// request may succeed when it is sent again, and a 500 otherwise, and the error
// is logged. An error of processed.Fail is the answer, stored as JSON. A nil
// error does nothing. It panics where Tx does.
//
// Hand it each error of the database that is not a business error of yours: a
// serialization failure that a handler takes for a 409 is stored as one.
func Abort(ctx context.Context, err error) {
	if c := callOf(ctx, "Abort"); err != nil {
		c.err = err
	}
}
