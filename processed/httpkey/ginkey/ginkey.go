// Package ginkey makes gin handlers safe to repeat. It is package httpkey for gin.
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
//			_ = c.Error(err) // rolled back; called again after a collision
//			return
//		}
//		c.JSON(http.StatusCreated, order)
//	}
//
// # Errors
//
// An error that the handler passes to c.Error without writing an answer goes to httpkey.Abort. A handler that does
// neither is answered with a 500.
//
// # Limits
//
//   - [Handler] wraps a handler; it is not a middleware, because c.Next runs the following handlers only once, and they
//     would write to the connection before the commit.
//   - Each call of the handler starts with c.Keys and c.Errors as they were before the first one.
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

// Handler returns h behind the middleware: a request with a key has one effect and one answer, as package httpkey
// describes. Put it last on the route, behind authentication.
//
// h may be called several times for one request, each time in a new transaction after the previous one was rolled back.
// Requests whose method takes no key (httpkey.Options.Methods) reach h unchanged.
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
			if held.chosen { // c.Status alone: gin would write it after the handler
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

// Context returns gin's context of a request. Use it in httpkey.Options, such as Scope and Authorize. It is nil if the
// request did not come through Handler.
func Context(r *http.Request) *gin.Context {
	c, _ := r.Context().Value(contextKey{}).(*gin.Context)
	return c
}

// writer shows the answer that httpkey holds back to gin.
type writer struct {
	http.ResponseWriter
	status int
	chosen bool
	size   int // -1 before the first write
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

// Flush sends nothing: the answer is sent after the commit.
func (w *writer) Flush() { w.WriteHeaderNow() }

func (w *writer) Hijack() (net.Conn, *bufio.ReadWriter, error) { return nil, nil, http.ErrNotSupported }

// CloseNotify never fires: the work goes on when the client disconnects.
func (w *writer) CloseNotify() <-chan bool { return nil }

func (w *writer) Unwrap() http.ResponseWriter { return w.ResponseWriter }
