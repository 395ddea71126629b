// Package dispatcher delivers intents: it claims what is due in the outbox, calls a handler for each, and settles what came
// of it. Every intent is attempted until it is finished, or rests in a state that a person can see and act on (see package
// outbox), each time with the same delivery key and the same bytes.
//
// # Register
//
// A [Dispatcher] stands on a pool. An action is registered with its policy and its handler; actions of one vendor account
// name its [Dispatcher.Destination], and share its limits:
//
//	client, err := httpclient.New(nil)
//	..
//	d := dispatcher.New(pool, nil)
//	d.Destination("stripe", dispatcher.Limits{Concurrency: 32})
//	dispatcher.Handle(d, "charge_card",
//		dispatcher.Policy{Class: dispatcher.IdempotentWrite, Destination: "stripe", KeyWindow: 24 * time.Hour},
//		func(ctx context.Context, call *dispatcher.Call, c Charge) (dispatcher.Answer, error) {
//			return charge(ctx, client, c, call.CarriedKey)
//		})
//
// The [Class] is required: it says what may be repeated.
//
//	Read                 tried again freely
//	IdempotentWrite      sent again with the same key and bytes, and never once the vendor may have forgotten the key
//	NonIdempotentWrite   sent again only if it was provably not sent; else unknown, looked up, or parked
//	IrreversibleWrite    waits for outbox.Approve, which is good for one attempt; then as above
//
// What is known of the vendor goes beside it: [Dispatcher.Vendor] says where the key goes, in which form, for how long it is
// remembered and what a repetition gets. Policies take their key window from it, and what contradicts it is refused. docs/vendors.md
// says which class is right for which vendor.
//
// [Dispatcher.Check] returns every contradiction in what was registered at once. It needs no database: call it in a test.
//
// # Answer
//
// A nil error means delivered. An error says what kind it is: [Refused] (a business no: the intent is finished),
// [RetryAfter] (the vendor did not act, and wants to be asked later), [Throttled] (likewise, for all calls of the account),
// [Unsent] (nothing left this process), [Denied] (the credentials were refused), [Accepted] (the vendor finishes it later),
// [Stuck] (the same key can never get another answer), [Dead] (a person must correct something), [Gone] (the endpoint wants no
// more), [Unknown]; [NotBefore] adds when the next call may come. Any other error of a handler, a panic, and a context that ended mean unknown too: the
// vendor may or may not have acted, and the class decides what follows.
//
// A handler must pass call.CarriedKey to the vendor (the delivery key, in the form that the vendor takes), must send the same
// bytes at every attempt ([WithRender] keeps what cannot be made of the payload twice), must heed its context, and must make one request: what it sends after
// its context ended may meet the next attempt. The client of package dispatcher/httpclient enforces this: it sends nothing after the
// attempt's deadline, drops what the kernel has queued when the attempt ends without an answer, and returns [Unsent] where
// nothing was sent. A plain http.Client does none of it: its timer fires some time after a stopped process continues,
// and the kernel goes on retransmitting a request that timed out.
//
// # Look up, apply
//
// [WithLookup] registers how to ask the vendor what became of a delivery key. It is called, never the handler, where a
// write's outcome is unknown or its key window is over; without it such an intent is parked for a person. That the vendor
// knows nothing of it is believed only when it is said twice, a settling delay apart.
//
// [WithApply] registers what the application does with the outcome, in the transaction that finishes the intent: mark the
// order as paid, insert the receipt's intent. The vendor's answer is committed before, so an Apply that fails is tried again
// with backoff, and the vendor is not called again.
//
// # Run
//
//	err := d.Run(ctx)        // until ctx ends
//	sum, err := d.Drain(ctx) // until nothing is due; for tests and cron
//
// Any number of processes may run the same dispatcher, and processes of different releases may run side by side: each claims
// only the actions that it has registered. An action that no live worker handles is left alone; samekey.outbox_stats shows it
// and the log reports it.
//
// A killed worker's intents are taken over by the others' next sweeps, usually within a second: its session in the database
// ended, and with it a lock. What may not be repeated is left alone until its lease has run out, and is looked up then. A
// database that is away is waited for; what attempts came to meanwhile is kept, and written before anything is claimed again.
// [Dispatcher.Ready] says whether work is taken.
//
// # Stop
//
// When ctx ends, Run claims nothing more and begins no call. Calls under way go on for Config.StopTimeout at most, and are
// settled; then their contexts are cancelled, and what that led to is settled too. What was claimed and not begun is given
// back, unsent. A handler that heeds nothing is left behind after a few seconds more, and its intent is taken over as from a
// killed worker. Give the process longer to stop than StopTimeout and ten seconds.
//
// # Queues and pauses
//
// The outbox carries the truth; River carries the permit to drain. Each destination has a River queue, "samekey_" and its
// name, with one job for each node, which drains the destination for five minutes and is asked for again. Where River begins
// none within a second the node drains without it: deleting River's jobs loses nothing, and neither does a River that fails.
//
// outbox.Pause stops the calls to a destination, or of one of its actions, on every node within a second; calls under way
// end, and nothing is lost. Pausing the destination's queue, in River UI or with QueuePause of any River client on the schema
// samekey, does the same, and is kept where River forgets it. outbox.Resume ends both.
//
// Where something is due, nothing is in its way, and no claim has ended for 25 seconds, one line of level ERROR says why, and
// [Dispatcher.Ready] returns it.
//
// # Order
//
// Intents with an ordering key are delivered one after another, in the order in which they were written; across keys there
// is no order. One that is dead or parked holds up its own key, and nothing else, until it is redriven, resolved or
// cancelled; Policy.PassFailed lets the next one pass.
package dispatcher
