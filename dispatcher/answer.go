package dispatcher

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/samekey/samekey"
	"github.com/samekey/samekey/internal/intent"
)

// Call is one attempt to deliver an intent, as a handler sees it. DeliveryKey and Payload are the same bytes at every
// attempt of the intent, across restarts, deploys and redrives.
type Call struct {
	ID           uuid.UUID   // the intent's
	DeliveryKey  uuid.UUID   // what the vendor must be given
	Key          samekey.Key // of the request that wrote the intent
	Action, Part string
	Attempt      int // grows with every claim; not dense
	Payload      []byte
	ContentType  string
	Headers      map[string]string // never nil

	// CarriedKey is DeliveryKey in the form that the vendor takes ([KeyRules.Project]): what goes onto the wire. Like the
	// delivery key it never changes once it may have been sent, whatever becomes of the rules.
	CarriedKey string

	// Rendered is what was fixed before the first attempt, by [WithRender]; nil where nothing was.
	Rendered *Rendered

	// Endpoint is where the call goes, for actions of [WithStoredEndpoint]; else nil.
	Endpoint *Endpoint

	// LastAnswer is for a look-up: what the vendor last answered to an attempt, as the history keeps it, such as the id of
	// an operation in the body of a 202 or of a 5xx. It survives restarts. Nil in attempts, and where no body came or was
	// kept; what was answered before somebody said that nothing had been sent is forgotten. Its Body is cut at the policy's
	// ResponseCap, so JSON that is longer is none.
	LastAnswer *Answer

	TraceContext string    // W3C traceparent, or empty
	CreatedAt    time.Time // by the database's clock
}

// Answer is what a vendor said. It is stored in the intent's history; Body is cut at the policy's ResponseCap.
type Answer struct {
	Code        string // a status or an error code, such as "200" or "card_declined"; at most 128 bytes are kept
	ContentType string
	Body        []byte
}

// Handler makes one attempt. Its context ends at the attempt's deadline; what it sends after that may meet the attempt
// that came after it. A nil error means delivered. [Refused], [RetryAfter], [Throttled], [Unsent], [Dead], [Denied],
// [Gone], [Accepted], [Stuck] and [Unknown] say what kind of error it was, and [NotBefore] when the vendor wants the next call; of any other error, or a panic, the outcome is unknown. For a class that may be repeated an
// error of net that says "dial", or that a name was not found, counts as a vendor that cannot be reached: it spends no
// attempt. It is no proof that nothing was sent; where you have that, say [Unsent]. The client of package
// dispatcher/httpclient says it by itself, and sends nothing after the deadline.
type Handler func(ctx context.Context, call *Call) (Answer, error)

type verdict int

const (
	verdictUnknown verdict = iota
	verdictRefused
	verdictRetryAfter
	verdictUnsent
	verdictDead
	verdictDenied
	verdictAccepted
	verdictStuck
	verdictGone
)

// attemptError carries a handler's verdict through any wrapping.
type attemptError struct {
	verdict verdict
	after   time.Duration
	answer  Answer
	err     error
	account bool // the wait is for all calls, not for this intent alone
	guessed bool // the verdict is ours, from the look of the error
}

func (e *attemptError) Error() string {
	if e.err != nil {
		return e.err.Error()
	}
	return fmt.Sprintf("refused with code %q", e.answer.Code)
}

func (e *attemptError) Unwrap() error { return e.err }

// Refused says that the vendor answered with a business no, such as a declined card. The intent is finished as refused,
// and its Apply is told.
func Refused(answer Answer) error {
	return &attemptError{verdict: verdictRefused, answer: answer}
}

// RetryAfter says that the vendor declared that it did not act and wants to be asked again later: an answer that means
// "still running under this key", or a 429 about this call alone (else [Throttled]). It spends no attempt; the wait is the longer of d and the policy's
// backoff, at most a day: a vendor that asks for more is asked again after a day. Many in a row slow the destination or the
// endpoint ([Limits.BreakAfter]). Any class may be retried after it but an irreversible write, which waits for approval.
func RetryAfter(d time.Duration, err error) error {
	return &attemptError{verdict: verdictRetryAfter, after: d, err: orText(err, "the vendor wants to be asked later")}
}

// Throttled says what [RetryAfter] says, of the whole account (429, or 403 with Retry-After): until d is over, but no longer than the
// destination's MaxBreakDelay, this [Dispatcher.Run] or Drain claims nothing for it, or calls nothing of the endpoint where the
// call had one; what it has claimed by then is still called. What is due waits, with nothing spent. A d of zero
// or less means that the vendor said no time: then the wait is ours, grows with each such answer, and ends with one call
// ([Limits.BreakAfter]). Where there is no breaker, it is RetryAfter alone.
func Throttled(d time.Duration, err error) error {
	return &attemptError{verdict: verdictRetryAfter, after: d, account: true, err: orText(err, "the vendor wants fewer calls")}
}

