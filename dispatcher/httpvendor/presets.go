package httpvendor

import (
	"time"

	"github.com/samekey/samekey/dispatcher"
)

// The presets fill in what is known of a vendor: Vendor and Rules of a [Destination]. Name, URL and credentials are yours,
// and every field can be changed. What follows was checked in the vendors' public documents in November 2026, but for
// what is marked "unverified", which is from memory or only from programs that use the vendor.

// reused is what a person is told where a key meets another request.
const reused = "the vendor has this key with another request: find out which, and correct what writes or renders the intent"

func inHeader(name string, limit int, window time.Duration, replay dispatcher.Replay) dispatcher.Vendor {
	return dispatcher.Vendor{
		Key:    dispatcher.KeyRules{Place: dispatcher.KeyInHeader, Name: name, MaxLength: limit},
		Window: window, Replay: replay,
	}
}

// refusing is a vendor that refuses a key that comes with another request.
func refusing(vendor dispatcher.Vendor) dispatcher.Vendor {
	vendor.Mismatch = dispatcher.MismatchRefused
	return vendor
}

func status(low, high int) Statuses { return Statuses{{low, high}} }

// Stripe is Stripe's API v1, whose bodies are forms: Body{Format: Form}.
//
// The key goes bare into Idempotency-Key, up to 255 characters, and is kept for 24 hours at least. The same key gets the
// first answer again, a stored 500 too, marked by "Idempotent-Replayed: true": it is [Stuck], so give the action a look-up.
// The same key with other parameters is an idempotency_error: dead. Where the first call still runs it is a 409: put off.
// "Stripe-Should-Retry" says of a 5xx whether it makes sense to try again. 402 is a declined card: refused.
//
// The code idempotency_key_in_use and "Stripe-Should-Retry" are in the vendor's own SDK. Unverified: that the code comes with
// a 409, and that other parameters are answered 400.
func Stripe() Destination {
	return Destination{
		JSONAnswers: true,
		Vendor:      refusing(inHeader("Idempotency-Key", 255, 24*time.Hour, dispatcher.ReplayAnswer)),
		Rules: []Rule{
			{Match: Match{Status: status(409, 409), Field: "/error/code", Values: []string{"idempotency_key_in_use"}}, Means: Retry, Reason: "a call with this key is still running"},
			{Match: Match{Status: status(400, 499), Field: "/error/type", Values: []string{"idempotency_error"}}, Means: Dead, Reason: reused},
			{Match: Match{Status: status(409, 409)}, Means: Retry, Reason: "it conflicts with a call that is still running"},
			{Match: Match{Status: status(402, 402)}, Means: Refused},
			{Match: Match{Status: status(500, 599), Header: "Idempotent-Replayed", Values: []string{"true"}}, Means: Stuck, Reason: "this answer is stored under the key, which can never succeed"},
			{Match: Match{Status: status(500, 599), Header: "Stripe-Should-Retry", Values: []string{"false"}}, Means: Stuck, Reason: "the vendor says that to try again changes nothing"},
		},
	}
}

// Adyen is Adyen's Checkout and payments APIs.
//
// The key goes into idempotency-key, up to 64 characters, and is one company account's in one region: a destination for
// each. The same key gets the first answer again. A payment that is refused is answered 200, with a resultCode: refused.
//
// The window is set to 7 days. Older pages promise at least 31 days and the newest does not show a number where it was
// looked for; shorter is safe. Unverified: errorCode 704 for a call that is still running or was made, and the header
// "transient-error: true" of a 4xx that is not kept, both of which are unknown: tried again, and they spend an attempt; and
// which of the result codes are final.
func Adyen() Destination {
	return Destination{
		JSONAnswers: true,
		Vendor:      inHeader("idempotency-key", 64, 7*24*time.Hour, dispatcher.ReplayAnswer),
		Rules: []Rule{
			{Match: Match{Status: status(200, 299), Field: "/resultCode", Values: []string{"Refused", "Cancelled", "Error"}}, Means: Refused},
			{Match: Match{Status: status(400, 499), Header: "transient-error", Values: []string{"true"}}, Means: Unknown, Reason: "the vendor says that the error passes"},
			{Match: Match{Status: status(409, 422), Field: "/errorCode", Values: []string{"704"}}, Means: Unknown, Reason: "the vendor has this call, or is still at it"},
		},
	}
}

