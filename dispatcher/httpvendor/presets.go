package httpvendor

import (
	"time"

	"github.com/samekey/samekey/dispatcher"
)

// The presets fill in what is known about a vendor: Vendor and Rules of a [Destination]. You set Name, URL and
// credentials, and can change every field. Their content was checked in the vendors' public documents in November 2026,
// except what is marked "unverified", which is from memory or only from programs that use the vendor.

// reused is the reason for a person if a key was used with another request.
const reused = "the vendor has this key with another request: find out which, and correct what writes or renders the intent"

func inHeader(name string, limit int, window time.Duration, replay dispatcher.Replay) dispatcher.Vendor {
	return dispatcher.Vendor{
		Key:    dispatcher.KeyRules{Place: dispatcher.KeyInHeader, Name: name, MaxLength: limit},
		Window: window, Replay: replay,
	}
}

// refusing is a vendor that refuses a known key with another request.
func refusing(vendor dispatcher.Vendor) dispatcher.Vendor {
	vendor.Mismatch = dispatcher.MismatchRefused
	return vendor
}

func status(low, high int) Statuses { return Statuses{{low, high}} }

// Stripe is Stripe's API v1, whose bodies are forms: Body{Format: Form}.
//
// The key goes unquoted into Idempotency-Key, up to 255 characters, and is kept for at least 24 hours. The same key
// gets the first answer again, also a stored 500, marked by "Idempotent-Replayed: true": it is stuck, so give the
// action a lookup. The same key with other parameters is an idempotency_error: dead. While the first call still runs
// the answer is a 409: retry. "Stripe-Should-Retry: true" on a 4xx is a retry too. "false" is stuck if the answer does
// not prove that nothing was done, such as a 409 or a 5xx. 402 is a declined card: refused.
//
// A payment intent or a setup intent that is answered 200 is not always done. With the status processing,
// requires_action or requires_confirmation it is accepted: looked up until it is done, or completed by an event. With
// requires_payment_method it is refused. succeeded, and requires_capture (authorized, for a later capture), are
// delivered. An action that creates an intent for a customer to confirm needs its own rule, which comes first:
//
//	{Match: Match{Status: Statuses{{200, 200}}, Field: "/object", Values: []string{"payment_intent"}}, Outcome: dispatcher.Delivered}
//
// The code idempotency_key_in_use and "Stripe-Should-Retry" are in the vendor's own SDK. Unverified: that the code
// comes with a 409, and that other parameters get a 400.
func Stripe() Destination {
	return Destination{
		JSONAnswers: true, Reference: "/id",
		Vendor: refusing(inHeader("Idempotency-Key", 255, 24*time.Hour, dispatcher.ReplayAnswer)),
		Rules: []Rule{
			{Match: Match{Status: Statuses{{408, 409}, {423, 425}, {499, 599}}, Header: "Stripe-Should-Retry", Values: []string{"false"}}, Outcome: dispatcher.Stuck, Reason: "the vendor reports that a retry changes nothing"},
			{Match: Match{Status: status(409, 409), Field: "/error/code", Values: []string{"idempotency_key_in_use"}}, Outcome: dispatcher.Retry, Reason: "a call with this key is still running"},
			{Match: Match{Status: status(400, 499), Field: "/error/type", Values: []string{"idempotency_error"}}, Outcome: dispatcher.Dead, Reason: reused},
			{Match: Match{Status: Statuses{{400, 400}, {402, 428}, {430, 499}}, Header: "Stripe-Should-Retry", Values: []string{"true"}}, Outcome: dispatcher.Retry, Reason: "the vendor says to retry"},
			{Match: Match{Status: status(409, 409)}, Outcome: dispatcher.Retry, Reason: "it conflicts with a call that is still running"},
			{Match: Match{Status: status(402, 402)}, Outcome: dispatcher.Refused, Reference: "/error/payment_intent/id"},
			{Match: Match{Status: status(500, 599), Header: "Idempotent-Replayed", Values: []string{"true"}}, Outcome: dispatcher.Stuck, Reason: "this answer is stored under the key, which can never succeed"},
			{Match: Match{Status: status(200, 299), Field: "/status", Values: []string{"requires_payment_method"}}, Outcome: dispatcher.Refused},
			{Match: Match{Status: status(200, 299), Field: "/status", Values: []string{"processing", "requires_action", "requires_confirmation"}}, Outcome: dispatcher.Accepted},
		},
	}
}

