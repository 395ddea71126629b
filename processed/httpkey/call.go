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

// call is one run of the handler.
type call struct {
	tx     pgx.Tx
	key    samekey.Key
	answer *held
	routes *routes
	late   func() // logs that the handler came too late

	// A handler may leave goroutines behind (http.TimeoutHandler does). What they
	// do after it has returned changes nothing here, so that from then on the fields
	// may be read without the lock.
	mu      sync.Mutex
	ended   bool
	touched bool // Tx was called
	verdict verdict
	err     error // of Abort
}

// handle calls the handler in the transaction.
func (c *call) handle(ctx context.Context, next http.Handler, r *http.Request, body []byte) {
	defer c.end()
	c.routes = &routes{Context: ctx}
	r = r.Clone(context.WithValue(c.routes, callKey{}, c)) // what a handler changes in it, the next run must not find
	r.Header.Del("Accept-Encoding")                        // of this client; the stored answer is for any
	r.Body = io.NopCloser(bytes.NewReader(body))
	r.ContentLength = int64(len(body))
	defer func() {
		if r.MultipartForm != nil {
			_ = r.MultipartForm.RemoveAll() // net/http does it for its own request only
		}
	}()
	next.ServeHTTP(c.answer, r)
}

func (c *call) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ended = true
}

// while calls do unless the handler has returned, and reports whether it did.
func (c *call) while(do func()) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended {
		return false
	}
	do()
	return true
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

// sendsOn reports whether the answer sends the client elsewhere with the same
// request: the request is done there, and not here.
func (c *call) sendsOn() bool {
	return c.answer.status == http.StatusTemporaryRedirect || c.answer.status == http.StatusPermanentRedirect
}

// isRouters reports whether a router answers so by itself, where no handler of
// the service was reached.
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
		panic("httpkey: " + what + ": the context is not that of a request behind Middleware.Handler whose method takes a key (Options.Methods)")
	}
	return c
}

// Tx returns the transaction in which the handler runs: its rows, its intents
// and its answer exist together, or none does. It is processed.Run's, whose rules
// hold: it is not the handler's to commit, and it ends when the handler returns.
// It takes one statement at a time.
//
// ctx is the request's context, or comes from it. With another, and for methods
// that take no key (Options.Methods), Tx panics. After the handler has returned,
// each statement fails with pgx.ErrTxClosed, and the first call of Tx is logged:
// so a framework is noticed that runs the handler after the middleware.
func Tx(ctx context.Context) pgx.Tx {
	c := callOf(ctx, "Tx")
	if !c.while(func() { c.touched = true }) {
		c.late()
	}
	return c.tx
}

// Key returns the request's key in its scope. It panics where Tx does.
func Key(ctx context.Context) samekey.Key { return callOf(ctx, "Key").key }

// Keep makes the answer one that is stored and replays, where it would otherwise
// be forgotten, such as a 422 that stays the same. Rows are kept for a status of
// 200 to 399 only, as always, and 307 and 308 are never stored. The last of Keep
// and Discard counts. It panics where Tx does, and does nothing after the handler
// has returned.
func Keep(ctx context.Context) { callOf(ctx, "Keep").decide(keep) }

// Discard has everything rolled back and forgotten, whatever the status: the
// answer is sent, and the key may be used again, as for a dry run. The last of
// Keep and Discard counts. It panics where Tx does, and does nothing after the
// handler has returned.
func Discard(ctx context.Context) { callOf(ctx, "Discard").decide(discard) }

func (c *call) decide(v verdict) { c.while(func() { c.verdict = v }) }

// Abort hands over an error for which the handler has no answer, such as one of
// the database's. Everything is rolled back and forgotten, also what was written
// to the client. After a serialization failure or a deadlock the handler is
// called again, as processed.Run says; else the client gets a 503 where the same
// request may succeed when it is sent again, and a 500 otherwise, and the error
// is logged. An error of processed.Fail is the answer, stored as JSON; its code
// must be a status from 400 to 599, or the error is an ordinary one (500). A nil
// error does nothing. It panics where Tx does, and does nothing after the handler
// has returned.
//
// Hand it each error of the database that is not a business error of yours: a
// serialization failure that a handler takes for a 409 is stored as one.
func Abort(ctx context.Context, err error) {
	c := callOf(ctx, "Abort")
	if err == nil {
		return
	}
	if failure, ok := errors.AsType[*processed.Failure](err); ok && (failure.Code < 400 || failure.Code > 599) {
		// Not wrapped: it would be stored.
		err = fmt.Errorf("httpkey: Abort: processed.Fail has code %d, which is not the status of an error: give 400 to 599", failure.Code)
	}
	c.while(func() { c.err = err })
}
