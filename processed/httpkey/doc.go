// Package httpkey is the HTTP edge of processed: net/http middleware that makes every POST and PATCH behind it safe to
// repeat. The same Idempotency-Key with the same request gets the same answer, byte for byte, and the work is not done
// twice.
//
// # The middleware
//
//	keyed, err := httpkey.New(pool, httpkey.Options{
//		Scope: func(r *http.Request) []string { return []string{tenantOf(r), "orders.create"} },
//	})
//	..
//	mux.Handle("POST /orders", authenticated(keyed.Handler(http.HandlerFunc(createOrder))))
//
// It replaces processed.Run in the handler. Authentication goes outside it, because the scope must name the principal.
//
// # The handler
//
// The handler runs inside the transaction. It takes the transaction from the context, and answers as usual:
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
// The answer is held back, recorded together with the rows, and sent after the commit: no client sees an answer that is
// not stored. As in processed.Run, the handler may be called again after a collision, each time in a new transaction.
//
//   - outbox.Insert with the transaction takes the request's key, and costs no round trip.
//   - Streaming is refused: Flush, Hijack and trailers are errors. Until the commit the answer is in memory, up to
//     Options.MaxAnswer, and the rest in a temporary file.
//   - A handler that returns without an answer is an error, and is rolled back. In some frameworks a handler fails that
//     way, and an outer handler turns its error into an answer.
//   - The context does not end when the client disconnects: the work is finished and recorded for the client's next
//     attempt. It ends with Options.Timeout, with a deadline set by an outer handler, and when an outer handler cancels
//     it with a cause. Then everything is rolled back.
//
// If the work takes several transactions, such as a vendor's answer in the middle, set Options.Steps: the handler is an
// operation (processed.Steps), and a client's next attempt resumes it.
//
// # What is stored
//
//	the handler answers                          its rows      its answer
//	200-299, 300-399 except 307 and 308          committed     stored
//	402, 404, 409, 410                           rolled back   stored
//	400, 401, 403, 422, 429, others, 500-599     rolled back   forgotten
//	307, 308                                     rolled back   forgotten
//	301, 302, 303, 404, 405 without Tx           none          forgotten
//	panic, context ended, Abort, no answer       rolled back   forgotten
//
// Forgotten means that the same key can be used again, as if nothing had been sent. [Keep] stores an answer that would
// be forgotten, except 307 and 308; the rows of a 4xx or 5xx are rolled back nevertheless. [Discard] forgets an answer
// that would be stored, and rolls back.
//
// 307 and 308 send the client elsewhere with the same request and key, and the work is done there. So a mux that adds a
// slash does not use up the key. If the handler wrote rows before such an answer, they are rolled back, and the log
// says so. A redirect, 404 or 405 without a call of [Tx] comes from a router, not from a handler.
//
// A panic continues to an outer recovery, or to net/http, which breaks the connection. If the recovery answers nothing,
// the client gets a 500.
//
// If the handler is called again after a collision and answers without Tx, although it called Tx before, state of the
// first call misled it: nothing is stored, and the client gets a 503.
//
// A 500 is forgotten, unlike at Stripe. Stripe stores it because the effect may be half done, and another run might do
// the other half twice. Here the effect was rolled back with everything else, and no intent of it reaches a vendor. If
// the 500 were replayed for days, the client could not succeed.
//
// # What the client gets
//
// A replay has the same status and body, and the headers that describe them: Location, Content-Type,
// Content-Disposition, Content-Language, ETag, Last-Modified, Link, Vary, Cache-Control, and those of
// Options.ReplayHeaders, never Set-Cookie or a challenge. It also has Idempotent-Replayed: true, and Original-Request
// with Options.RequestID.
//
// Options.Render changes what the client gets, for answers that show how an effect went ("paid", or 202 while it is
// pending): the stored answer stays, and each replay shows the current outcome.
//
// Leave whatever depends on the client to outer middleware: CORS (Access-Control-*), which is not stored, and
// compression. The handler does not see Accept-Encoding, and an answer with a Content-Encoding other than identity is
// refused (500), because the next client may not accept it.
//
// The middleware's own answers are a [Problem] (RFC 9457). Give docs/callers.md to your callers.
//
//	no key, an invalid key, or several keys      400
//	a body without a single meaning              400
//	a body that was cut, or came too slowly      408: send the same again
//	a body over Options.MaxBody                  413, before the handler
//	the key was used with another request        422
//	the first request is still running           409, Retry-After (after Options.Wait)
//	nothing stored, or not known                 500, or 503 with Retry-After: send the same again
//
// # Frameworks
//
// Any router or framework that accepts func(http.Handler) http.Handler and runs the handler inside it works with
// keyed.Handler:
//
//   - net/http, chi and other routers on net/http: like any middleware. chi's state of the request is copied for each
//     call of the handler, so r.Use, r.With and keyed.Handler(r) work.
//   - gin: package ginkey, or keyed.Handler(engine) around the whole engine.
//   - echo: package echokey, or keyed.Handler(e) around the whole server.
//   - Fiber: package fiberkey. Fiber's own adaptor runs the handler after the middleware. It is refused with a 500, and
//     the log says what to use.
//
// ginkey, echokey and fiberkey are modules of their own, below this package.
//
// Routing behind the middleware must be repeatable, because the handler may be called again. The tests of the
// integration module show more combinations, and what happens in those that do not work.
package httpkey
