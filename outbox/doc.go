// Package outbox writes intents, and has what people do to them.
//
// An intent says that an effect outside the database must happen if this
// transaction commits: charge a card, send a mail, call a webhook. It exists
// exactly if the transaction does. After the commit a worker (package
// dispatcher) makes the call, as often as it takes, each time with the same
// delivery key and the same bytes, until the intent is finished or rests in a
// state that a person can see and act on. None is ever deleted undelivered.
//
// # Insert
//
// Declare each action once, with the type of its payload, for the writer and
// the worker. In processed.Run an intent takes the request's key and costs no
// round trip:
//
//	var ChargeCard = outbox.NewAction[Charge]("charge_card")
//
//	res, err := processed.Run(ctx, pool, processed.Request{Key: key, Payload: body},
//		func(ctx context.Context, tx pgx.Tx) (Order, error) {
//			order, err := insertOrder(ctx, tx, req)
//			if err != nil {
//				return Order{}, err
//			}
//			_, err = ChargeCard.Insert(ctx, tx, Charge{OrderID: order.ID, Amount: order.Amount})
//			return order, err
//		})
//
// In a transaction of your own, a pgx.Tx or [samekey.SQL] of a *sql.Tx, give the
// Key of the operation that the effect belongs to, and call [Flush] after the
// commit so that a worker looks at once. [InsertMany] writes several in one
// round trip. Other languages, triggers and psql call the SQL function
// samekey.enqueue, which has the same rules and the same semantics. It takes
// the payload as text, json, jsonb or bytea:
//
//	select samekey.enqueue('acme/orders.create', 'order-1', 'charge_card', '{"amount": 5}');
//
// The same key, action, part and payload again is a no-op that returns the
// first id. Another payload is a [*ConflictError], and the transaction is
// aborted: two effects of one action under one key need two parts.
//
// # Where an intent stands
//
// These are the states, and all ways between them. Those in brackets are
// finished: the intent is only in the history then, and nothing happens to it
// any more.
//
//	insert -> pending -> leased -> (delivered)   the vendor did it
//	                            -> (refused)     the vendor said no, such as a declined card
//	                            -> answered -> (delivered) or (refused)
//	                                             once the action's Apply has run, where it has one
//	                            -> pending       to be tried again, or given back unsent
//	                            -> unknown       the vendor may or may not have acted
//	                            -> awaiting_approval
//	                                             an irreversible action, before it is sent
//	                            -> dead          attempts, deadline, or an answer that a person must mend
//	insert -> blocked -> pending                 behind others of its ordering key, until they are finished
//
//	unknown -> (delivered), (refused), answered  looked up, a late answer, or Resolve
//	        -> pending                           looked up: absent, and may be sent again
//	        -> parked                            looked up in vain, or Resolve as not sent
//
//	awaiting_approval -> pending                 Approve
//	awaiting_approval -> (cancelled)             Reject, Cancel
//	dead, parked      -> pending                 Redrive
//	dead, parked      -> answered                Resolve; parked also by a late answer
//	dead, parked      -> (cancelled)             Cancel, if it was never sent, or Resolve said so
//	pending, blocked  -> (cancelled)             Cancel, if it was never sent
//
// # Look
//
// [Get] returns an intent with its payload and its whole history: each attempt,
// each answer, each decision and who made it. [List] finds intents by state,
// action, key, scope, age or error code, newest first, a page at a time. What
// waits for people is in the states parked, dead and awaiting_approval.
//
// # Act
//
// Each of these is one transaction, names its [By], and is safe against workers
// and other people at the same moment: of two, one happens and the other gets a
// [*StateError] that says how the intent stands and what can be done.
//
//   - [Approve] and [Reject] decide about an irreversible action.
//   - [Redrive] makes a dead or parked intent due again, [RedriveAll] many.
//   - [Resolve] records what really happened to an effect of which nobody knows.
//   - [Cancel] takes back what was not sent.
//
// What may have been sent is not cancelled before somebody resolved it as not
// sent, and where it must not be sent twice it is not redriven either: look into
// the vendor's dashboard first.
package outbox
