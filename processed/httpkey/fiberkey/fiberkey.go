// Package fiberkey makes handlers of Fiber (v3) safe to repeat: package httpkey for
// Fiber.
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
//			return err // rolled back; done again where transactions collided
//		}
//		return c.Status(fiber.StatusCreated).JSON(order)
//	}
//
// # What becomes of a returned error
//
//   - An error of processed.Fail is the answer.
//   - A collision in the database (SQLSTATE class 40) is rolled back, and the
//     handler is called again.
//   - A *fiber.Error, and any other error for which the app's ErrorHandler has an
//     answer below 500, is answered by it, inside the middleware; the answer's
//     status decides what is kept.
//   - All other errors go to httpkey.Abort: rolled back, forgotten and logged, 500
//     or 503.
//
// A nil error is an answer also where nothing was written: Fiber's 200.
//
// # What may go wrong
//
//   - Fiber's adaptor.HTTPMiddleware does not work with httpkey, which refuses it:
//     it runs the handler after the middleware.
//   - It is a handler and not a middleware: c.Next leads to the handlers behind it
//     once.
//   - A panic of the handler ends the process unless Fiber's recover middleware is
//     in front, as everywhere in Fiber.
//   - Fiber notices no client that goes, and bounds the request's body by its own
//     BodyLimit.
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

	"github.com/samekey/samekey/processed"
	"github.com/samekey/samekey/processed/httpkey"
)

// Handler returns h behind the middleware: a request with a key gets one effect
// and one answer, as package httpkey describes. Put it last on the route, behind
// authentication. h may be called several times for one request, each time in a
// transaction of its own after the one before was rolled back, and with the answer
// that was there before the first call; c.Locals stay. Requests whose method takes
// no key (httpkey.Options.Methods) reach h as they are.
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
			if !ended { // h panicked: what it answered by then is not the answer
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
			_, _ = inner.Write(c.Response().Body()) // where it cannot be kept, httpkey knows
		})).ServeHTTP(w, r)
		if ended = true; !through {
			w.send(c.Response())
		}
		return failed
	}
}

// fail is what the package comment says of a returned error.
func fail(c fiber.Ctx, err error) {
	_, final := errors.AsType[*processed.Failure](err)
	if final || collided(err) {
		httpkey.Abort(c.Context(), err)
		return
	}
	unanswered := c.App().ErrorHandler(c, err)
	_, said := errors.AsType[*fiber.Error](err)
	if unanswered != nil || !said && c.Response().StatusCode() >= fiber.StatusInternalServerError {
		httpkey.Abort(c.Context(), err)
	}
}

// collided reports whether the database rolled back for the sake of another
// transaction.
func collided(err error) bool {
	var said interface{ SQLState() string }
	return errors.As(err, &said) && strings.HasPrefix(said.SQLState(), "40")
}

// request is c's as net/http has it. Unlike that of Fiber's adaptor, it keeps a
// header that came twice.
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

// Context returns Fiber's context of a request that httpkey hands to one of its
// options, such as Scope and Authorize. It is nil for requests that did not come
// through Handler.
func Context(r *http.Request) fiber.Ctx {
	c, _ := r.Context().Value(contextKey{}).(fiber.Ctx)
	return c
}

func read(into http.Header, from *fasthttp.ResponseHeader) {
	for name, value := range from.All() {
		into.Add(string(name), string(value))
	}
}

// answer is what httpkey sends.
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
