// Package echokey makes handlers of echo safe to repeat: package httpkey for echo.
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
//			return err // rolled back; done again where transactions collided
//		}
//		return c.JSON(http.StatusCreated, order)
//	}
//
// # What becomes of a returned error
//
//   - An error of processed.Fail is the answer.
//   - A collision in the database (SQLSTATE class 40) is rolled back, and the
//     handler is called again.
//   - An *echo.HTTPError, and any other error for which the HTTPErrorHandler has an
//     answer below 500, is answered by it, inside the middleware; the answer's
//     status decides what is kept.
//   - All other errors go to httpkey.Abort: rolled back, forgotten and logged, 500
//     or 503.
//   - After an answer was written, every error goes to httpkey.Abort.
//
// Middlewares that write to the answer, such as one that compresses, go before
// this one.
package echokey

import (
	"context"
	"errors"
	"net/http"
	"strings"

	"github.com/labstack/echo/v4"

	"github.com/samekey/samekey/processed"
	"github.com/samekey/samekey/processed/httpkey"
)

// Middleware returns the middleware for echo: a request with a key gets one effect
// and one answer, as package httpkey describes. Put it behind authentication. What
// is behind it may be called several times for one request, each time in a
// transaction of its own after the one before was rolled back; values of c.Set
// stay. Requests whose method takes no key (httpkey.Options.Methods) pass as they
// are.
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

// answer is what the package comment says of a returned error.
func answer(c echo.Context, err error) {
	ctx := c.Request().Context()
	_, final := errors.AsType[*processed.Failure](err)
	if final || c.Response().Committed || collided(err) {
		httpkey.Abort(ctx, err)
		return
	}
	c.Error(err)
	if _, said := errors.AsType[*echo.HTTPError](err); !said && c.Response().Status >= http.StatusInternalServerError || !c.Response().Committed {
		httpkey.Abort(ctx, err)
	}
}

// collided reports whether the database rolled back for the sake of another
// transaction.
func collided(err error) bool {
	var said interface{ SQLState() string }
	return errors.As(err, &said) && strings.HasPrefix(said.SQLState(), "40")
}

type contextKey struct{}

// Context returns echo's context of a request that httpkey hands to one of its
// options, such as Scope and Authorize. It is nil for requests that did not come
// through Middleware.
func Context(r *http.Request) echo.Context {
	c, _ := r.Context().Value(contextKey{}).(echo.Context)
	return c
}
