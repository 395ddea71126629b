package dispatcher_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/samekey/samekey/dispatcher"
	"github.com/samekey/samekey/outbox"
)

// Three releases of one action. Each has another shape of its payload.
type (
	chargeV1 struct {
		Amount int `json:"amount"` // in whole units
	}
	chargeV2 struct {
		Cents int `json:"cents"`
	}
)

var (
	releaseV1 = outbox.NewAction[chargeV1]("charge_card")
	releaseV2 = outbox.NewAction[chargeV2]("charge_card").Version(2, outbox.From(1, func(old chargeV1) (chargeV2, error) {
		if old.Amount == 13 {
			return chargeV2{}, errors.New("an amount that was never allowed")
		}
		return chargeV2{Cents: old.Amount * 100}, nil
	}))
	releaseV2Alone = outbox.NewAction[chargeV2]("charge_card").Version(2)
)

// versioned is a bundle with a log of what its releases sent.
type versioned struct {
	*bundle
	sent []string
	fail error // of the next attempts
}

func (v *versioned) send(call *dispatcher.Call, body string) (dispatcher.Outcome, error) {
	v.sent = append(v.sent, body+" "+call.ContentType)
	return dispatcher.Delivered(dispatcher.Response{}), v.fail
}

// release is a dispatcher without actions. One call runs at a time, so the log needs no lock.
func (v *versioned) release() *dispatcher.Dispatcher {
	d := v.dispatcher()
	d.Destination("vendor", dispatcher.Limits{Concurrency: 1})
	return d
}

func (v *versioned) v1() *dispatcher.Dispatcher {
	d := v.release()
	dispatcher.Handle(d, releaseV1, dispatcher.Delivery[chargeV1]{Policy: policyOf(dispatcher.IdempotentWrite),
		Send: func(_ context.Context, call *dispatcher.Call, p chargeV1) (dispatcher.Outcome, error) {
			return v.send(call, fmt.Sprint(p.Amount*100))
		}})
	return d
}

func (v *versioned) v2(action outbox.Action[chargeV2]) *dispatcher.Dispatcher {
	d := v.release()
	dispatcher.Handle(d, action, dispatcher.Delivery[chargeV2]{Policy: policyOf(dispatcher.IdempotentWrite),
		Send: func(_ context.Context, call *dispatcher.Call, p chargeV2) (dispatcher.Outcome, error) {
			return v.send(call, fmt.Sprintf("%d cents", p.Cents))
		}})
	return d
}

func (v *versioned) insertOld(amount int) uuid.UUID {
	return v.insert("charge_card", func(in *outbox.Intent) { in.Payload = chargeV1{amount} })
}

func (v *versioned) insertNew(cents int) uuid.UUID {
	return v.insert("charge_card", func(in *outbox.Intent) {
		was := *in
		*in = releaseV2.Intent(chargeV2{cents})
		in.Key = was.Key
	})
}

func (v *versioned) wantSent(want ...string) {
	v.Helper()
	if got := strings.Join(v.sent, ", "); got != strings.Join(want, ", ") {
		v.Errorf("sent %q, want %q", v.sent, want)
	}
}

func TestOlderPayloadsAreUpgradedBeforeTheFirstSend(t *testing.T) {
	v := &versioned{bundle: setup(t)}
	v.insertOld(5)
	v.insertNew(701)
	v.expect(v.v2(releaseV2), dispatcher.Summary{Delivered: 2})
	v.wantSent("500 cents application/json", "701 cents application/json")
}

func TestPayloadsWithoutADecoderAreDeadUnsent(t *testing.T) {
	v := &versioned{bundle: setup(t)}
	missing, refused := v.insertOld(5), v.insertOld(13)
	v.expect(v.v2(releaseV2Alone), dispatcher.Summary{Dead: 2})
	v.wantSent()
	v.redrive(missing) // a release that has the decoder delivers it
	v.redrive(refused)
	v.expect(v.v2(releaseV2), dispatcher.Summary{Delivered: 1, Dead: 1})
	v.wantSent("500 cents application/json")
	v.wantStatus(refused, "dead")
	if got := value[string](v.bundle, `select string_agg(error, '; ' order by id) from samekey.outbox_history where error is not null`); strings.Count(got, "declare how the old one is read") != 2 ||
		!strings.Contains(got, "payload of version 1 cannot be upgraded: an amount that was never allowed") {
		t.Errorf("the history says %s", got)
	}
}

