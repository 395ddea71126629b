// Package httpkey is the HTTP edge of processed: a middleware for net/http that
// makes every POST and PATCH behind it safe to repeat. The same Idempotency-Key
// with the same request gets the same answer, byte for byte, and the work is not
// done twice.
//
// # The middleware
//
//	keyed, err := httpkey.New(pool, httpkey.Options{
//		Scope: func(r *http.Request) []string { return []string{tenantOf(r), "orders.create"} },
//	})
//	..
//	mux.Handle("POST /orders", authenticated(keyed.Handler(http.HandlerFunc(createOrder))))
//
// It takes the place of processed.Run in the handler. Authentication goes before
// it, since the scope must name the principal.
//
// # The handler
//
// It is called inside the transaction, takes it from the context, and answers as
// any handler does:
//
//	func createOrder(w http.ResponseWriter, r *http.Request) {
//		ctx := r.Context()
//		order, err := insertOrder(ctx, httpkey.Tx(ctx), r.Body)
//		if err != nil {
//			httpkey.Abort(ctx, err)
//			return
//		}
//		w.WriteHeader(http.StatusCreated)
//		_ = json.NewEncoder(w).Encode(order)
//	}
//
// What it writes is held back, recorded together with its rows, and sent after
// the commit: no client sees an answer that is not stored. So the handler may be
// called again, each time in a new transaction, where processed.Run says that its
// function may.
//
//   - outbox.Insert with the transaction takes the request's key, and costs no
//     round trip.
//   - Streaming is refused: Flush, Hijack and trailers are errors. An answer is in
//     memory until it is sent.
//   - A handler that returns without having answered is an error too, and rolled
//     back: in some frameworks that is how a handler fails whose error is turned
//     into an answer further out.
//   - The context does not end when the client goes: what was begun is finished,
//     and recorded for the client's next attempt. It ends with Options.Timeout,
//     with a deadline set further out, and when somebody further out cancels it
//     with a cause. Then everything is rolled back.
//
// # What is kept
//
//	the handler answers                          its rows      its answer
//	200-299, 300-399                             committed     stored
//	402, 404, 409, 410                           rolled back   stored
//	400, 401, 403, 422, 429, others, 500-599     rolled back   forgotten
//	panic, context ended, Abort, no answer       rolled back   forgotten
//
// A panic goes on to who recovers it further out, or to net/http, which breaks the
// connection; for those who recover and answer nothing, a 500 is there already.
//
// Forgotten means that the same key may be used again, as if nothing had been
// sent. [Keep] stores an answer that would be forgotten (its rows are rolled back
// all the same), and [Discard] forgets one that would be stored, and rolls back.
//
// A 500 is not kept. Stripe keeps it, since there the effect may be half done
// when the 500 goes out, and running it again might do the other half twice. Here
// the effect was rolled back with everything else: nothing is left of it, no
// intent reaches a vendor, and to replay the 500 for days would only keep the
// client from what it wants.
//
// # What the client gets
//
// A replay has the same status, body and the headers that describe them
// (Location, Content-Type, Content-Encoding, Content-Language, ETag, Link,
// Cache-Control; more by Options.ReplayHeaders; never Set-Cookie or a challenge),
// and Idempotent-Replayed: true. What the middleware itself answers is a
// [Problem] (RFC 9457); docs/callers.md is the page to give to callers.
//
//	no, malformed, repeated or several keys      400
//	a body without one meaning, or cut           400
//	a body over Options.MaxBody                  413, before the handler
//	the key was used with another request        422
//	the first request is still running           409, Retry-After
//	nothing stored, or not known                 500, or 503 with Retry-After: the same again
//
// # Frameworks
//
// Anything that takes func(http.Handler) http.Handler takes keyed.Handler. The
// handler is called again where transactions collide, so what is behind the
// middleware must route the same request twice in the same way.
//
//   - chi: r.With(keyed.Handler).Post(..), or keyed.Handler(r) around all of it.
//     Not r.Use above Route or Mount, whose routers consume the path as they go
//     and know no route the second time.
//   - gin: gin.WrapH(keyed.Handler(h)), or keyed.Handler(engine) around all of it.
//     Not as a middleware that calls c.Next(): its answer reaches the client before
//     the commit. In a handler the context is c.Request.Context().
//   - echo: echo.WrapHandler(keyed.Handler(h)), keyed.Handler(e) around all of it,
//     or echo.WrapMiddleware(keyed.Handler) followed by one that answers inside it
//     what a handler returns, or else a returned error is a 500:
//
// That one is
//
//	func answered(next echo.HandlerFunc) echo.HandlerFunc {
//		return func(c echo.Context) error {
//			err := next(c)
//			if _, ok := errors.AsType[*echo.HTTPError](err); ok && !c.Response().Committed {
//				c.Error(err)
//			} else {
//				httpkey.Abort(c.Request().Context(), err)
//			}
//			return nil
//		}
//	}
//
// Path values of these frameworks reach a handler of net/http where the route sets
// them with r.SetPathValue; chi does. The tests of the integration module have each
// of these forms, and what happens in those that are not to be used.
package httpkey
