// Package outbox writes intents in your transactions, and lets people see and decide what happens to them.
//
// An intent (outbox message) states that an effect outside the database must happen if this transaction commits: charge
// a card, send a mail, call a webhook. It exists if and only if the transaction commits. A worker (package dispatcher)
// then makes the call. It retries with the same delivery key and the same bytes, until the intent is finished or rests
// in a state that a person can see and act on. No intent is deleted before it is finished.
//
// # Declare an action
//
// Declare each action once, in a package that the writer and the worker import. It has a name and the type of its
// payload:
//
//	var ChargeCard = outbox.NewAction[Charge]("charge_card")
//
// # Insert an intent
//
// In processed.Run an intent takes the key of the request, and costs no round trip of its own:
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
// In a transaction of your own, a pgx.Tx or [samekey.SQL] of a *sql.Tx, set the Key of the operation that the effect
// belongs to, and call [Flush] after the commit to wake the workers:
//
//	in := ChargeCard.Intent(Charge{OrderID: order.ID, Amount: order.Amount})
//	in.Key = key
//	_, err = outbox.Insert(ctx, tx, in)
//
// [InsertMany] writes several intents in one round trip. Other languages, triggers and psql call the SQL function
// samekey.enqueue, which has the same rules. It takes the payload as text, json, jsonb or bytea:
//
//	select samekey.enqueue('acme/orders.create', 'order-1', 'charge_card', '{"amount": 5}');
//
// Inserting the same key, action, part and payload again changes nothing and returns the first id. Another payload is a
// [*ConflictError] and aborts the transaction: if one operation needs two effects of one action, give each its own
// Part.
//
// # Look at an intent
//
// [Get] returns an intent with its payload and its history: each attempt, each answer of the vendor, each decision and
// who made it. [List] finds intents by state, action, key, scope, part, age or error code, newest first. Intents that
// wait for a person are in the states parked, dead and awaiting_approval.
//
// # Decide about an intent
//
// Each of these functions calls a SQL function, in one transaction, and records who decided and why ([By]). From psql
// and other languages, call samekey.redrive and the others, which docs/schema.md lists. The functions are safe against workers and
// other people at the same moment: of two decisions one wins, and the other gets a [*StateError] with the present state
// and what is possible.
//
//   - [Approve] and [Reject] decide about an irreversible action before it is sent.
//   - [Redrive] makes a dead or parked intent due again.
//   - [Resolve] records what really happened, if the worker could not find out.
//   - [Cancel] takes back an intent that was not sent.
//   - [RedriveAll], [ResolveAll] and [CancelAll] do so for many, in batches. [Groups] shows which intents rest for one
//     cause.
//   - [Pause] stops the calls to a destination, until [Resume].
//
// An intent that may have been sent cannot be cancelled. If it must not be sent twice, it cannot be redriven either.
// Look into the vendor's dashboard first, and [Resolve] it.
//
// # States
//
// These are all states and transitions. States in parentheses are final: the intent is then only in the history.
//
//	insert -> pending -> leased -> (delivered)   the vendor did it
//	                            -> (refused)     the vendor said no, such as a declined card
//	                            -> answered      the action has an Apply (completion callback), which runs next
//	                            -> pending       retry, or given back unsent
//	                            -> unknown       the vendor may or may not have acted; a lookup (reconciliation) will tell
//	                            -> awaiting_approval
//	                                             an irreversible action, before it is sent
//	                            -> dead          attempts or deadline used up, or an answer that needs a person (dead letter)
//	insert -> blocked -> pending                 waits for earlier intents with its ordering key
//
//	answered -> (delivered), (refused)           Apply has run
//
//	unknown -> (delivered), (refused), answered  lookup, late answer, or Resolve
//	        -> pending                           lookup: the vendor does not know it, and it may be sent again
//	        -> parked                            lookups used up, or Resolve as not sent
//
//	awaiting_approval -> pending                 Approve
//	awaiting_approval -> (cancelled)             Reject, Cancel
//	dead, parked      -> pending                 Redrive
//	dead, parked      -> answered                Resolve, or a late answer
//	dead, parked      -> (cancelled)             Cancel, if never sent or resolved as not sent
//	pending, blocked  -> (cancelled)             Cancel, if never sent
package outbox