// PayPal is PayPal's Orders API v2.
//
// The key goes into PayPal-Request-Id, up to 108 characters, and is kept for 6 hours; PayPal makes that 72 on request, then
// change Vendor.Window. The same key gets the latest state of what the first call made, not the same bytes: do not
// compare them. Of two calls at once the second may fail.
//
// A key that has another request is PAYPAL_REQUEST_ID_PREVIOUSLY_USED or DUPLICATE_REQUEST_ID: dead. Unverified: that they
// come as an issue of a 400 or 422 of this API too; that a declined card is the issue INSTRUMENT_DECLINED or
// TRANSACTION_REFUSED of a 422; what a second call at once is answered, so that a 409 is unknown: tried again, and it
// spends an attempt.
func PayPal() Destination {
	return Destination{
		JSONAnswers: true,
		Vendor:      refusing(inHeader("PayPal-Request-Id", 108, 6*time.Hour, dispatcher.ReplayState)),
		Rules: []Rule{
			{Match: Match{Status: status(400, 422), Field: "/details/*/issue", Values: []string{"PAYPAL_REQUEST_ID_PREVIOUSLY_USED", "DUPLICATE_REQUEST_ID"}}, Means: Dead, Reason: reused},
			{Match: Match{Status: status(400, 422), Field: "/name", Values: []string{"PAYPAL_REQUEST_ID_PREVIOUSLY_USED", "DUPLICATE_REQUEST_ID"}}, Means: Dead, Reason: reused},
			{Match: Match{Status: status(422, 422), Field: "/details/*/issue", Values: []string{"INSTRUMENT_DECLINED", "TRANSACTION_REFUSED"}}, Means: Refused},
			{Match: Match{Status: status(409, 409)}, Means: Unknown, Reason: "a call with this key may still be running"},
		},
	}
}

// Square is Square's payments API: its bodies are JSON, with the key in the field idempotency_key.
//
// The same key gets the answer of the first success; with another request it is an error. For how long a key is kept, the
// vendor does not publish: Vendor.Window is not set, and each action's Policy.KeyWindow must say what you rely on.
//
// Unverified: the limit of 45 characters, which is that of payments (other calls take more); the code
// IDEMPOTENCY_KEY_REUSED; and the category PAYMENT_METHOD_ERROR of a declined card.
func Square() Destination {
	return Destination{
		JSONAnswers: true,
		Vendor: dispatcher.Vendor{
			Key:    dispatcher.KeyRules{Place: dispatcher.KeyInBody, Name: "idempotency_key", MaxLength: 45},
			Replay: dispatcher.ReplaySuccess, Mismatch: dispatcher.MismatchRefused,
		},
		Rules: []Rule{
			{Match: Match{Status: status(400, 499), Field: "/errors/*/code", Values: []string{"IDEMPOTENCY_KEY_REUSED"}}, Means: Dead, Reason: reused},
			{Match: Match{Status: status(400, 402), Field: "/errors/*/category", Values: []string{"PAYMENT_METHOD_ERROR"}}, Means: Refused},
		},
	}
}

// Checkout is Checkout.com's payments API.
//
// The key goes into Cko-Idempotency-Key and is kept for 24 hours, unless your account says otherwise; only what was
// answered 2xx is, and anything else is done again. Where the first call still runs it is a 409 (a 429 until 2024): put
// off. The vendor asks to wait 30 seconds then: let Policy.Backoff be so long.
//
// Unverified: that a declined payment is answered 201 with "approved": false: refused; and what the same key with another
// request gets.
func Checkout() Destination {
	return Destination{
		JSONAnswers: true,
		Vendor:      inHeader("Cko-Idempotency-Key", 0, 24*time.Hour, dispatcher.ReplaySuccess),
		Rules: []Rule{
			{Match: Match{Status: status(409, 409)}, Means: Retry, Reason: "a call with this key is still running"},
			{Match: Match{Status: status(200, 299), Field: "/approved", Values: []string{"false"}}, Means: Refused},
		},
	}
}

