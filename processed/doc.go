// Package processed remembers requests by their idempotency key: the same key with the same request gets the first
// answer again, and the work is not done twice.
//
// # Run
//
// [Run] owns the transaction. What the function writes, the intents that it inserts and the processed record
// (idempotency record) with its answer are committed together. Either all of them exist afterwards, or none.
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
// res.Value is the order, and res.Deduplicated tells whether this was a replay. Put effects outside the database (a
// payment, a mail) into an intent: Run calls the function again when transactions collide.
//
// # Errors
//
//   - [ErrConflict]: the key was used with another request. The caller's mistake.
//   - [ErrInFlight]: the first attempt is still running. Try again in a moment.
//   - [ErrAmbiguous]: the connection was lost during COMMIT, and the outcome is unknown. Call again with the same key.
//   - [*RequestError]: a field of the request is invalid. Its Err is a *samekey.KeyError or *samekey.FingerprintError
//     for an invalid key or payload.
//   - [ErrNested]: a call inside the function of another call. A mistake in the program.
//   - [*Failure]: the answer is no, and it is stored.
//   - [ErrInDoubt], [ErrParked], [*StepsChangedError]: an operation of Steps cannot go on yet.
//   - Any other error of the function. Nothing was stored.
//
// [SafeToRetry] tells which of them are worth another call.
//
// If the answer is no (the card was declined), return [Fail] from the function: everything else is rolled back, and the
// failure replays like any answer. It is an error, so that no caller takes it for a success:
//
//	if failure, ok := errors.AsType[*processed.Failure](err); ok {
//		// answer with failure.Code and failure.Body; after Do, commit first
//	}
//
// # Do and Once
//
// [Do] works in a transaction that you own, of pgx or of database/sql (samekey.SQL), and so with GORM, bun, ent and
// sqlx. [Once] is for consumers of events, which need no answer.
//
// # Steps
//
// [Steps] does a request that takes several transactions, such as one that needs a vendor's answer in the middle. Each
// [Step] is a transaction, each [Call] calls a vendor, and a repetition resumes after the last finished step.
//
// # FindOrCreate
//
// If the business has a natural name for "the same thing", a unique constraint on it makes a key unnecessary:
// [FindOrCreate] is INSERT .. ON CONFLICT, and returns the row's id to every caller.
//
// # Over HTTP
//
// Package processed/httpkey puts Run in front of HTTP handlers.
//
// # Retention
//
// A record is kept for Request.Retain, 72 hours by default, and then until [Prune] deletes it with its intents. It
// stays until all of them are finished and forgotten by their vendors. After that the key is new again.
//
// # Limits
//
// Keys are not business rules: two keys are two refunds, and "one refund per order" needs a constraint of yours. A key
// does not make a wrong call right: a deduplicated delete is still a delete.
package processed