// Nothing was sent, so any later release may send it: whether the decoder is missing, fails or panics, in Send or Render.
func TestUndecodablePayloadsCountAsUnsent(t *testing.T) {
	older := func(version int, decode func(chargeV1) (chargeV2, error)) outbox.Action[chargeV2] {
		return outbox.NewAction[chargeV2]("charge_card").Version(version, outbox.From(1, decode))
	}
	for name, action := range map[string]outbox.Action[chargeV2]{
		"missing": releaseV2Alone,
		"fails":   older(2, func(chargeV1) (chargeV2, error) { return chargeV2{}, errors.New("not yet") }),
		"panics":  older(2, func(chargeV1) (chargeV2, error) { panic("not yet") }),
	} {
		for _, renders := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, renders %t", name, renders), func(t *testing.T) {
				v := &versioned{bundle: setup(t)}
				id := v.insertOld(5)
				d, delivery := v.release(), dispatcher.Delivery[chargeV2]{Policy: policyOf(dispatcher.IdempotentWrite),
					Send: func(context.Context, *dispatcher.Call, chargeV2) (dispatcher.Outcome, error) { panic("sent") }}
				if renders {
					delivery.Render = func(context.Context, *dispatcher.Call, chargeV2) (dispatcher.Rendered, error) { panic("rendered") }
				}
				dispatcher.Handle(d, action, delivery)
				v.expect(d, dispatcher.Summary{Dead: 1})
				if n := v.count(`select count(*) from samekey.outbox_queue where status = 'dead' and last_code = 'payload' and first_sent_at is null`); n != 1 {
					t.Error("it counts as sent, or has another code")
				}
				v.redrive(id)
				v.expect(v.v2(older(3, func(old chargeV1) (chargeV2, error) { return chargeV2{old.Amount * 100}, nil })), delivered)
				v.wantSent("500 cents application/json")
			})
		}
	}
}

// During a rollout, and after a rollback, workers of the earlier release leave the later release's payloads alone.
func TestLaterPayloadsWaitForTheirRelease(t *testing.T) {
	v := &versioned{bundle: setup(t)}
	id := v.insertNew(701)
	v.expectAgain(v.v1(), retried)
	v.wantSent()
	if n := v.count(`select count(*) from samekey.outbox_queue where status = 'pending' and attempts_used = 0 and first_sent_at is null and last_code = 'payload_version'`); n != 1 {
		t.Error("it used an attempt, or counts as sent")
	}
	v.logs.Wait(v, "a later release wrote the payload")
	v.elapse(2 * time.Hour)
	v.expect(v.v2(releaseV2), delivered)
	v.wantSent("701 cents application/json")
	v.wantStatus(id, "delivered")
}

// The request of the second attempt could differ from the first one's, under the same key.
func TestOlderPayloadsThatWereSentAreNotUpgraded(t *testing.T) {
	v := &versioned{bundle: setup(t)}
	v.fail = errors.New("reset")
	id := v.insertOld(5)
	v.expect(v.v1(), retried)
	v.elapse(2 * time.Hour)
	v.fail = nil
	v.drain(v.v2(releaseV2))
	v.elapse(2 * time.Hour)
	v.drain(v.v2(releaseV2))
	v.wantSent("500 application/json")
	v.wantStatus(id, "parked")
}

func TestUpgradedPayloadsAreSentAgainByTheirRelease(t *testing.T) {
	v := &versioned{bundle: setup(t)}
	v.fail = errors.New("reset")
	v.insertOld(5)
	v.expect(v.v2(releaseV2), retried)
	v.elapse(2 * time.Hour)
	v.fail = nil
	v.expect(v.v2(releaseV2), delivered)
	v.wantSent("500 cents application/json", "500 cents application/json")
}

// A stored request is sent again as it is, so no decoder runs for it.
func TestStoredRequestsOutliveTheirPayloadsVersion(t *testing.T) {
	v := &versioned{bundle: setup(t)}
	v.fail = errors.New("reset")
	id := v.insertOld(5)
	first := v.release()
	dispatcher.Handle(first, releaseV1, dispatcher.Delivery[chargeV1]{Policy: policyOf(dispatcher.IdempotentWrite),
		Render: func(_ context.Context, _ *dispatcher.Call, p chargeV1) (dispatcher.Rendered, error) {
			return dispatcher.Rendered{Request: fmt.Append(nil, p.Amount*100), Type: "text"}, nil
		},
		Send: func(_ context.Context, call *dispatcher.Call, _ chargeV1) (dispatcher.Outcome, error) {
			return v.send(call, string(call.Rendered.Request))
		}})
	v.expect(first, retried)
	v.elapse(2 * time.Hour)
	v.fail = nil
	second := v.release()
	dispatcher.Handle(second, releaseV2, dispatcher.Delivery[chargeV2]{Policy: policyOf(dispatcher.IdempotentWrite),
		Render: func(_ context.Context, _ *dispatcher.Call, p chargeV2) (dispatcher.Rendered, error) {
			return dispatcher.Rendered{Request: fmt.Append(nil, p.Cents, " cents"), Type: "text"}, nil
		},
		Send: func(_ context.Context, call *dispatcher.Call, _ chargeV2) (dispatcher.Outcome, error) {
			return v.send(call, string(call.Rendered.Request))
		}})
	v.expect(second, delivered)
	v.wantSent("500 application/json", "500 application/json")
	v.wantStatus(id, "delivered")
}

