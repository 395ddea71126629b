package httpvendor

import "github.com/samekey/samekey/dispatcher"

// StandardWebhooks is the preset for receivers of webhooks by the specification of that name. The delivery key is the
// webhook-id, the same at every attempt, by which the receiver recognizes a repeated webhook. webhook-timestamp is the
// time of the attempt. webhook-signature has one signature for each secret, see [Destination].WebhookSecrets. Set
// Signature for receivers that expect another form, such as GitHub's.
//
// Without secrets the destination is for many receivers: each intent's part names an endpoint that package
// outbox/endpoints stores with its URL and secrets. Limits.Concurrency is then 1000, since each receiver that hangs
// occupies up to Limits.PerEndpoint calls until its breaker opens, and one from then on. With secrets the destination
// is for one receiver, whose URL you set; [New] refuses a URL without them.
//
//	dest := httpvendor.StandardWebhooks()
//	dest.Name = "webhooks"
//	...
//	httpvendor.Action{Request: "POST", Policy: dispatcher.Policy{
//		Class: dispatcher.IdempotentWrite, KeyWindow: dispatcher.Forever, Deadline: 7 * 24 * time.Hour,
//		Schedule: []time.Duration{5 * time.Second, 5 * time.Minute, 30 * time.Minute, 2 * time.Hour, 5 * time.Hour, 10 * time.Hour}}}
//
// Anything but a 2xx is a failure and is tried again, up to the policy's attempts. With the policy's defaults these end
// within hours, but receivers expect days. 410 means that the receiver wants no more calls: the intent is dead and the
// endpoint is stopped (dispatcher.Gone). How long a receiver remembers an id depends on the receiver, so each action
// must set Policy.KeyWindow.
//
// A secret signs by HMAC-SHA256 (v1), and a key that starts with whsk_ by ed25519 (v1a).
func StandardWebhooks(secrets ...string) Destination {
	dest := Destination{
		Vendor:         inHeader("webhook-id", 0, 0, dispatcher.ReplaySuccess),
		WebhookSecrets: secrets,
		Rules: []Rule{
			{Match: Match{Status: status(410, 410)}, Outcome: dispatcher.Gone, Reason: "the receiver wants no more webhooks: send nothing more to this endpoint"},
			{Match: Match{Status: status(429, 429)}, Outcome: dispatcher.Retry},
			{Match: Match{Status: status(206, 207)}, Outcome: dispatcher.Delivered}, // any 2xx
			{Match: Match{Status: status(300, 499)}, Outcome: dispatcher.Unknown, Reason: "the receiver did not accept it"},
			// Also with a stored answer: a customer must not cause work for a person.
			{Match: Match{Status: status(500, 599), Header: "Idempotent-Replayed"}, Outcome: dispatcher.Unknown, Reason: "the receiver did not accept it"},
		},
	}
	if len(secrets) == 0 {
		dest.Endpoint, dest.Limits.Concurrency = "{{.Part}}", manyReceivers
	}
	return dest
}

// manyReceivers is a number of calls that leaves room beside receivers that hang.
const manyReceivers = 1000

const webhookID = "Webhook-Id" // canonical
