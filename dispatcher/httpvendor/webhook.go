package httpvendor

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/samekey/samekey/dispatcher"
	"github.com/samekey/samekey/internal/webhook"
)

// StandardWebhooks are receivers of webhooks as the specification of that name has them: the delivery key is the
// webhook-id, the same at every attempt, by which the receiver knows a webhook that comes twice; webhook-timestamp is the
// time of the attempt; and webhook-signature holds one signature for each secret, see [Destination.WebhookSecrets].
//
// Without secrets it sends to many: each intent's part names an endpoint that the package outbox/endpoints keeps, with its
// URL and its secrets; and Limits.Concurrency is 1000, since each receiver that hangs holds up to Limits.PerEndpoint calls
// until its breaker opens, and one from then on. With secrets it is for one receiver, whose URL you set; [New] refuses a URL without them.
//
//	dest := httpvendor.StandardWebhooks()
//	dest.Name = "webhooks"
//	...
//	httpvendor.Action{Name: "notify", Request: "POST", Policy: dispatcher.Policy{
//		Class: dispatcher.IdempotentWrite, KeyWindow: dispatcher.Forever, Deadline: 7 * 24 * time.Hour,
//		Attempts: 20, Backoff: time.Minute, MaxBackoff: 8 * time.Hour}}
//
// Anything but a 2xx is a failure and tried again, up to the policy's attempts; by its defaults those are over within hours,
// and receivers expect days. 410 says that the receiver wants no more: the
// intent is dead, and the endpoint is stopped ([Gone]). For how long a receiver remembers an id is the receiver's: each
// action's Policy.KeyWindow must say what you rely on.
//
// Signatures are the symmetric ones (v1, HMAC-SHA256), not the specification's ed25519 (v1a).
func StandardWebhooks(secrets ...string) Destination {
	dest := Destination{
		Vendor:         inHeader("webhook-id", 0, 0, dispatcher.ReplaySuccess),
		WebhookSecrets: secrets,
		Rules: []Rule{
			{Match: Match{Status: status(410, 410)}, Outcome: dispatcher.Gone, Reason: "the receiver wants no more webhooks: nothing more should be sent to this endpoint"},
			{Match: Match{Status: status(429, 429)}, Outcome: dispatcher.Retry},
			{Match: Match{Status: status(206, 207)}, Outcome: dispatcher.Delivered}, // any 2xx
			{Match: Match{Status: status(300, 499)}, Outcome: dispatcher.Unknown, Reason: "the receiver did not take it"},
			// Whatever it says of a stored answer: a customer must not make work for people.
			{Match: Match{Status: status(500, 599), Header: "Idempotent-Replayed"}, Outcome: dispatcher.Unknown, Reason: "the receiver did not take it"},
		},
	}
	if len(secrets) == 0 {
		dest.Endpoint, dest.Limits.Concurrency = "{{.Part}}", manyReceivers
	}
	return dest
}

// manyReceivers are so many calls under way that those to receivers that hang leave room for the others.
const manyReceivers = 1000

const webhookID = "Webhook-Id" // canonical

// signer signs calls as Standard Webhooks has it: HMAC-SHA256 over id, time and body, with each of its keys.
type signer [][]byte

// newSigner reads secrets, "whsec_" and base64. What it returns beside is secret. The error holds none of it.
func newSigner(secrets []string) (s signer, secret []string, err error) {
	for i, text := range secrets {
		key, err := webhook.SecretKey(text)
		if err != nil {
			return nil, nil, fmt.Errorf("number %d %w", i+1, err)
		}
		s, secret = append(s, key), append(secret, strings.TrimPrefix(text, webhook.SecretPrefix))
	}
	return s, secret, nil
}

func (s signer) sign(header http.Header, id string, at time.Time, body []byte) {
	stamp := strconv.FormatInt(at.Unix(), 10)
	signatures := make([]string, len(s))
	for i, key := range s {
		mac := hmac.New(sha256.New, key)
		mac.Write([]byte(id + "." + stamp + "."))
		mac.Write(body)
		signatures[i] = "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil))
	}
	header.Set("Webhook-Timestamp", stamp)
	header.Set("Webhook-Signature", strings.Join(signatures, " "))
}