// Adyen is Adyen's Checkout and payments APIs.
//
// The key goes into idempotency-key, up to 64 characters. It is valid in one company account in one region, so use a
// destination for each. The same key gets the first answer again. The window is set to 7 days, the shortest that the
// vendor's pages have promised.
//
// A payment is answered 200, with a resultCode. Refused, Cancelled and Error are refused. Pending, Received,
// RedirectShopper, PresentToShopper, ChallengeShopper and IdentifyShopper are accepted: the shopper or the bank
// finishes them, and a webhook reports the result. Any other code is delivered. So is a capture or a refund whose
// answer has "status": "received".
//
// A 4xx with "transient-error: true" is a retry: the vendor says to try again with the same key. errorCode 704
// ("request already processed or in progress") without it is stuck: give the action a lookup. Unverified in the
// vendor's own page: 704 and "transient-error", which are from quotations of it.
func Adyen() Destination {
	return Destination{
		JSONAnswers: true, Reference: "/pspReference",
		Vendor: inHeader("idempotency-key", 64, 7*24*time.Hour, dispatcher.ReplayAnswer),
		Rules: []Rule{
			{Match: Match{Status: status(200, 299), Field: "/resultCode", Values: []string{"Refused", "Cancelled", "Error"}}, Outcome: dispatcher.Refused},
			{Match: Match{Status: status(200, 299), Field: "/resultCode", Values: []string{"Pending", "Received", "RedirectShopper", "PresentToShopper", "ChallengeShopper", "IdentifyShopper"}}, Outcome: dispatcher.Accepted},
			{Match: Match{Status: status(400, 499), Header: "transient-error", Values: []string{"true"}}, Outcome: dispatcher.Retry, Reason: "the vendor reports that the error is temporary"},
			{Match: Match{Status: status(400, 499), Field: "/errorCode", Values: []string{"704"}}, Outcome: dispatcher.Stuck, Reason: "the vendor has this call, or is still working on it"},
		},
	}
}

// PayPal is PayPal's Orders API v2, and captures and refunds of its Payments API v2. Send "Prefer:
// return=representation", so that an answer shows the state of the payment.
//
// The key goes into PayPal-Request-Id, up to 108 characters, and is kept for 6 hours. PayPal extends that to 72 on
// request; then change Vendor.Window. The same key gets the current state of what the first call made, not the same
// bytes: do not compare them. Of two concurrent calls the second may fail: PREVIOUS_REQUEST_IN_PROGRESS of a 409 is a
// retry, and so is ORDER_COMPLETION_IN_PROGRESS of a 422; any other 409 is stuck.
//
// ORDER_ALREADY_CAPTURED and similar issues are stuck: the vendor says to read the order, so give the action a lookup
// that does. A capture or an authorization that is PENDING is accepted, and so is an order with PAYER_ACTION_REQUIRED.
// One that is DECLINED, DENIED or FAILED is refused.
//
// A key with another request is PAYPAL_REQUEST_ID_PREVIOUSLY_USED or DUPLICATE_REQUEST_ID: dead. Unverified: that they
// come as an issue of a 400 or 422 of this API too; that a declined card is the issue INSTRUMENT_DECLINED or
// TRANSACTION_REFUSED of a 422; the issues AUTHORIZATION_ALREADY_CAPTURED and CAPTURE_FULLY_REFUNDED.
func PayPal() Destination {
	inProgress := []string{"PREVIOUS_REQUEST_IN_PROGRESS", "ORDER_COMPLETION_IN_PROGRESS"}
	already := []string{"ORDER_ALREADY_CAPTURED", "ORDER_ALREADY_AUTHORIZED", "AUTHORIZATION_ALREADY_CAPTURED", "CAPTURE_FULLY_REFUNDED", "DUPLICATE_INVOICE_ID"}
	rules := []Rule{
		{Match: Match{Status: status(400, 422), Field: "/details/*/issue", Values: []string{"PAYPAL_REQUEST_ID_PREVIOUSLY_USED", "DUPLICATE_REQUEST_ID"}}, Outcome: dispatcher.Dead, Reason: reused},
		{Match: Match{Status: status(400, 422), Field: "/name", Values: []string{"PAYPAL_REQUEST_ID_PREVIOUSLY_USED", "DUPLICATE_REQUEST_ID"}}, Outcome: dispatcher.Dead, Reason: reused},
		{Match: Match{Status: status(409, 422), Field: "/details/*/issue", Values: inProgress}, Outcome: dispatcher.Retry, Reason: "a call for this payment is still running"},
		{Match: Match{Status: status(400, 422), Field: "/details/*/issue", Values: already}, Outcome: dispatcher.Stuck, Reason: "the vendor reports that this was done already, perhaps by this intent: read the order"},
		{Match: Match{Status: status(422, 422), Field: "/details/*/issue", Values: []string{"INSTRUMENT_DECLINED", "TRANSACTION_REFUSED"}}, Outcome: dispatcher.Refused},
	}
	// The status of the order, or of what a Payments call made, and the statuses of the payments in an order. If one of
	// several is done, money has moved: that is not a refusal.
	const own, each = "/status", "/purchase_units/*/payments/*/*/status"
	pending, no := []string{"PENDING", "PAYER_ACTION_REQUIRED"}, []string{"DECLINED", "DENIED", "FAILED"}
	rules = append(rules,
		Rule{Match: Match{Status: status(200, 299), Field: own, Values: pending}, Outcome: dispatcher.Accepted},
		Rule{Match: Match{Status: status(200, 299), Field: each, Values: pending}, Outcome: dispatcher.Accepted},
		Rule{Match: Match{Status: status(200, 299), Field: each, Values: []string{"COMPLETED", "CREATED", "CAPTURED", "PARTIALLY_CAPTURED"}}, Outcome: dispatcher.Delivered},
		Rule{Match: Match{Status: status(200, 299), Field: own, Values: no}, Outcome: dispatcher.Refused},
		Rule{Match: Match{Status: status(200, 299), Field: each, Values: no}, Outcome: dispatcher.Refused})
	return Destination{
		JSONAnswers: true, Reference: "/id",
		Vendor: refusing(inHeader("PayPal-Request-Id", 108, 6*time.Hour, dispatcher.ReplayState)),
		Rules:  rules,
	}
}