// Resend is Resend's mail API: POST /emails and /emails/batch.
//
// The key goes into Idempotency-Key, up to 256 characters, and is kept for 24 hours; the same request gets the first
// answer again and sends no mail. A 409 is either invalid_idempotent_request, the key with another request: dead; or
// concurrent_idempotent_requests, the first still runs: put off. Another 409 is unknown: it is tried again, and it spends
// an attempt.
//
// Unverified in the vendor's own pages: the two names, which programs that use it know by the field "name".
func Resend() Destination {
	return Destination{
		JSONAnswers: true,
		Vendor:      refusing(inHeader("Idempotency-Key", 255, 24*time.Hour, dispatcher.ReplayAnswer)),
		Rules: []Rule{
			{Match: Match{Status: status(409, 409), Field: "/name", Values: []string{"concurrent_idempotent_requests"}}, Means: Retry, Reason: "a call with this key is still running"},
			{Match: Match{Status: status(409, 409), Field: "/name", Values: []string{"invalid_idempotent_request"}}, Means: Dead, Reason: reused},
			{Match: Match{Status: status(409, 409)}, Means: Unknown},
		},
	}
}

// Generic is a vendor that goes by the IETF's draft (draft-ietf-httpapi-idempotency-key-header-07): the key as a quoted
// string in Idempotency-Key; 409 while the first call runs: put off; 422 with another request, and 400 without a key:
// dead. How long a key is kept, and what is replayed, the vendor publishes: set Vendor.Window, and Vendor.Replay if it is
// not the first answer.
func Generic() Destination {
	vendor := refusing(inHeader("Idempotency-Key", 0, 0, dispatcher.ReplayAnswer))
	vendor.Key.Quoted = true
	return Destination{
		Vendor: vendor,
		Rules: []Rule{
			{Match: Match{Status: status(409, 409)}, Means: Retry, Reason: "a call with this key is still running"},
			{Match: Match{Status: status(422, 422)}, Means: Dead, Reason: "the request is refused, or " + reused},
		},
	}
}

// Mail is a mail API that takes no keys and does every call again, such as Postmark's, SendGrid's, Mailgun's or SES's. Its
// actions are non-idempotent writes: a mail whose fate is unknown is looked up in the log of what was sent, else parked,
// and never sent twice blindly. Put {{.Key}} into a field that the log can be searched by, with Body, and search for it
// with [SentLog].
func Mail() Destination {
	return Destination{Vendor: dispatcher.Vendor{
		Key: dispatcher.KeyRules{Place: dispatcher.KeyNowhere}, Replay: dispatcher.ReplayNothing,
	}}
}

// SentLog looks a call up in a list of what was sent. The request must ask for what carries the key alone; list is the JSON
// Pointer of the list in the answer, field that of the key in one of its elements. Such as, for Postmark and a mail with "Metadata": {"key": {{.Key}}} (unverified):
//
//	httpvendor.SentLog("GET /messages/outbound?count=10&offset=0&metadata_key={{.Key}}", "/Messages", "/Metadata/key")
//
// An element with the key means found; an empty list, absent; anything else is inconclusive, a list of others too: it shows
// that the vendor did not look for the key, and may be a page of a longer one. What was accepted shows up in such a log
// late: Policy.SettlingDelay is for that, and Policy.ResendAbsent only where the log misses nothing.
func SentLog(request, list, field string) *Lookup {
	return &Lookup{Request: request, Rules: []LookupRule{
		{Match: Match{Status: status(200, 200), Field: list + "/*" + field, Values: []string{"{{.Key}}"}}, Means: Found},
		{Match: Match{Status: status(200, 200), Field: list + "/*"}, Means: Inconclusive},
		{Match: Match{Status: status(200, 200), Field: list}, Means: Absent},
	}}
}
