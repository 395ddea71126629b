// Package dispatcher delivers intents (outbox messages). It claims the intents that are due, calls a function for each,
// and records the outcome. Every intent is attempted until it is finished, or rests in a state that a person can see
// and change (see package outbox). Each attempt uses the same delivery key and the same bytes.
//
// # Register
//
// Declare each action once, in a package that the writer and the worker import:
//
//	var ChargeCard = outbox.NewAction[Charge]("charge_card")
//
// The writer inserts it with ChargeCard.Insert. The worker registers how its intents are delivered:
//
//	client, err := httpclient.New(nil)
//	..
//	d := dispatcher.New(pool, nil)
//	d.Destination("stripe", dispatcher.Limits{Concurrency: 32})
//	dispatcher.Handle(d, ChargeCard, dispatcher.Delivery[Charge]{
//		Policy: dispatcher.Policy{Class: dispatcher.IdempotentWrite, Destination: "stripe", KeyWindow: 24 * time.Hour},
//		Send: func(ctx context.Context, call *dispatcher.Call, c Charge) (dispatcher.Outcome, error) {
//			return charge(ctx, client, c, call.CarriedKey)
//		},
//	})
//
// A [Dispatcher.Destination] is a vendor account. Actions that name the same one share its limits. A Send with another
// type of payload than its action does not compile.
//
// [Dispatcher.Vendor] describes the vendor: where the key goes and in which form, for how long the vendor remembers it,
// and what a repetition gets. Policies take their key window from it. docs/vendors.md lists which class is right for
// which vendor.
//
// [Dispatcher.Check] returns every mistake in what was registered. It needs no database, so call it in a test.
//
// # Classes
//
// The [Class] is required. It decides what may be repeated if the vendor may have acted:
//
//	Read                 repeated freely
//	IdempotentWrite      repeated with the same key and bytes, and never once the vendor may have forgotten the key
//	NonIdempotentWrite   repeated only if it was provably not sent; else unknown, then looked up or parked
//	IrreversibleWrite    waits for outbox.Approve, which is good for one attempt; then as above
//
// # Outcomes
//
// A Send returns an [Outcome] and an error:
//
//	Delivered     the vendor acted: the intent is finished
//	Refused       a business refusal, such as a declined card: the intent is finished
//	Accepted      the vendor finishes it later: never sent again, looked up
//	Retry         the vendor did not act and can be asked again; uses no attempt
//	Denied        the vendor refused the account's credentials; uses no attempt
//	Unsent        nothing left this process; uses no attempt
//	Dead          the vendor did not act, and a person must change something first
//	Gone          the endpoint wants no more calls
//	Unknown       the vendor may have acted: the class decides
//	Stuck         the vendor may have acted, and the same key can never find out: looked up or parked
//	any error     as Unknown; or as Unsent, if it is an ErrUnsent
//	no outcome    as Unknown
//
// [Outcome.After] sets the shortest wait before the next call, as Retry-After does, and [Outcome.ForAccount] makes it
// apply to all calls of the account. A panic and an expired context mean Unknown too.
//
// A Send must pass call.CarriedKey to the vendor, must send the same bytes at every attempt ([Delivery].Render stores
// what cannot be made from the payload twice), must obey its context, and must make one request. The client of package
// dispatcher/httpclient enforces the last two. It sends nothing after the attempt's deadline, it drops what the kernel
// has queued if the attempt ends without a response, and its errors are [ErrUnsent] if nothing was sent. A plain
// http.Client does none of this: its timer fires some time after a stopped process continues, the kernel goes on
// retransmitting a request that timed out, and an outage uses attempts.
//
// # Lookup, Apply and Attention
//
// [Delivery].Lookup asks the vendor whether it acted under a delivery key (reconciliation). It is called instead of
// Send if a write's outcome is unknown or its key window is over. Without it such an intent is parked for a person.
// [Absent] counts only if the vendor reports it twice, a settling delay apart.
//
// [Delivery].Apply is the completion callback. It runs in the transaction that finishes the intent: mark the order as
// paid, insert the receipt's intent. The vendor's response is committed before, so an Apply that fails is tried again
// with backoff, and the vendor is not called again.
//
// [Delivery].Attention tells the application what Apply does not: the intent is dead, parked or awaits approval, or a
// person cancelled it, in whatever way. It runs in a transaction of its own, in the order of events for each intent, and
// before a later Apply.
//
// # Run
//
//	err := d.Run(ctx)        // until ctx ends
//	sum, err := d.Drain(ctx) // until nothing is due; for tests and cron
//
// Any number of processes may run the same dispatcher, and processes of different releases may run side by side. Each
// claims only the actions that it has registered. An action that no live worker handles is left alone;
// samekey.outbox_stats shows it and the log reports it.
//
// If a worker is killed, the other workers take over its intents at their next sweep, usually within a second: its
// session in the database ends, and releases a lock. An intent that may not be repeated waits until its lease has
// expired, and is then looked up. If the database is unavailable, the worker stops claiming and retries until it
// returns. It keeps the outcomes of calls in memory, and writes them before it claims again. [Dispatcher.Ready] reports
// whether it takes work.
//
// # Stop
//
// When ctx ends, Run claims nothing more and starts no call. Calls in progress continue for Config.StopTimeout at most;
// then their contexts are cancelled. Their outcomes are recorded. Claimed intents whose calls did not start are given
// back, unsent. A Send that ignores its context is left behind after a few seconds more, and its intent is taken over
// as after a kill. Give the process StopTimeout and ten seconds to stop.
//
// # Queues and pauses
//
// The outbox holds the intents; River schedules the drains. Each destination has a River queue, "samekey_" and its
// name, with one job for each worker, which drains the destination for five minutes and is then inserted again. If
// River starts no drain within a second, the worker drains without it: deleting River's jobs loses nothing, and neither
// does a River that fails.
//
// outbox.Pause stops the calls to a destination, or the calls of one of its actions, in every worker within a second.
// Calls in progress end normally. Pausing the destination's queue, in River UI or with QueuePause of a River client on
// the schema samekey, does the same. outbox.Resume ends both kinds.
//
// If intents are due, nothing holds them up, and no claim has succeeded for 25 seconds, one log line of level ERROR
// states the reason, and [Dispatcher.Ready] returns it.
//
// # Order
//
// Intents with an ordering key are delivered one after another, in the order in which they were written. Across keys
// there is no order. A dead or parked intent holds up its own key and nothing else, until it is redriven, resolved or
// cancelled; Policy.PassFailed lets the next one pass.
package dispatcher
