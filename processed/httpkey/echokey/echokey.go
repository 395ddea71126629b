// Package echokey makes echo handlers safe to repeat. It is package httpkey for echo.
//
//	keyed, err := httpkey.New(pool, httpkey.Options{Scope: func(r *http.Request) []string {
//		tenant, _ := echokey.Context(r).Get("tenant").(string)
//		return []string{tenant, "orders.create"}
//	}})
//	..
//	e.POST("/orders", createOrder, authenticated, echokey.Middleware(keyed))
//
// The handler takes its transaction from the request's context:
//
//	func createOrder(c echo.Context) error {
//		ctx := c.Request().Context()
//		order, err := insertOrder(ctx, httpkey.Tx(ctx))
//		if err != nil {
//			return err // rolled back; called again after a collision
//		}
//		return c.JSON(http.StatusCreated, order)
//	}
//
// # Returned errors
//
//   - An error of processed.Fail is the answer. It is stored.
//   - After a collision in the database (SQLSTATE class 40) the transaction is rolled back and the handler is called
//     again.
//   - An *echo.HTTPError, and any error that the HTTPErrorHandler answers with a status below 500, is answered inside
//     the middleware. The status decides what is stored, as in package httpkey.
//   - Every other error goes to httpkey.Abort: the work is rolled back, nothing is stored, the error is logged, and the
//     client gets a 500 or 503.
//   - An error that is returned after the answer was written always goes to httpkey.Abort.
//
// Put middlewares that write to the answer, such as compression, in front of this one.
package echokey

import (
	"context"
	"errors"
	"net/http"
	"strings"

	"github.com/labstack/echo/v4"

	"github.com/samekey/samekey/internal/sqlstate"
	"github.com/samekey/samekey/processed"
	"github.com/samekey/samekey/processed/httpkey"
)

// Middleware returns the echo middleware: a request with a key has one effect and one answer, as package httpkey
// describes. Put it behind authentication.
//
// What is behind it may be called several times for one request, each time in a new transaction after the previous one
// was rolled back. Values of c.Set remain. Requests whose method takes no key (httpkey.Options.Methods) pass unchanged.
func Middleware(keyed *httpkey.Middleware) echo.MiddlewareFunc {
	return func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) (failed error) {
			request, outer := c.Request(), c.Response()
			defer func() {
				c.SetRequest(request)
				c.SetResponse(outer)
			}()
			run := func(w http.ResponseWriter, r *http.Request) {
				if w == http.ResponseWriter(outer) { // without a key
					failed = next(c)
					return
				}
				c.SetRequest(r)
				c.SetResponse(echo.NewResponse(w, c.Echo()))
				if err := next(c); err != nil {
					answer(c, err)
				}
			}
			inner := request.WithContext(context.WithValue(request.Context(), contextKey{}, c))
			keyed.Handler(http.HandlerFunc(run)).ServeHTTP(outer, inner)
			return failed
		}
	}
}

// answer turns a returned error into the answer, as the package comment describes.
func answer(c echo.Context, err error) {
	ctx := c.Request().Context()
	_, failure := errors.AsType[*processed.Failure](err)
	if failure || c.Response().Committed || strings.HasPrefix(sqlstate.Of(err), "40") {
		httpkey.Abort(ctx, err)
		return
	}
	c.Error(err)
	_, chosen := errors.AsType[*echo.HTTPError](err)
	if !c.Response().Committed || !chosen && c.Response().Status >= http.StatusInternalServerError {
		httpkey.Abort(ctx, err)
	}
}

type contextKey struct{}

// Context returns echo's context of a request. Use it in httpkey.Options, such as Scope and Authorize. It is nil if the
// request did not come through Middleware.
func Context(r *http.Request) echo.Context {
	c, _ := r.Context().Value(contextKey{}).(echo.Context)
	return c
}
