// Package processed is the memory of requests: the same key with the same
// request gets the first answer again, and the work is not done twice.
//
// # Run
//
// [Run] owns the transaction. What the function writes, the intents that it
// inserts and the record with its answer are committed together: all three
// exist afterwards, or none does.
//
//	key, err := samekey.NewKey(r.Header.Get("Idempotency-Key"), tenant, "orders.create")
//	res, err := processed.Run(ctx, pool, processed.Request{Key: key, Payload: body},
//		func(ctx context.Context, tx pgx.Tx) (Order, error) {
//			order, err := insertOrder(ctx, tx, req)
//			if err != nil {
//				return Order{}, err
//			}
//			_, err = outbox.Insert(ctx, tx, outbox.Intent{Action: "charge_card", Payload: Charge{OrderID: order.ID}})
//			return order, err
//		})
//
// res.Value is the order, and res.Deduplicated says whether this was a replay.
// What is outside the database (a payment, a mail) belongs in an intent and not
// in the function, which is run again where transactions collide.
//
// # What can come back
//
//   - [ErrConflict]: the key was used with another request. A mistake of the
//     caller's.
//   - [ErrInFlight]: the first attempt is still running. Again in a moment.
//   - [ErrAmbiguous]: the connection was lost during COMMIT and nobody could be
//     asked. Again, with the same key.
//   - [ErrInvalidRequest], with the field in a [*RequestError]: the request cannot
//     be remembered as it came. An invalid key or payload also matches
//     samekey.ErrInvalidKey or samekey.ErrInvalidPayload.
//   - [ErrNested]: a call inside another one's function. A mistake in the program.
//   - [*Failure]: the answer is a no, and is stored.
//   - an error of the function's own; nothing was stored.
//
// [SafeToRetry] tells which are worth another call.
//
// A no that is an answer (the card was declined) is returned from the function
// with [Fail]: all else is rolled back, and the no replays like any answer. It
// comes as an error, so that nobody takes it for a success:
//
//	if failure, ok := errors.AsType[*processed.Failure](err); ok {
//		// answer with failure.Code and failure.Body; after Do, commit first
//	}
//
// # Do and Once
//
// [Do] composes into a transaction that you own, of pgx or of database/sql
// (samekey.SQL), and so of GORM, bun, ent and sqlx. [Once] is for consumers of
// events, who need no answer.
//
// # FindOrCreate
//
// Where the business has a name for "the same thing", a unique constraint on it
// needs no key: [FindOrCreate] is INSERT .. ON CONFLICT with the row's id for
// everybody.
//
// # Over HTTP
//
// Package processed/httpkey puts Run in front of http handlers.
//
// # How long
//
// A record is kept for Request.Retain, 72 hours by default, and then until
// [Prune] deletes it together with its intents, all of them finished and out of
// their vendors' memory. A key is new again after that, and not before.
//
// # What it is not
//
// Keys are no business rules: two keys are two refunds, and one refund per order
// is yours to enforce with a constraint. A key makes no wrong call right: a
// deduplicated delete is still a delete.
package processed
