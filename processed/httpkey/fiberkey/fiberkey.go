// Package fiberkey makes Fiber (v3) handlers safe to repeat. It is package httpkey for Fiber.
//
//	keyed, err := httpkey.New(pool, httpkey.Options{Scope: func(r *http.Request) []string {
//		tenant, _ := fiberkey.Context(r).Locals("tenant").(string)
//		return []string{tenant, "orders.create"}
//	}})
//	..
//	app.Post("/orders", authenticated, fiberkey.Handler(keyed, createOrder))
//
// The handler takes its transaction from Fiber's context:
//
//	func createOrder(c fiber.Ctx) error {
//		order, err := insertOrder(c.Context(), httpkey.Tx(c.Context()))
//		if err != nil {
//			return err // rolled back; called again after a collision
//		}
//		return c.Status(fiber.StatusCreated).JSON(order)
//	}
//
// # Returned errors
//
//   - An error of processed.Fail is the answer. It is stored.
//   - After a collision in the database (SQLSTATE class 40) the transaction is rolled back and the handler is called
//     again.
//   - A *fiber.Error, and any error that the app's ErrorHandler answers with a status below 500, is answered inside the
//     middleware. The status decides what is stored, as in package httpkey.
//   - Every other error goes to httpkey.Abort: the work is rolled back, nothing is stored, the error is logged, and the
//     client gets a 500 or 503.
//
// A nil error without an answer is Fiber's empty 200.
//
// # Limits
//
//   - Fiber's adaptor.HTTPMiddleware cannot work with httpkey, because it runs the handler after the middleware.
//     httpkey refuses it with a 500.
//   - [Handler] wraps a handler; it is not a middleware, because c.Next runs the following handlers only once.
//   - A panic in the handler ends the process unless Fiber's recover middleware is in front, as everywhere in Fiber.
//   - Fiber does not notice when a client disconnects, and limits the request's body by its own BodyLimit.
package fiberkey

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strings"

	"github.com/gofiber/fiber/v3"
	"github.com/valyala/fasthttp"

	"github.com/samekey/samekey/internal/sqlstate"
	"github.com/samekey/samekey/processed"
	"github.com/samekey/samekey/processed/httpkey"
)

// Handler returns h behind the middleware: a request with a key has one effect and one answer, as package httpkey
// describes. Put it last on the route, behind authentication.
//
// h may be called several times for one request, each time in a new transaction after the previous one was rolled back.
// Each call starts with the response as it was before the first one; c.Locals remain. Requests whose method takes no
// key (httpkey.Options.Methods) reach h unchanged.
func Handler(keyed *httpkey.Middleware, h fiber.Handler) fiber.Handler {
	return func(c fiber.Ctx) (failed error) {
		r, err := request(c)
		if err != nil {
			return err
		}
		before := fasthttp.AcquireResponse()
		defer fasthttp.ReleaseResponse(before)
		c.Response().CopyTo(before)
		outer, ended := c.Context(), false
		defer func() {
			c.SetContext(outer)
			if !ended { // h panicked: drop what it had written
				before.CopyTo(c.Response())
			}
		}()
		w, through := &answer{header: http.Header{}}, false
		read(w.header, &before.Header)
		keyed.Handler(http.HandlerFunc(func(inner http.ResponseWriter, r *http.Request) {
			if inner == http.ResponseWriter(w) { // without a key
				through, failed = true, h(c)
				return
			}
			before.CopyTo(c.Response())
			c.SetContext(r.Context())
			if err := h(c); err != nil {
				fail(c, err)
			}
			clear(inner.Header())
			read(inner.Header(), &c.Response().Header)
			inner.WriteHeader(c.Response().StatusCode())
			_, _ = inner.Write(c.Response().Body()) // httpkey keeps the error
		})).ServeHTTP(w, r)
		if ended = true; !through {
			w.send(c.Response())
		}
		return failed
	}
}

// fail turns a returned error into the answer, as the package comment describes.
func fail(c fiber.Ctx, err error) {
	_, failure := errors.AsType[*processed.Failure](err)
	if failure || strings.HasPrefix(sqlstate.Of(err), "40") {
		httpkey.Abort(c.Context(), err)
		return
	}
	unanswered := c.App().ErrorHandler(c, err)
	_, chosen := errors.AsType[*fiber.Error](err)
	if unanswered != nil || !chosen && c.Response().StatusCode() >= fiber.StatusInternalServerError {
		httpkey.Abort(c.Context(), err)
	}
}

// request converts c's request to net/http. Unlike Fiber's adaptor, it keeps repeated headers.
func request(c fiber.Ctx) (*http.Request, error) {
	from := c.Request()
	uri := string(from.Header.RequestURI())
	target, err := url.ParseRequestURI(uri)
	if err != nil {
		return nil, fiber.ErrBadRequest
	}
	body := bytes.Clone(from.Body())
	r := &http.Request{
		Method: string(from.Header.Method()), URL: target, RequestURI: uri, Host: string(from.Host()),
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Header: http.Header{}, RemoteAddr: c.RequestCtx().RemoteAddr().String(),
		TLS: c.RequestCtx().TLSConnectionState(), Body: io.NopCloser(bytes.NewReader(body)), ContentLength: int64(len(body)),
	}
	for name, value := range from.Header.All() {
		r.Header.Add(string(name), string(value))
	}
	return r.WithContext(context.WithValue(c.Context(), contextKey{}, c)), nil
}

type contextKey struct{}

// Context returns Fiber's context of a request. Use it in httpkey.Options, such as Scope and Authorize. It is nil if
// the request did not come through Handler.
func Context(r *http.Request) fiber.Ctx {
	c, _ := r.Context().Value(contextKey{}).(fiber.Ctx)
	return c
}

// read adds fasthttp's headers to into.
func read(into http.Header, from *fasthttp.ResponseHeader) {
	for name, value := range from.All() {
		into.Add(string(name), string(value))
	}
}

// answer is the http.ResponseWriter that httpkey answers to.
type answer struct {
	header http.Header
	status int
	body   bytes.Buffer
}

func (a *answer) Header() http.Header { return a.header }

func (a *answer) WriteHeader(status int) {
	if a.status == 0 && status >= 200 {
		a.status = status
	}
}

func (a *answer) Write(p []byte) (int, error) {
	a.WriteHeader(http.StatusOK)
	return a.body.Write(p)
}

func (a *answer) send(to *fasthttp.Response) {
	to.Reset()
	to.SetStatusCode(a.status)
	for name, values := range a.header {
		for _, value := range values {
			if name == "Content-Type" {
				to.Header.SetContentType(value)
			} else if name != "Content-Length" {
				to.Header.Add(name, value)
			}
		}
	}
	if len(a.header["Content-Type"]) == 0 {
		to.Header.SetNoDefaultContentType(true)
	}
	to.SetBodyRaw(a.body.Bytes())
}
