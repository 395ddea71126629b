package dispatcher

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/samekey/samekey/internal/jsonvalue"
	"github.com/samekey/samekey/internal/names"
	"github.com/samekey/samekey/outbox"
)

// Delivery is how the intents of an action are delivered. Policy.Class and Send are required.
//
// Send, Lookup, Render, Apply and Attention get the payload, decoded from JSON into T exactly: numbers keep their digits, and
// unknown members are allowed. Payloads of earlier versions become a T as outbox.Action.Version says. A T of []byte,
// json.RawMessage or another type of bytes gets the stored bytes. If a payload does not decode, its intent is dead, with
// the reason in its history; other intents are not affected.
//
// Send and Lookup return an [Outcome] and an error. An error wins over the outcome; the outcome's response is kept as
// evidence, and its After applies. If errors.Is(err, [ErrUnsent]) is true, the outcome is [Unsent]. Any other error,
// and a panic, mean that the vendor may have acted.
type Delivery[T any] struct {
	Policy Policy

	// Send makes one attempt. It must pass call.CarriedKey to the vendor, make one request, send the same bytes at
	// every attempt, and obey its context, which ends at the attempt's deadline: a request that is sent later can meet
	// the next attempt.
	//
	// The client of package dispatcher/httpclient obeys the deadline and returns ErrUnsent where nothing was sent. The
	// errors of a plain http.Client count as unknown, so an outage uses attempts: return [Unsent] yourself where you
	// can prove it.
	Send func(ctx context.Context, call *Call, payload T) (Outcome, error)

	// Lookup asks the vendor whether it acted under the delivery key (reconciliation). It is called instead of Send
	// when an outcome is unknown or the key window is over. call.LastResponse is what the vendor answered before.
	//
	// It returns [Delivered], [Refused], [Accepted] or [Absent], or [Unknown] if the vendor's answer does not tell. An
	// error means that the vendor could not be asked: the lookup is repeated with the policy's backoff, up to its
	// attempts, then the intent is parked. [Unsent], [Retry] and [Denied] are repeated too and use no attempt.
	//
	// Without a Lookup, an intent whose outcome stays unknown is parked for a person.
	Lookup func(ctx context.Context, call *Call, payload T) (Outcome, error)

	// Render makes an intent's request once, before its first attempt. The result is stored, and Send and Lookup find
	// it in call.Rendered. Render must not call out. If it returns an error, the intent is dead and unsent. An intent
	// that may have been sent by a release without Render is not rendered.
	Render func(ctx context.Context, call *Call, payload T) (Rendered, error)

	// Apply is the completion callback: it runs in the transaction that finishes the intent, whether it was delivered,
	// refused or resolved by a person. Its rows and the end of the intent are committed together, once. It may insert
	// further intents with package outbox, which take the key of the intent's own request and its subject.
	//
	// After an error or a panic the transaction is rolled back, and Apply is tried again with backoff for as long as it
	// takes; the vendor is not called again. Keep Apply short: it must not call out, and it ends at the policy's
	// Timeout.
	//
	// Four Applies of an action run at once, and all Applies together use at most half of the pool's connections. If no
	// connection is left for an action that has none, the Apply that has run longest is rolled back and tried again:
	// after 1 s, and up to 8 s if that has happened to it before. An Apply that waits delays no call.
	//
	// Apply must not end the transaction. Commit, Rollback and statements that end it are refused. If a statement ends
	// it unseen (within a text of several statements, or over tx.Conn): what it rolled back is tried again; what it
	// committed stays, is not repeated, and is logged as an error. Session settings that Apply changes are reset.
	Apply func(ctx context.Context, tx pgx.Tx, payload T, settled Settled) error

	// ApplyFunction names an SQL function that does what Apply does, with its schema, such as "shop.charge_settled". It
	// is called in the same transaction as an Apply, with one argument of type jsonb. Its members, null if there is no
	// value:
	//
	//	id, scope, key, subject, action, part, delivery_key, created_at     the intent
	//	payload, or payload_base64                                          the payload, if it is JSON that fits jsonb
	//	outcome, code, reference, resolved                                  as in Settled
	//	response, or response_base64; response_type                         the vendor's answer
	//
	// What the function returns is ignored. If it raises an error, it is called again, as an Apply is. It can write a
	// further intent with samekey.enqueue, to which it passes scope and key, and preferably subject.
	//
	// The function runs with the rights of its owner, and never with those of the worker: it must be SECURITY DEFINER,
	// with a search_path of its own that ends with pg_temp, and its owner must be a role of the application. The worker's
	// role needs EXECUTE, and PUBLIC must not have it. [Dispatcher.Run] and [Dispatcher.Drain] check all of this at their
	// start and return what is wrong as [ConfigErrors]. The owner needs rights on what the function uses, such as those of
	// schema.Roles.App for samekey.enqueue.
	ApplyFunction string

	// AttentionFunction names an SQL function that does what Attention does, under the rules of ApplyFunction. Its
	// argument has the members of the intent and its payload, reference, and
	//
	//	status, now, at, event, code, error, actor, reason                  as in Attention
	AttentionFunction string

	// Attention tells the application that an intent came to rest or was cancelled: it is dead, parked or awaits
	// approval, or a person cancelled or rejected it, also by SQL. Without it, the application's row stays "pending"
	// until a person looks.
	//
	// It runs in a transaction of its own, within about half a second. Its rows and the end of the event are committed
	// together, so they are written once. What it does outside the transaction can happen twice: insert intents instead,
	// with package outbox; they take the key of the intent's own request. Outcomes never wait for it.
	//
	// The events of an intent come in order, one at a time. Apply comes after the events that happened before the
	// vendor's answer, and waits for them. A successor (outbox.Replace) follows the events of the intents that it
	// replaces in the same way. An intent without an Apply can be delivered while an earlier event of it still waits:
	// compare at.Status with at.Now.
	//
	// After an error or a panic the transaction is rolled back, and Attention is tried again with the policy's backoff
	// for as long as it takes; each failure is an ERROR line in the log. The intent and its record are not pruned
	// before. The rules of Apply hold: keep it short, do not call out, do not end the transaction. It ends at the
	// policy's Timeout.
	//
	// At most four run at once per action, and all of them together use at most a quarter of the pool's connections. A
	// paused action's events wait. Events begin when the first worker with an Attention of the action starts, and end
	// when none has run for 10 minutes: those that still wait are then deleted with their intents.
	Attention func(ctx context.Context, tx pgx.Tx, payload T, at Attention) error

	// Endpoint names the one of many independent endpoints that a call goes to, such as the receiver of a webhook, so
	// that an endpoint that hangs or fails does not delay the others. Each endpoint gets at most [Limits.PerEndpoint]
	// calls at once from this process, and has a breaker of its own with the destination's settings.
	//
	// Endpoint is called after each claim, also before a lookup, and must not call out. It returns a name, such as a
	// host or a receiver's id. After an empty name or a panic the call counts as a call to no endpoint.
	//
	// An intent whose endpoint is busy or failing is postponed: unsent, with no attempt used, no line in its history
	// and no slot taken. Delays grow with the number of intents that wait for the endpoint, up to 1 minute, and up to
	// 10 minutes if it has been in trouble for long or more than 30,000 wait. Meanwhile intents of one endpoint can
	// overtake each other, unless they have an ordering key.
	Endpoint func(call *Call) string

	// StoredEndpoint declares that Endpoint returns names in samekey.endpoints, under the action's destination (package
	// outbox/endpoints writes them). The endpoint's URL and secrets are read right before its calls, in one statement
	// for all that were claimed together, and are in call.Endpoint.
	//
	// Nothing is sent to an endpoint that is stopped, by a person or by [Gone], or that does not exist: the intent is
	// dead with the code "endpoint_stopped" or "endpoint_missing". Correct the endpoint, then redrive the intent; an
	// irreversible write needs another approval. A lookup is made at a stopped endpoint too; if the endpoint does not
	// exist, the intent is parked in the end.
	//
	// The policy needs a Deadline, since an endpoint that cannot be reached uses no attempts.
	StoredEndpoint bool

	// Proxied declares that requests go through a proxy, a sidecar or a gateway, which can send late what it has taken:
	// a request that timed out could arrive after lookups have found nothing and the intent was sent again. So
	// [Dispatcher.Check] refuses the policy's ResendAbsent. Packages httpvendor and stripevendor set Proxied if they
	// are given a proxy. They cannot see a sidecar (Envoy, Istio, Linkerd, an egress gateway).
	Proxied bool

	// KeyForm and RequestForm describe what an attempt sends besides the payload, the carried key and what Render made:
	// KeyForm how it carries the key, such as the header's name; RequestForm the request's line, unless Render makes
	// it. A vendor may take the same key in another form for another call. So an [IdempotentWrite] that an earlier
	// release may have sent in another form is not sent: it is looked up, or parked. An empty KeyForm is not compared, nor
	// is a RequestForm that was empty when the intent was sent. Vendors' packages set both; set them in a Send of your own
	// if its requests may change.
	KeyForm, RequestForm string

	// Vendor describes the vendor account behind the destination, as [Dispatcher.Vendor] does. Packages of vendors set
	// it.
	Vendor Vendor

	// Mistakes are what a package of a vendor found wrong when it made this Delivery. [Dispatcher.Check] returns them.
	// The mistakes in the action itself have no Item.
	Mistakes ConfigErrors
}