// The decoder of the later release made the request, and the earlier release would make another under the same key.
func TestUpgradedPayloadsAreNotSentByAnEarlierRelease(t *testing.T) {
	v := &versioned{bundle: setup(t)}
	v.fail = errors.New("reset")
	id := v.insertOld(5)
	v.expect(v.v2(releaseV2), retried)
	v.elapse(2 * time.Hour)
	v.fail = nil
	v.drain(v.v1())
	v.elapse(2 * time.Hour)
	v.drain(v.v1())
	v.wantSent("500 cents application/json")
	v.wantStatus(id, "parked")
}

// A worker of the earlier release cannot read the payload, and must not use up the lookups.
func TestLookupsOfLaterPayloadsWaitForTheirRelease(t *testing.T) {
	v := &versioned{bundle: setup(t)}
	policy := policyOf(dispatcher.NonIdempotentWrite)
	policy.Attempts = 1
	later, earlier := v.release(), v.release()
	dispatcher.Handle(later, releaseV2, dispatcher.Delivery[chargeV2]{Policy: policy,
		Send: func(context.Context, *dispatcher.Call, chargeV2) (dispatcher.Outcome, error) {
			return dispatcher.Outcome{}, errors.New("reset")
		},
		Lookup: func(_ context.Context, call *dispatcher.Call, p chargeV2) (dispatcher.Outcome, error) {
			return v.send(call, fmt.Sprintf("asked for %d cents", p.Cents))
		}})
	dispatcher.Handle(earlier, releaseV1, dispatcher.Delivery[chargeV1]{Policy: policy,
		Send: func(context.Context, *dispatcher.Call, chargeV1) (dispatcher.Outcome, error) { panic("sent again") },
		Lookup: func(context.Context, *dispatcher.Call, chargeV1) (dispatcher.Outcome, error) {
			panic("asked with a payload that it cannot read")
		}})
	id := v.insertNew(701)
	v.drain(later)
	v.wantStatus(id, "unknown")
	for range 3 {
		v.elapse(2 * time.Hour)
		v.drain(earlier)
		v.wantStatus(id, "unknown")
	}
	v.logs.Wait(v, "a later release wrote the payload")
	v.elapse(2 * time.Hour)
	v.drain(later)
	v.wantSent("asked for 701 cents application/json")
	v.wantStatus(id, "delivered")
}

// Packages of vendors make requests from the bytes of the payload.
func TestCallsHaveTheUpgradedPayload(t *testing.T) {
	for name, renders := range map[string]bool{"sent": false, "rendered": true} {
		t.Run(name, func(t *testing.T) {
			v := &versioned{bundle: setup(t)}
			d, delivery := v.release(), dispatcher.Delivery[chargeV2]{Policy: policyOf(dispatcher.IdempotentWrite)}
			delivery.Send = func(_ context.Context, call *dispatcher.Call, _ chargeV2) (dispatcher.Outcome, error) {
				if renders {
					return v.send(call, string(call.Rendered.Request))
				}
				return v.send(call, string(call.Payload))
			}
			if renders {
				delivery.Render = func(_ context.Context, call *dispatcher.Call, _ chargeV2) (dispatcher.Rendered, error) {
					return dispatcher.Rendered{Request: call.Payload, Type: "text"}, nil
				}
			}
			dispatcher.Handle(d, releaseV2, delivery)
			v.insertOld(5)
			v.insertNew(701)
			v.expect(d, dispatcher.Summary{Delivered: 2})
			v.wantSent(`{"cents":500} application/json`, `{"cents":701} application/json`)
		})
	}
}

// A worker without Go types sends bytes, and names the newest version that its templates fit.
func TestVersionsOfBytesAreReadAsTheyAre(t *testing.T) {
	v := &versioned{bundle: setup(t)}
	release := func(action outbox.Action[[]byte]) *dispatcher.Dispatcher {
		d := v.release()
		dispatcher.Handle(d, action, dispatcher.Delivery[[]byte]{Policy: policyOf(dispatcher.IdempotentWrite),
			Send: func(_ context.Context, call *dispatcher.Call, p []byte) (dispatcher.Outcome, error) {
				return v.send(call, string(p))
			}})
		return d
	}
	first := outbox.NewAction[[]byte]("charge_card")
	v.insertOld(5)
	v.fail = errors.New("reset")
	v.expect(release(first), retried)
	v.fail = nil
	v.elapse(2 * time.Hour)
	v.expect(release(first.Version(2)), delivered) // the same bytes, whatever the version
	v.insertNew(701)
	v.expectAgain(release(first), retried)
	v.elapse(2 * time.Hour)
	v.expect(release(first.Version(3)), delivered)
	v.wantSent(`{"amount":5} application/json`, `{"amount":5} application/json`, `{"cents":701} application/json`)
}
