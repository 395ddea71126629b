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
// # Wait for the end
//
// [Await] waits until an intent is finished and its Apply (completion callback) has committed, or rests, for a request
// that is answered with the outcome. All calls of a process share one connection and its queries.
//
// # Look at an intent
//
// [Get] returns an intent with its payload and its history: each attempt, each answer of the vendor, each decision and
// who made it. [List] finds intents by subject (your own name of the thing, such as "booking/42"), by the vendor's
// reference (such as "ch_123"), and by state, action, key, scope, part, age or error code, newest first. Intents that
// wait for a person are in the states parked, dead and awaiting_approval.
//
// An [Entry] encodes as JSON that people can read: see [Entry.MarshalJSON]. psql and BI tools read the same under the same
// names in the views samekey.intents, samekey.timeline and samekey.needs_attention, which docs/schema.md describes.
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
//   - [Replace] writes a successor for an intent whose request was wrong.
//   - [RedriveAll], [ResolveAll], [CancelAll] and [ReplaceAll] do so for many, in batches. [Groups] shows which intents
//     rest for one cause.
//   - [Pause] stops the calls to a destination, until [Resume].
//
// An intent that may have been sent cannot be cancelled. If it must not be sent twice, it cannot be redriven either.
// Look into the vendor's dashboard first, and [Resolve] it.
//
// # States
//
// These are all states of an intent, each with its transitions: what happens, and the next states. A state in
// parentheses is final: the intent is then only in the history. What people do has the name of its function.
//
//	no state: the intent is new, or its row in the queue was lost
//	  Insert       -> pending, blocked        blocked: behind another intent with its ordering key
//	  row restored -> pending                 its row in the queue was lost
//
//	pending: will be sent when it is due, for the first time or again
//	  claimed      -> leased                  a worker takes it
//	  Cancel       -> (cancelled)             before it was sent
//	  held         -> parked                  the intent that it replaces was delivered after all
//
//	blocked: waits for earlier intents with its ordering key
//	  its turn     -> pending                 the intent before it is finished, or left the order
//	  Cancel       -> (cancelled)             before it was sent
//
//	leased: a worker is sending it
//	  attempt      -> (delivered), (refused)  the vendor answered, and there is no Apply
//	               -> answered                the vendor answered, and there is an Apply
//	               -> pending                 to be tried again, or not sent at all
//	               -> unknown                 the vendor may have acted, or finishes it later
//	               -> awaiting_approval       irreversible, and not approved for this attempt
//	               -> dead                    no attempts or no time left, or a person must change something first
//	  given back   -> pending                 its endpoint is busy, or its payload did not load
//	  worker lost  -> pending                 it may be repeated, or was not sent yet
//	               -> unknown                 it may not be repeated
//
//	unknown: the vendor may or may not have acted; a worker will look it up (reconciliation)
//	  lookup       -> (delivered), (refused)  the vendor knows it, and there is no Apply
//	               -> answered                the vendor knows it, and there is an Apply
//	               -> unknown                 the vendor could not tell, or is still working on it: looked up again later
//	               -> pending                 the vendor does not know it, and the policy allows another attempt
//	               -> parked                  no lookup can tell
//	  late answer  -> answered                the attempt that was sent last was answered after all
//	  Resolve      -> answered, parked        parked: resolved as not sent
//
//	answered: the vendor's answer is stored; a worker will run Apply (completion callback)
//	  Apply        -> (delivered), (refused)  applied
//	               -> answered                Apply failed: it runs again later
//
//	awaiting_approval: unsent until Approve or Reject
//	  Approve      -> pending                 for one attempt
//	  Reject       -> (cancelled)             it is not sent
//	  Cancel       -> (cancelled)             before it was sent
//	  held         -> parked                  the intent that it replaces was delivered after all
//
//	parked: unknown, and no lookup can tell: a person must find out and Resolve it
//	  late answer  -> answered                the attempt that was sent last was answered after all
//	  Redrive      -> pending                 unless it may have been sent and must not be sent twice
//	  Resolve      -> answered, parked        parked: resolved as not sent
//	  Cancel       -> (cancelled)             not sent, or resolved as not sent
//	  Replace      -> (cancelled)             resolved as not sent: a successor takes its place
//
//	dead: will not be retried (dead letter): attempts or deadline used up, or an answer that needs a person
//	  late answer  -> answered                the attempt that was sent last was answered after all
//	  Redrive      -> pending                 unless it may have been sent and must not be sent twice
//	  Resolve      -> answered, dead          dead: resolved as not sent
//	  Cancel       -> (cancelled)             not sent, or resolved as not sent
//	  Replace      -> (cancelled)             no vendor acted: a successor takes its place
//	  held         -> parked                  the intent that it replaces was delivered after all
//
//	(delivered): the vendor did it
//	(refused): the vendor said no, such as a declined card
//	(cancelled): a person cancelled it, and it was not sent
package outbox