// Square is Square's payments API: its bodies are JSON, with the key in the field idempotency_key.
//
// The same key gets the answer of the first success; with another request it gets an error. The vendor does not publish
// how long it keeps a key: Vendor.Window is not set, so each action must set Policy.KeyWindow.
//
// A payment or a refund that is PENDING (a bank transfer, most refunds) is accepted; one that is FAILED or REJECTED is
// refused; COMPLETED, and APPROVED of a payment with autocomplete off, are delivered.
//
// Unverified: the limit of 45 characters, which is that of payments (other calls take more); the code
// IDEMPOTENCY_KEY_REUSED; the category PAYMENT_METHOD_ERROR of a declined card; the status of a refund.
func Square() Destination {
	return Destination{
		JSONAnswers: true, Reference: "/*/id",
		Vendor: dispatcher.Vendor{
			Key:    dispatcher.KeyRules{Place: dispatcher.KeyInBody, Name: "idempotency_key", MaxLength: 45},
			Replay: dispatcher.ReplaySuccess, Mismatch: dispatcher.MismatchRefused,
		},
		Rules: []Rule{
			{Match: Match{Status: status(400, 499), Field: "/errors/*/code", Values: []string{"IDEMPOTENCY_KEY_REUSED"}}, Outcome: dispatcher.Dead, Reason: reused},
			{Match: Match{Status: status(400, 402), Field: "/errors/*/category", Values: []string{"PAYMENT_METHOD_ERROR"}}, Outcome: dispatcher.Refused},
			{Match: Match{Status: status(200, 299), Field: "/payment/status", Values: []string{"FAILED"}}, Outcome: dispatcher.Refused},
			{Match: Match{Status: status(200, 299), Field: "/payment/status", Values: []string{"PENDING"}}, Outcome: dispatcher.Accepted},
			{Match: Match{Status: status(200, 299), Field: "/refund/status", Values: []string{"FAILED", "REJECTED"}}, Outcome: dispatcher.Refused},
			{Match: Match{Status: status(200, 299), Field: "/refund/status", Values: []string{"PENDING"}}, Outcome: dispatcher.Accepted},
		},
	}
}