// NotBefore says beside what err says that the vendor wants no call before d is over, as a Retry-After does beside an answer
// that leaves the outcome unknown: neither the next attempt nor a look-up comes earlier, nor after an approval. It is cut to
// a day, and means nothing where the intent is finished or dead. An err that is none of this package's verdicts is unknown.
func NotBefore(d time.Duration, err error) error {
	said := attemptError{verdict: verdictUnknown, err: orText(err, "the outcome is unknown")}
	var own *attemptError
	if errors.As(err, &own) {
		said = *own
		said.err = err
	}
	said.after = max(said.after, d)
	return &said
}

// Unsent says that provably nothing was sent: the name did not resolve, no connection stood, TLS failed, a breaker was
// open. It spends no attempt and nothing of the key window.
func Unsent(err error) error {
	return &attemptError{verdict: verdictUnsent, err: orText(err, "nothing was sent")}
}

// Dead says that the vendor did not act and will not until a person corrects something (401, 404, a malformed request). A redrive sends the same bytes: where the vendor refused those, resolve the intent as not sent, cancel it, and insert it again with another part.
// The intent rests as dead, visible, until it is redriven, resolved or cancelled. The answer is kept.
func Dead(answer Answer, err error) error {
	return &attemptError{verdict: verdictDead, answer: answer, err: orText(err, "the vendor will not act")}
}

// Denied says that the vendor refused the account's credentials (401) and did not act. It spends no attempt and nothing
// of the key window; the call is made again with the policy's backoff, and a burst of them opens the destination's
// breaker, so that a revoked token costs no intent anything. An irreversible write waits for another approval.
func Denied(answer Answer, err error) error {
	return &attemptError{verdict: verdictDenied, answer: answer, err: orText(err, "the vendor refused the credentials")}
}

// Accepted says that the vendor took the call and will finish it later (202): it is never sent again. The action's look-up
// asks for it after the given time, at least the policy's SettlingDelay, and answers [Found], [FoundRefused] or [Pending];
// an event of the vendor's may be faster, with outbox.Resolve. After the policy's CompletionTime it is parked.
func Accepted(answer Answer, after time.Duration) error {
	return &attemptError{verdict: verdictAccepted, after: after, answer: answer, err: errors.New("the vendor finishes it later")}
}

// Stuck says that the vendor may have acted, and that the same call with the same key can never find out, such as where it
// replays a stored 500, or answers 409 because the payment was made. It is never sent again: whatever its class, the intent is looked up, else parked. (A [Read] is
// tried again.)
func Stuck(answer Answer, err error) error {
	return &attemptError{verdict: verdictStuck, answer: answer, err: orText(err, "the same key can never succeed")}
}

// Gone says that the endpoint did not act and wants no more calls (410). The intent is dead, and where the endpoint is a
// stored one ([WithStoredEndpoint]) it is stopped: nothing more is sent to it until somebody starts it again.
func Gone(answer Answer, err error) error {
	return &attemptError{verdict: verdictGone, answer: answer, err: orText(err, "the endpoint wants no more calls")}
}

// Unknown says that the vendor may or may not have acted; any error that is not listed here means the same. The answer,
// if there was any, is kept.
func Unknown(answer Answer, err error) error {
	return &attemptError{verdict: verdictUnknown, answer: answer, err: orText(err, "the outcome is unknown")}
}

func orText(err error, text string) error {
	if err == nil {
		return errors.New(text)
	}
	return err
}

// Finding is what a look-up found out. The zero Finding is inconclusive.
type Finding struct {
	outcome string
	answer  Answer
	after   time.Duration // of Pending
}

// Found says that the vendor acted: the intent is delivered with this answer.
func Found(answer Answer) Finding { return Finding{outcome: outcomeDelivered, answer: answer} }

// FoundRefused says that the vendor recorded a business no: the intent is refused with this answer.
func FoundRefused(answer Answer) Finding { return Finding{outcome: outcomeRefused, answer: answer} }

// Absent says that the vendor knows nothing of the delivery key. It is asked again after another SettlingDelay; said
// twice, the intent is parked with that evidence, or sent once more where the policy says ResendAbsent.
func Absent(answer Answer) Finding { return Finding{outcome: outcomeAbsent, answer: answer} }

// Inconclusive says that the look-up could not tell. The intent is parked with that evidence.
func Inconclusive(answer Answer) Finding {
	return Finding{outcome: outcomeInconclusive, answer: answer}
}

// Pending says that the vendor is still at it, as after [Accepted]: it is asked again after the given time, at least a
// second, until the policy's CompletionTime is over.
func Pending(answer Answer, after time.Duration) Finding {
	return Finding{outcome: outcomePending, answer: answer, after: after}
}

// Rendered is what each attempt of an intent sends, made before the first one and kept: the same bytes again, also where
// the template, the environment or the release changed in between.
type Rendered struct {
	Request   []byte // at most 2 MiB
	Type      string // what Request is, for who made it: at most 255 bytes
	MessageID string // of a mail: at most 998 bytes
}

