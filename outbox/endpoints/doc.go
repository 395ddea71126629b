// Package endpoints stores webhook receivers: many behind one destination, each with a URL, secrets and a switch. It is
// the application's side. The worker's side is dispatcher.WithStoredEndpoint, which httpvendor.StandardWebhooks uses.
//
// # Add an endpoint
//
// When a customer registers a receiver, put it in the transaction that writes your own rows. You choose the name, such
// as the customer's id. It is no secret.
//
//	secret := endpoints.NewSecret()
//	err := endpoints.Put(ctx, tx, endpoints.Endpoint{
//		Destination: "webhooks", Name: "shop-17", URL: "https://shop.example/hooks", Secrets: []string{secret},
//	}, outbox.By{Actor: "customer 17", Reason: "registered a receiver"})
//
// # Send an event
//
// Insert one intent per receiver, with the endpoint's name as its part. Leave out stopped endpoints: an intent for one
// is never sent and becomes dead.
//
//	ids, err := outbox.InsertMany(ctx, tx, intents) // Part: "shop-17"
//
// # Change an endpoint
//
// Another [Put] changes the URL and the secrets for every call that starts after its commit, including retries of
// earlier intents. To rotate a secret, put the new and the old one, until the receiver has the new one, and then the
// new one alone: each call is signed with all secrets.
//
// A name stands for one receiver, whatever its URL: intents sent to the old URL are retried and looked up at the new
// one. Give another receiver another name, even after [Delete].
//
// # Stop an endpoint
//
// A receiver that answers 410 stops its endpoint, and so does one that fails for longer than the destination's
// Limits.StopEndpointAfter; a person does so with [Stop]. After that no call starts. Intents for
// the endpoint become dead, unsent, with the code "endpoint_stopped", so nothing is lost. When the receiver is back,
// [Start] the endpoint and redrive them:
//
//	filter := outbox.Filter{Action: "notify", Part: "shop-17", Code: "endpoint_stopped", Status: outbox.StatusDead}
//	n, err := outbox.RedriveAll(filter, by).Run(ctx, pool)
//
// A redrive sends nothing after the policy's Deadline: make the deadline as long as an event is worth sending.
//
// A 410 in answer to a call that was made before a change does not stop the changed endpoint.
//
// # Show what was sent
//
// [Deliveries] returns the calls to an endpoint in pages, for a page that the receiver's owner can see. [Test] sends one
// intent of your choice to it.
//
// # Secrets
//
// Secrets are stored in clear text, since the worker signs with them: protect the database and its backups accordingly.
// No function here returns a secret, and the application's role (schema.Roles) cannot read them.
package endpoints
