package dispatcher

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/samekey/samekey/internal/intent"
	"github.com/samekey/samekey/internal/names"
	"github.com/samekey/samekey/internal/redact"
	"github.com/samekey/samekey/internal/unsent"
	"github.com/samekey/samekey/internal/wire"
)

// Outcome is what a Send or a Lookup found out about a call. Make one with a constructor: [Delivered], [Refused],
// [Accepted], [Retry], [Denied], [Dead], [Gone], [Unsent], [Unknown], [Stuck], or in a Lookup [Absent]. The methods add
// to it: [Outcome.After], [Outcome.ForAccount], [Outcome.Because], [Outcome.Reference].
//
// The zero Outcome means unknown, so a forgotten outcome never counts as delivered. So does any error that is returned
// beside an outcome: see [Delivery].
type Outcome struct {
	kind     string
	response Response
	after    time.Duration
	account  bool   // the wait is for the whole destination
	refers   string // the vendor's reference
	reason   error  // for a person; never decides anything but the code of an unknown outcome
	mistake  bool   // the function returned what it may not return
}

// The kinds of outcome. The history and configuration files use the same names. Where the history uses another name for
// a kind, it is noted.
const (
	outcomeDelivered = intent.OutcomeDelivered
	outcomeRefused   = intent.OutcomeRefused
	outcomeAccepted  = intent.OutcomeAccepted
	outcomeRetry     = intent.OutcomeRetry
	outcomeDenied    = "denied" // in the history: retry
	outcomeDead      = intent.OutcomeDead
	outcomeGone      = "gone" // in the history: dead
	outcomeUnsent    = intent.OutcomeUnsent
	outcomeUnknown   = intent.OutcomeUnknown
	outcomeStuck     = "stuck" // in the history: unknown
	outcomeAbsent    = intent.OutcomeAbsent

	outcomeNone   = ""       // nothing was returned; in the history: unknown
	outcomeFailed = "failed" // an error was returned; in the history: unknown, or retry

	// The worker decides these without a call.
	outcomeParked   = intent.OutcomeParked
	outcomeAwaiting = intent.OutcomeAwaitingApproval
)

// Delivered reports that the vendor acted. The intent is finished.
func Delivered(r Response) Outcome { return Outcome{kind: outcomeDelivered, response: r} }

// Refused reports that the vendor refused for a business reason, such as a declined card. The intent is finished as
// refused.
func Refused(r Response) Outcome { return Outcome{kind: outcomeRefused, response: r} }

// Accepted reports that the vendor took the call and finishes it later (202). The call is never sent again.
//
// The action's Lookup asks for the result, after [Outcome.After] or the policy's SettlingDelay, whichever is longer. It
// returns Delivered, Refused, or Accepted again while the vendor still works on the call; then it is asked again after
// at least a second. An event from the vendor may be faster, with outbox.Resolve. After the policy's CompletionTime the
// intent is parked.
func Accepted(r Response) Outcome { return Outcome{kind: outcomeAccepted, response: r} }

// Retry reports that the vendor did not act, by its own account, and can be asked again: a 429, or an answer that means
// "still running under this key". It uses no attempt. The next call waits for [Outcome.After] or the policy's
// backoff, whichever is longer. Many in a row slow down the destination or the endpoint ([Limits.BreakAfter]).
//
// Every class may be called again after Retry, except that an irreversible write waits for another approval.
func Retry(r Response) Outcome { return Outcome{kind: outcomeRetry, response: r} }

// Denied reports that the vendor refused the account's credentials (401) and did not act. It uses no attempt and
// starts no key window. The call is repeated with the policy's backoff, and several in a row open the destination's
// breaker, so a revoked token costs no intent anything. An irreversible write waits for another approval.
func Denied(r Response) Outcome { return Outcome{kind: outcomeDenied, response: r} }