// WithRender registers how an intent's request is made of it, once, before its first attempt; the handler and the look-up
// find it in [Call.Rendered]. The payload is decoded as for [Handle]. It must not call out. An error makes the intent dead, unsent. An intent that may have been
// sent by a release without this option is not rendered.
func WithRender[T any](fn func(ctx context.Context, call *Call, payload T) (Rendered, error)) Option {
	return func(a *action) error {
		a.render = func(ctx context.Context, call *Call) (Rendered, error) {
			payload, err := decode[T](call)
			if err != nil {
				return Rendered{}, err
			}
			return fn(ctx, call, payload)
		}
		return nil
	}
}

// WithForm names the form in which an action's intents go out beside the payload, the carried key and what is rendered: where
// the key is carried, such as the name of its header, and the request's line where it is not rendered. To a vendor the same
// key in another form may be another call: what an earlier release may have sent of an [IdempotentWrite] in another form is
// looked up, else parked, and not sent. An empty text is not compared. Vendors' packages name theirs; a handler of your own
// does where its requests may change.
func WithForm(key, request string) Option {
	return func(a *action) error {
		a.form = form{digest(key), digest(request)}
		return nil
	}
}

// form is how an action's intents go out, in digests; empty: nothing is known.
type form struct{ key, request string }

// differs says whether both are known in some way and not the same in it.
func (f form) differs(other form) bool {
	differ := func(a, b string) bool { return a != "" && b != "" && a != b }
	return differ(f.key, other.key) || differ(f.request, other.request)
}

func digest(text string) string {
	if text == "" {
		return ""
	}
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:4])
}

// Outcome is what an intent came to, as its Apply is told.
type Outcome struct {
	Call
	Answer   Answer
	Refused  bool // a business no; else delivered
	Resolved bool // recorded by a person, not by a call of a worker
}

// An Option adds to an action what not every action has: [WithLookup], [WithApply].
type Option func(*action) error

// WithLookup registers how to ask the vendor whether it acted under a delivery key. It is called, never the handler,
// where an outcome is unknown or the key window is over. What the vendor answered before is in [Call.LastAnswer]. An error
// means that the vendor could not be asked: the look-up is tried again with the policy's backoff, up to its attempts, then
// the intent is parked. [Unsent], [RetryAfter], [Throttled] and [Denied] spend none of them, as for a handler, and nothing
// comes before what RetryAfter, Throttled or [NotBefore] says.
func WithLookup[T any](fn func(ctx context.Context, call *Call, payload T) (Finding, error)) Option {
	return func(a *action) error {
		a.lookup = func(ctx context.Context, call *Call) (Finding, error) {
			payload, err := decode[T](call)
			if err != nil {
				return Finding{}, err
			}
			return fn(ctx, call, payload)
		}
		return nil
	}
}

// WithApply registers what the application does in the transaction that finishes the intent, whether delivered,
// refused or resolved: fn's rows and the end of the intent are committed together, once. It may insert further intents
// with outbox.Insert, which takes the key of the intent's own request. An error or a panic rolls it back and it is tried
// again with backoff for as long as it takes; the vendor is not called again. Keep it short: it must not call out, and
// it ends at the policy's Timeout. An action has 4 at once, and all together half of the pool's connections. Where all of
// those are taken and another action has none, the Apply that has run for longest is rolled back and tried again: after 1 s,
// and after up to 8 s where that has happened to it before. An Apply that waits holds up no call.
//
// The transaction is not fn's to end: Commit, Rollback and statements that do it are refused, and where one gets past (in a
// text of several statements, over tx.Conn), what it rolled back is tried again, and what it committed stays and is not done
// again, with an error in the log. What fn sets for its session is undone.
func WithApply[T any](fn func(ctx context.Context, tx pgx.Tx, payload T, outcome Outcome) error) Option {
	return func(a *action) error {
		a.apply = func(ctx context.Context, tx pgx.Tx, outcome Outcome) error {
			payload, err := decode[T](&outcome.Call)
			if err != nil {
				return err
			}
			return fn(ctx, tx, payload, outcome)
		}
		return nil
	}
}

type applyFunc func(ctx context.Context, tx pgx.Tx, outcome Outcome) error

// The outcomes of an attempt, a look-up or a person's word, as the history names them.
const (
	outcomeDelivered    = intent.OutcomeDelivered
	outcomeRefused      = intent.OutcomeRefused
	outcomeRetry        = intent.OutcomeRetry
	outcomeUnsent       = intent.OutcomeUnsent
	outcomeUnknown      = intent.OutcomeUnknown
	outcomeDead         = intent.OutcomeDead
	outcomeParked       = intent.OutcomeParked
	outcomeAwaiting     = intent.OutcomeAwaitingApproval
	outcomeAbsent       = intent.OutcomeAbsent
	outcomeInconclusive = intent.OutcomeInconclusive
	outcomePending      = "pending" // of a finding; the history says accepted
	outcomeAccepted     = intent.OutcomeAccepted
)
