package httpkey

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"

	"github.com/jackc/pgx/v5"

	"github.com/samekey/samekey"
	"github.com/samekey/samekey/processed"
)

// call is one call of the handler.
type call struct {
	tx     pgx.Tx               // nil with Options.Steps
	op     *processed.Operation // nil without
	key    samekey.Key
	answer *held
	routes *routes
	late   func() // logs that Tx was called after the middleware had answered

	// A handler may leave goroutines behind, as http.TimeoutHandler does. Once the handler has returned they change
	// nothing here, so from then on the fields may be read without the lock.
	mu      sync.Mutex
	ended   bool
	touched bool // Tx or Operation was called
	verdict verdict
	err     error // of Abort
}

// handle calls the handler in the transaction.
func (c *call) handle(ctx context.Context, next http.Handler, r *http.Request, body []byte) {
	defer c.end()
	c.routes = &routes{Context: ctx}
	r = r.Clone(context.WithValue(c.routes, callKey{}, c)) // the next call must not see what this one changes in the request
	r.Header.Del("Accept-Encoding")                        // it is this client's, and the stored answer is for every client
	r.Body = io.NopCloser(bytes.NewReader(body))
	r.ContentLength = int64(len(body))
	defer func() {
		if r.MultipartForm != nil {
			_ = r.MultipartForm.RemoveAll() // net/http does this for its own request only
		}
	}()
	next.ServeHTTP(c.answer, r)
}

// end notes that the handler has returned.
func (c *call) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ended = true
}

// while calls do unless the handler has returned. It reports whether it called do.
func (c *call) while(do func()) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended {
		return false
	}
	do()
	return true
}

// fate is what happens to the answer and to the rows written for it.
type fate int

const (
	forgotten  fate = iota // neither is kept
	rolledBack             // only the answer is stored
	committed
)

// fate implements the table in the package comment.
func (c *call) fate() fate {
	status := c.answer.status
	switch {
	case c.verdict == discard, c.sendsOn():
		return forgotten
	case c.verdict != keep && !c.touched && isRouters(status):
		return forgotten
	case status >= 200 && status < 400:
		return committed
	case c.verdict == keep,
		status == http.StatusPaymentRequired, status == http.StatusNotFound, status == http.StatusConflict, status == http.StatusGone:
		return rolledBack
	}
	return forgotten
}

// sendsOn reports whether the answer sends the client elsewhere with the same request: the work is done there, and not
// here.
func (c *call) sendsOn() bool {
	return c.answer.status == http.StatusTemporaryRedirect || c.answer.status == http.StatusPermanentRedirect
}

// isRouters reports whether a router answers with this status by itself, without reaching a handler of the service.
func isRouters(status int) bool {
	switch status {
	case http.StatusMovedPermanently, http.StatusFound, http.StatusSeeOther, http.StatusNotFound, http.StatusMethodNotAllowed:
		return true
	}
	return false
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
		panic("httpkey: " + what + ": the context does not come from a request behind Middleware.Handler whose method takes a key (Options.Methods)")
	}
	return c
}

// Tx returns the transaction in which the handler runs: its rows, its intents and its answer exist together, or none
// does. The rules of processed.Run apply: the handler cannot commit it, it ends when the handler returns, and it takes
// one statement at a time.
//
// ctx is the request's context or comes from it. With any other context, and for methods that take no key
// (Options.Methods), Tx panics. After the handler has returned, each statement fails with pgx.ErrTxClosed, and the
// first call of Tx is logged. That reveals a framework that runs the handler after the middleware.
func Tx(ctx context.Context) pgx.Tx {
	c := callOf(ctx, "Tx")
	if c.op != nil {
		panic("httpkey: Tx: with Options.Steps a request has no transaction of its own: use Operation, and the transaction of each step")
	}
	c.touch()
	return c.tx
}

// Operation returns the operation that the handler does in several transactions, with Options.Steps: pass it to
// processed.Step and processed.Call, and each error of theirs that has no answer to [Abort]. It panics without
// Options.Steps, and where Tx does.
func Operation(ctx context.Context) *processed.Operation {
	c := callOf(ctx, "Operation")
	if c.op == nil {
		panic("httpkey: Operation: the middleware has no Options.Steps: set it, or use Tx")
	}
	c.touch()
	return c.op
}

func (c *call) touch() {
	if !c.while(func() { c.touched = true }) {
		c.late()
	}
}

// Key returns the request's key in its scope. It panics where Tx does.
func Key(ctx context.Context) samekey.Key { return callOf(ctx, "Key").key }

// Keep stores an answer that would otherwise be forgotten, such as a 422 that stays the same. Rows are kept for a
// status of 200 to 399 only, as always, and 307 and 308 are never stored. The last call of Keep or Discard counts. It
// panics where Tx does, and does nothing after the handler has returned.
func Keep(ctx context.Context) { callOf(ctx, "Keep").decide(keep) }

// Discard rolls everything back and stores nothing, whatever the status: the answer is sent, and the key can be used
// again, as for a dry run. The last call of Keep or Discard counts. It panics where Tx does, and does nothing after the
// handler has returned.
func Discard(ctx context.Context) { callOf(ctx, "Discard").decide(discard) }

func (c *call) decide(v verdict) { c.while(func() { c.verdict = v }) }

// Abort passes on an error for which the handler has no answer, such as an error of the database. Everything is rolled
// back and nothing is stored; what the handler wrote to the client is dropped.
//
//   - After a serialization failure or a deadlock the handler is called again, as in processed.Run.
//   - An error of processed.Fail is the answer, stored as JSON. Its code must be a status from 400 to 599; otherwise it
//     is an ordinary error.
//   - For any other error the client gets a 503 if the same request may succeed when it is sent again, else a 500. The
//     error is logged. With Options.Steps, a step whose outcome is unknown is a 503 too.
//
// Pass every database error that is not a business error to Abort: a handler that turns a serialization failure into a
// 409 has it stored as one. A nil error does nothing. Abort panics where Tx does, and does nothing after the handler
// has returned.
func Abort(ctx context.Context, err error) {
	c := callOf(ctx, "Abort")
	if err == nil {
		return
	}
	if failure, ok := errors.AsType[*processed.Failure](err); ok && (failure.Code < 400 || failure.Code > 599) {
		// It is not wrapped, because it would be stored then.
		err = fmt.Errorf("httpkey: Abort: processed.Fail has code %d, which is not an error status: use 400 to 599", failure.Code)
	}
	c.while(func() { c.err = err })
}