// Dead reports that the vendor did not act and will not until a person changes something (404, a malformed request).
// The intent stays dead (a dead letter) until it is redriven, resolved or cancelled.
//
// A redrive sends the same bytes. If the bytes are wrong, replace the intent (outbox.Replace).
func Dead(r Response) Outcome { return Outcome{kind: outcomeDead, response: r} }

// Gone reports that the endpoint did not act and wants no more calls (410). The intent is dead. If its endpoint is a
// stored one ([Delivery].StoredEndpoint), the endpoint is stopped: it gets no call until a person starts it again. A
// Lookup must not return Gone.
func Gone(r Response) Outcome { return Outcome{kind: outcomeGone, response: r} }

// Unsent reports that provably nothing left this process: the name did not resolve, no connection was made, TLS failed.
// It uses no attempt and starts no key window.
func Unsent(err error) Outcome { return Outcome{kind: outcomeUnsent, reason: err} }

// Unknown reports that the vendor may have acted. From a Send, the action's [Class] decides whether the call is
// repeated or looked up. From a Lookup, it means that the lookup cannot tell: the intent is parked.
func Unknown(r Response) Outcome { return Outcome{kind: outcomeUnknown, response: r} }

// Stuck reports that the vendor may have acted, and that the same call with the same key can never find out: the vendor
// replays a stored 500, or answers 409 because the payment exists. Whatever its class, the intent is not sent again: it
// is looked up, or parked if the action has no Lookup. (A [Read] is repeated.)
func Stuck(r Response) Outcome { return Outcome{kind: outcomeStuck, response: r} }

// Absent reports, from a Lookup, that the vendor does not know the delivery key. The lookup is repeated after another
// SettlingDelay. After the second Absent the intent is parked with that evidence, or sent once more if the policy sets
// ResendAbsent. A Send must not return Absent.
func Absent(r Response) Outcome { return Outcome{kind: outcomeAbsent, response: r} }

// After sets the shortest wait before the next call, as the vendor's Retry-After asks: neither an attempt nor a lookup
// starts earlier, even if a person approves the intent. It is cut at a day. It has no effect on an intent that is
// finished, dead or parked.
func (o Outcome) After(d time.Duration) Outcome {
	o.after = d
	return o
}

// ForAccount makes the wait of a [Retry] apply to the whole account, as after a 429: until it is over, this worker
// claims nothing for the destination, or calls nothing at the call's endpoint. Intents wait with no attempt used; calls
// that were already claimed are still made. The wait is cut at the destination's MaxBreakDelay.
//
// If no wait is set, the worker chooses one. It grows with each such answer, and ends with a single call
// ([Limits.BreakAfter]). If the destination has no breaker, only this intent waits.
func (o Outcome) ForAccount() Outcome {
	o.account = true
	return o
}

// Because adds an explanation for a person. It is kept in the history and written to the log, where values of the
// payload are removed.
func (o Outcome) Because(err error) Outcome {
	o.reason = err
	return o
}

// Reference adds the vendor's own id of what it did, such as "ch_123". It is stored in the history with the answer,
// whatever the outcome: outbox.List finds the intent by it, Apply gets it, and a later Lookup gets it as
// [Call].Reference. An empty text adds nothing.
//
// It never costs an outcome: a character that is not printable becomes U+FFFD, and at most 255 bytes are kept. Logs show
// a short hash of it.
func (o Outcome) Reference(text string) Outcome {
	o.refers = text
	return o
}

// Response returns the vendor's response, for code that wraps a Send or a Lookup.
func (o Outcome) Response() Response { return o.response }

// Kind returns the outcome's name in configuration files, such as "refused" or "retry". It is empty for the zero
// Outcome.
func (o Outcome) Kind() string { return o.kind }