// Checkout is Checkout.com's payments API.
//
// The key goes into Cko-Idempotency-Key and is kept for 24 hours, unless your account has another setting. Only 2xx
// answers are kept; the vendor executes anything else again. While the first call still runs the answer is a 409 (a 429
// until 2024): retry. The vendor asks to wait 30 seconds then: set Policy.Backoff accordingly.
//
// 202, and a payment whose status is Pending, are accepted: the customer has to act, or a capture, refund or void is in
// progress, and a webhook reports the result.
//
// Unverified: that a declined payment is answered 201 with "approved": false (refused); what the same key with another
// request gets; and 202 and Pending, which are from programs that use the API.
func Checkout() Destination {
	return Destination{
		JSONAnswers: true, Reference: "/id",
		Vendor: inHeader("Cko-Idempotency-Key", 0, 24*time.Hour, dispatcher.ReplaySuccess),
		Rules: []Rule{
			{Match: Match{Status: status(409, 409)}, Outcome: dispatcher.Retry, Reason: "a call with this key is still running"},
			{Match: Match{Status: status(202, 202)}, Outcome: dispatcher.Accepted},
			{Match: Match{Status: status(200, 299), Field: "/status", Values: []string{"Pending"}}, Outcome: dispatcher.Accepted},
			{Match: Match{Status: status(200, 299), Field: "/approved", Values: []string{"false"}}, Outcome: dispatcher.Refused},
		},
	}
}

// Resend is Resend's mail API: POST /emails and /emails/batch.
//
// The key goes into Idempotency-Key, up to 256 characters, and is kept for 24 hours. The same request gets the first
// answer again and sends no mail. A 409 is either invalid_idempotent_request, the key with another request: dead; or
// concurrent_idempotent_requests, while the first call still runs: retry. Another 409 is stuck.
//
// The two values of the field "name" are in the vendor's own SDK.
func Resend() Destination {
	return Destination{
		JSONAnswers: true, Reference: "/id",
		Vendor: refusing(inHeader("Idempotency-Key", 255, 24*time.Hour, dispatcher.ReplayAnswer)),
		Rules: []Rule{
			{Match: Match{Status: status(409, 409), Field: "/name", Values: []string{"concurrent_idempotent_requests"}}, Outcome: dispatcher.Retry, Reason: "a call with this key is still running"},
			{Match: Match{Status: status(409, 409), Field: "/name", Values: []string{"invalid_idempotent_request"}}, Outcome: dispatcher.Dead, Reason: reused},
		},
	}
}

// Generic is a vendor that follows the IETF's draft (draft-ietf-httpapi-idempotency-key-header-07): the key is a quoted
// string in Idempotency-Key; 409 while the first call runs: retry; 422 with another request, and 400 without a key:
// dead. The vendor publishes how long it keeps a key and what it answers: set Vendor.Window, and Vendor.Replay if it is
// not the first answer.
func Generic() Destination {
	vendor := refusing(inHeader("Idempotency-Key", 0, 0, dispatcher.ReplayAnswer))
	vendor.Key.Quoted = true
	return Destination{
		Vendor: vendor,
		Rules: []Rule{
			{Match: Match{Status: status(409, 409)}, Outcome: dispatcher.Retry, Reason: "a call with this key is still running"},
			{Match: Match{Status: status(422, 422)}, Outcome: dispatcher.Dead, Reason: "the request is refused, or " + reused},
		},
	}
}

// Mail is a mail API that takes no keys and executes every call again, such as Postmark's, SendGrid's, Mailgun's or
// SES's. Its actions are non-idempotent writes: a mail whose outcome is unknown is looked up in the log of what was
// sent, or parked, and never sent twice without proof. Put {{.Key}} with Body into a field by which the log can be
// searched, and search for it with [SentLog].
func Mail() Destination {
	return Destination{Vendor: dispatcher.Vendor{
		Key: dispatcher.KeyRules{Place: dispatcher.KeyNowhere}, Replay: dispatcher.ReplayNothing,
	}}
}

// SentLog looks a call up in a list of what was sent. The request must ask only for what carries the key. List is the
// JSON Pointer of the list in the answer, field that of the key in one of its elements. For example, for Postmark and a
// mail with "Metadata": {"key": {{.Key}}} (unverified):
//
//	httpvendor.SentLog("GET /messages/outbound?count=10&offset=0&metadata_key={{.Key}}", "/Messages", "/Metadata/key")
//
// An element with the key is delivered; an empty list is absent. Anything else is unknown, also a list of other
// elements: it shows that the vendor did not filter by the key, and may be a page of a longer list. An accepted call
// appears in such a log late: set Policy.SettlingDelay accordingly, and Policy.ResendAbsent only if the log misses
// nothing.
func SentLog(request, list, field string) *Lookup {
	return &Lookup{Request: request, Rules: []Rule{
		{Match: Match{Status: status(200, 200), Field: list + "/*" + field, Values: []string{"{{.Key}}"}}, Outcome: dispatcher.Delivered},
		{Match: Match{Status: status(200, 200), Field: list + "/*"}, Outcome: dispatcher.Unknown},
		{Match: Match{Status: status(200, 200), Field: list}, Outcome: dispatcher.Absent},
	}}
}
