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
// chi and everything else that takes func(http.Handler) http.Handler: give it
// keyed.Handler. In gin, gin.WrapH(keyed.Handler(h)); in echo,
// echo.WrapHandler(keyed.Handler(h)). A handler of echo's own that returns its
// errors has to answer them inside the middleware (c.Error(err)); see the tests of
// the integration module.
package httpkey