// String describes the outcome without the response's body, such as "retry 429 after 2s for the account".
func (o Outcome) String() string {
	text := or(o.kind, "no outcome")
	if o.response.Code != "" {
		text += " " + o.response.Code
	}
	if o.after > 0 {
		text += fmt.Sprintf(" after %v", o.after)
	}
	if o.account {
		text += " for the account"
	}
	if o.reason != nil {
		text += ": " + o.reason.Error()
	}
	return text
}

// ErrUnsent marks errors of calls of which provably nothing was sent. The client of package dispatcher/httpclient
// returns such errors. A Send or Lookup that returns one, wrapped or not, has the outcome [Unsent].
// If the client has sent another request of the same attempt of a write, the outcome is unknown all the same.
var ErrUnsent = unsent.Err

// The codes of outcomes that come without a code of the vendor's.
const (
	codePanic     = "panic"
	codeNoOutcome = "no_outcome"
	codePayload   = "payload" // the payload did not decode: the vendor was not called
	codeProxy     = "proxy"   // the request would have used a proxy, see package httpclient
)

var (
	errNoOutcome = errors.New("the function returned no Outcome and no error: return Delivered if the vendor acted")
	errAbsent    = errors.New("Send returned Absent, which only a Lookup may return")
	errGone      = errors.New("Lookup returned Gone, which only a Send may return")
	errSent      = errors.New("Send returned Unsent, but the client of package httpclient has sent a request of this attempt")
)

// conclude returns what a Send or a Lookup found out, from both of its results. An error wins over the outcome; the
// response is kept as evidence. If a write's request may have been sent, no error proves the opposite: it may be the
// error of another request of the same attempt, such as a first try at a host that is down.
func conclude(o Outcome, err error, lookup, writeSent bool) Outcome {
	switch {
	case errors.Is(err, ErrUnsent) && !writeSent:
		o.kind, o.reason = outcomeUnsent, err
	case errors.Is(err, wire.ErrProxied) && !writeSent:
		o.kind, o.reason, o.response.Code = outcomeDead, err, codeProxy
	case err != nil:
		o.kind, o.reason = outcomeFailed, err
	case o.kind == outcomeNone:
		o.kind, o.reason, o.response.Code, o.mistake = outcomeUnknown, errNoOutcome, codeNoOutcome, true
	case o.kind == outcomeUnsent && writeSent:
		o.kind, o.reason, o.mistake = outcomeUnknown, errors.Join(errSent, o.reason), true
	case o.kind == outcomeAbsent && !lookup:
		o.kind, o.reason, o.mistake = outcomeUnknown, errAbsent, true
	case o.kind == outcomeGone && lookup:
		o.kind, o.reason, o.mistake = outcomeUnknown, errGone, true
	}
	return o
}

// wait is how long the vendor asks to be left alone.
func (o Outcome) wait() time.Duration { return min(max(o.after, 0), maxDelay) }

// ownCodes are codes by which the worker tells, at the next claim, what it found out before.
var ownCodes = []string{outcomeAbsent, codeAccepted, codeOrphaned, codeSettling}

// code is the response's code, or a default. A vendor's code that is the same as one of the worker's own is marked.
func (o Outcome) code(fallback string) string {
	if slices.Contains(ownCodes, o.response.Code) {
		return "vendor_" + o.response.Code
	}
	return or(o.response.Code, fallback)
}

// reference is the vendor's reference as it is stored.
func (o Outcome) reference() string { return clean(names.Printable(o.refers), referenceLimit) }

// text is the reason for the history, without URLs, which may contain secrets.
func (o Outcome) text() string {
	if o.reason == nil {
		return ""
	}
	return redact.WithoutURLs(o.reason)
}

// unknownCode is the code of an unknown outcome without a response.
func unknownCode(reason error) string {
	var panicked *panicError
	switch {
	case errors.As(reason, &panicked):
		return codePanic
	case errors.Is(reason, context.DeadlineExceeded):
		return "timeout"
	case errors.Is(reason, context.Canceled):
		return "stopped"
	}
	return "unknown"
}
