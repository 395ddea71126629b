// Package ginkey makes handlers of gin safe to repeat: package httpkey for gin.
//
//	keyed, err := httpkey.New(pool, httpkey.Options{Scope: func(r *http.Request) []string {
//		return []string{ginkey.Context(r).GetString("tenant"), "orders.create"}
//	}})
//	..
//	router.POST("/orders", authenticated, ginkey.Handler(keyed, createOrder))
//
// The handler takes its transaction from the request's context:
//
//	func createOrder(c *gin.Context) {
//		order, err := insertOrder(c, httpkey.Tx(c.Request.Context()))
//		if err != nil {
//			_ = c.Error(err) // rolled back; done again where transactions collided
//			return
//		}
//		c.JSON(http.StatusCreated, order)
//	}
//
// # What may go wrong
//
//   - It is a handler and not a middleware. A middleware of gin calls c.Next, which
//     leads to the handlers behind it only once, and those write to the connection
//     before the commit.
//   - An error that the handler hands to c.Error without an answer goes to
//     httpkey.Abort. A handler that does neither is answered with a 500.
//   - c.Keys and c.Errors are for each run as they were before the first one.
//   - Handlers that come after this one must not write to the answer.
package ginkey

import (
	"bufio"
	"context"
	"maps"
	"net"
	"net/http"
	"slices"

	"github.com/gin-gonic/gin"

	"github.com/samekey/samekey/processed/httpkey"
)

// Handler returns h behind the middleware: a request with a key gets one effect
// and one answer, as package httpkey describes. Put it last on the route, behind
// authentication. h may be called several times for one request, each time in a
// transaction of its own after the one before was rolled back. Requests whose
// method takes no key (httpkey.Options.Methods) reach h as they are.
func Handler(keyed *httpkey.Middleware, h gin.HandlerFunc) gin.HandlerFunc {
	return func(c *gin.Context) {
		request, outer := c.Request, c.Writer
		keys, errs := maps.Clone(c.Keys), slices.Clone(c.Errors)
		defer func() { c.Request, c.Writer = request, outer }()
		run := func(w http.ResponseWriter, r *http.Request) {
			if w == http.ResponseWriter(outer) { // without a key
				c.Request = request
				h(c)
				return
			}
			held := &writer{ResponseWriter: w, status: http.StatusOK, size: -1}
			c.Request, c.Writer = r, held
			c.Keys, c.Errors = maps.Clone(keys), slices.Clone(errs)
			h(c)
			if held.chosen { // by c.Status, which gin writes later
				held.WriteHeaderNow()
			}
			if !held.Written() && len(c.Errors) > len(errs) {
				httpkey.Abort(r.Context(), c.Errors.Last().Err)
			}
		}
		inner := request.WithContext(context.WithValue(request.Context(), contextKey{}, c))
		keyed.Handler(http.HandlerFunc(run)).ServeHTTP(outer, inner)
	}
}

type contextKey struct{}

// Context returns gin's context of a request that httpkey hands to one of its
// options, such as Scope and Authorize. It is nil for requests that did not come
// through Handler.
func Context(r *http.Request) *gin.Context {
	c, _ := r.Context().Value(contextKey{}).(*gin.Context)
	return c
}

// writer is gin's view of an answer that is held back.
type writer struct {
	http.ResponseWriter
	status int
	chosen bool
	size   int // -1: nothing was written yet
}

var _ gin.ResponseWriter = (*writer)(nil)

func (w *writer) WriteHeader(status int) {
	if status > 0 && !w.Written() {
		w.status, w.chosen = status, true
	}
}

func (w *writer) WriteHeaderNow() {
	if !w.Written() {
		w.size = 0
		w.ResponseWriter.WriteHeader(w.status)
	}
}

func (w *writer) Write(p []byte) (int, error) {
	w.WriteHeaderNow()
	n, err := w.ResponseWriter.Write(p)
	w.size += n
	return n, err
}

func (w *writer) WriteString(s string) (int, error) { return w.Write([]byte(s)) }
func (w *writer) Status() int                       { return w.status }
func (w *writer) Size() int                         { return w.size }
func (w *writer) Written() bool                     { return w.size >= 0 }
func (w *writer) Pusher() http.Pusher               { return nil }

// Flush does not send: nothing is sent before the commit.
func (w *writer) Flush() { w.WriteHeaderNow() }

func (w *writer) Hijack() (net.Conn, *bufio.ReadWriter, error) { return nil, nil, http.ErrNotSupported }

// CloseNotify never tells: the work goes on when the client goes.
func (w *writer) CloseNotify() <-chan bool { return nil }

func (w *writer) Unwrap() http.ResponseWriter { return w.ResponseWriter }