// erase makes the one place where payloads are decoded.
func (dl Delivery[T]) erase(from outbox.Action[T]) *action {
	decode := func(call *Call) (T, error) { return from.Decode(call.storedType, call.Payload) }
	_, bytes := jsonvalue.Bytes(*new(T))
	// upgrade decodes for functions that call a vendor. Packages of vendors make requests from the payload's bytes, so
	// the call has what an earlier version became, as an insert of today would write it.
	upgrade := func(call *Call) (*Call, T, error) {
		payload, err := decode(call)
		if err != nil || bytes || names.PayloadVersion(call.storedType) == from.PayloadVersion() {
			return call, payload, err
		}
		upgraded := *call
		if upgraded.Payload, err = jsonvalue.Encode(payload); err != nil {
			err = fmt.Errorf("payload of an earlier version became a %T that cannot be encoded as JSON (%T)", payload, err)
		}
		return &upgraded, payload, err
	}
	a := &action{
		name: from.Name(), version: from.PayloadVersion(), declared: dl.Policy, endpoint: dl.Endpoint, stored: dl.StoredEndpoint, proxied: dl.Proxied,
		bytes: bytes, form: form{digest(dl.KeyForm), digest(dl.RequestForm)},
		decode:        func(call *Call) error { _, err := decode(call); return err },
		applyFunction: dl.ApplyFunction, attentionFunction: dl.AttentionFunction,
		bothApply:     dl.ApplyFunction != "" && dl.Apply != nil,
		bothAttention: dl.AttentionFunction != "" && dl.Attention != nil,
	}
	if !bytes && dl.Render == nil && from.PayloadVersion() > 1 {
		a.form.request = digest(fmt.Sprintf("%s payload-version=%d", dl.RequestForm, from.PayloadVersion()))
	}
	if dl.ApplyFunction != "" {
		a.apply = applyFunction(dl.ApplyFunction)
	}
	if dl.AttentionFunction != "" {
		a.attention = attentionFunction(dl.AttentionFunction)
	}
	if dl.Send != nil {
		a.send = func(ctx context.Context, call *Call) (Outcome, error) {
			call, payload, err := upgrade(call)
			if err != nil {
				return Dead(Response{Code: codePayload}).Because(err), nil
			}
			return dl.Send(ctx, call, payload)
		}
	}
	if dl.Lookup != nil {
		a.lookup = func(ctx context.Context, call *Call) (Outcome, error) {
			call, payload, err := upgrade(call)
			if err != nil {
				return Outcome{}, err
			}
			return dl.Lookup(ctx, call, payload)
		}
	}
	if dl.Render != nil {
		a.render = func(ctx context.Context, call *Call) (Rendered, error) {
			call, payload, err := upgrade(call)
			if err != nil {
				return Rendered{}, err
			}
			return dl.Render(ctx, call, payload)
		}
	}
	if dl.Apply != nil {
		a.apply = func(ctx context.Context, tx pgx.Tx, settled Settled) error {
			payload, err := decode(&settled.Call)
			if err != nil {
				return err
			}
			return dl.Apply(ctx, tx, payload, settled)
		}
	}
	if dl.Attention != nil {
		a.attention = func(ctx context.Context, tx pgx.Tx, at Attention) error {
			payload, err := decode(&at.Call)
			if err != nil { // the application must learn of it all the same
				at.PayloadError = err
				payload = *new(T)
			}
			return dl.Attention(ctx, tx, payload, at)
		}
	}
	return a
}
