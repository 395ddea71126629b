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
//   - Streaming is refused: Flush, Hijack and trailers are errors. An answer is held
//     until the commit: in memory up to Options.MaxAnswer, and what is longer in a
//     temporary file.
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
//	200-299, 300-399 but 307 and 308             committed     stored
//	402, 404, 409, 410                           rolled back   stored
//	400, 401, 403, 422, 429, others, 500-599     rolled back   forgotten
//	307, 308                                     rolled back   forgotten
//	301, 302, 303, 404, 405 without Tx           none          forgotten
//	panic, context ended, Abort, no answer       rolled back   forgotten
//
// 307 and 308 send the client elsewhere with the same request, which is done there
// under the same key: no mux that adds a slash uses the key up. A handler that
// writes and then answers so writes nothing; the log says it. A redirect, 404 or 405
// for which nobody has called [Tx] is a router's own.
//
// A panic goes on to who recovers it further out, or to net/http, which breaks the
// connection; for those who recover and answer nothing, a 500 is there already.
//
// Forgotten means that the same key may be used again, as if nothing had been
// sent. [Keep] stores an answer that would be forgotten, 307 and 308 excepted
// (the rows of a 4xx or 5xx are rolled back all the same), and [Discard] forgets
// one that would be stored, and rolls back.
//
// Where the handler is called again after a collision, and answers without Tx
// though it took it before, something misled it: nothing is stored, and the client
// gets a 503.
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
// (Location, Content-Type, Content-Disposition, Content-Language, ETag,
// Last-Modified, Link, Vary, Cache-Control; more by Options.ReplayHeaders; never
// Set-Cookie or a challenge), Idempotent-Replayed: true, and Original-Request with
// Options.RequestID.
//
// What depends on who asks is left to middlewares further out: CORS
// (Access-Control-*), which is not stored, and compression. The handler does not
// see Accept-Encoding, and an answer with a Content-Encoding other than identity is
// refused (500): the next client may not accept it.
//
// What the middleware itself answers is a
// [Problem] (RFC 9457); docs/callers.md is the page to give to callers.
//
//	no, malformed, repeated or several keys      400
//	a body without one meaning                   400
//	a body that was cut, or came too slowly      408: the same again
//	a body over Options.MaxBody                  413, before the handler
//	the key was used with another request        422
//	the first request is still running           409, Retry-After (after Options.Wait)
//	nothing stored, or not known                 500, or 503 with Retry-After: the same again
//
// # Frameworks
//
// Anything that takes func(http.Handler) http.Handler, and runs the handler inside
// it, takes keyed.Handler:
//
//   - net/http, chi and other routers on net/http: as any middleware. chi's state of
//     the request is copied for each call of the handler, so r.Use, r.With and
//     keyed.Handler(r) work.
//   - gin: package ginkey, or keyed.Handler(engine) around all of it.
//   - echo: package echokey, or keyed.Handler(e) around all of it.
//   - Fiber: package fiberkey. Fiber's own adaptor runs the handler after the
//     middleware; it is refused with a 500, and the log says what to use.
//
// ginkey, echokey and fiberkey are modules of their own, below this package.
//
// The handler is called again where transactions collide, so what is behind the
// middleware must route the same request twice in the same way. The tests of the
// integration module have more ways to combine, and what happens in those that are
// not to be used.
package httpkey
