// Package endpoints keeps the receivers of webhooks and the like: many behind
// one destination, each with a URL, secrets and a switch of its own. It is the
// application's side; the worker's is dispatcher.WithStoredEndpoint, which
// httpvendor.StandardWebhooks uses.
//
// # Keep one
//
// When a customer names a receiver, put it, in the transaction that writes your
// own rows. The name is yours, such as the customer's id; it is no secret.
//
//	secret := endpoints.NewSecret()
//	err := endpoints.Put(ctx, tx, endpoints.Endpoint{
//		Destination: "webhooks", Name: "shop-17", URL: "https://shop.example/hooks", Secrets: []string{secret},
//	})
//
// # Send to it
//
// An event goes out as one intent for each receiver, whose part is its name.
// Leave out those that are stopped: what is written for one is never sent, and
// rests as dead.
//
//	ids, err := outbox.InsertMany(ctx, tx, intents) // Part: "shop-17"
//
// # Change it
//
// [Put] again changes URL and secrets for every call that begins after its
// commit, also of intents that wait for another attempt. To replace a secret
// put both, until the receiver has the new one, then the new one alone: each
// call is signed by each.
//
// A name stands for one receiver, wherever its URL leads: what was sent to the
// old URL is tried again, and looked up, at the new one. Give another receiver
// another name, also after [Delete].
//
// # When it is stopped
//
// A receiver that answers 410 wants no more, and stops its endpoint; a person
// does with [Stop]. No call begins after it. What was on its way for it becomes
// dead, unsent, with the code "endpoint_stopped", so that nothing is lost: when
// the receiver is back, [Start] it, and redrive them:
//
//	outbox.RedriveAll(ctx, pool, outbox.Filter{Action: "notify", Part: "shop-17", Code: "endpoint_stopped", Status: outbox.StatusDead}, by)
//
// A redrive sends nothing that is older than the policy's Deadline: make that as
// long as an event is still worth sending.
//
// An answer to a call that was made before a change does not stop what was
// changed: who starts an endpoint again is not undone by a 410 that was under way.
//
// # Secrets
//
// They are stored as they are given, since the worker signs with them: protect
// the database and its copies as you protect them. No function here returns
// one, and the application's role (schema.Roles) cannot read them back.
package endpoints
