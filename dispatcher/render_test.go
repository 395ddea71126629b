package dispatcher_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/samekey/samekey/dispatcher"
	"github.com/samekey/samekey/outbox"
)

// tight are the rules of a vendor that takes a key of 25 characters.
var tight = dispatcher.Vendor{
	Key:    dispatcher.KeyRules{Place: dispatcher.KeyInHeader, Name: "idempotency-key", MaxLength: 25},
	Window: 24 * time.Hour, Replay: dispatcher.ReplayAnswer,
}

// sends records what each attempt sent.
type sends struct {
	keys, requests []string
	fail           error
}

func (s *sends) handle(_ context.Context, call *dispatcher.Call) (dispatcher.Outcome, error) {
	request := "none"
	if call.Rendered != nil {
		request = string(call.Rendered.Request) + " " + call.Rendered.Type + " " + call.Rendered.MessageID
	}
	s.keys, s.requests = append(s.keys, call.CarriedKey), append(s.requests, request)
	return dispatcher.Delivered(dispatcher.Response{Code: "200"}), s.fail
}

// release returns a dispatcher of one release, with its rules and its template.
func (b *bundle) release(s *sends, vendor *dispatcher.Vendor, template string) *dispatcher.Dispatcher {
	d := b.dispatcher()
	d.Destination("vendor", dispatcher.Limits{Concurrency: 1})
	if vendor != nil {
		d.Vendor("vendor", *vendor)
	}
	var options []option
	if template != "" {
		options = append(options, withRender(func(_ context.Context, call *dispatcher.Call, _ []byte) (dispatcher.Rendered, error) {
			return dispatcher.Rendered{Request: fmt.Appendf(nil, template, call.CarriedKey, call.Attempt), Type: "test", MessageID: "<" + call.CarriedKey + ">"}, nil
		}))
	}
	handle(d, "charge_card", policyOf(dispatcher.IdempotentWrite), s.handle, options...)
	return d
}

func TestRequestIsStoredBeforeTheFirstSend(t *testing.T) {
	b := setup(t)
	s := &sends{fail: errors.New("reset")}
	id := b.insert("charge_card")
	b.expect(b.release(s, &tight, "one %s %d"), retried)
	entry, err := outbox.Get(b.ctx, b.db.Pool, id)
	if err != nil {
		t.Fatal(err)
	}
	if len(s.keys[0]) != 25 || entry.Sent.CarriedKey != s.keys[0] || string(entry.Sent.Request) != "one "+s.keys[0]+" 1" || entry.Sent.MessageID != "<"+s.keys[0]+">" {
		t.Errorf("stored %+v, carried %s", entry.Sent, s.keys[0])
	}
	// Other releases: another template, no rules, neither.
	longer := tight
	longer.Key.MaxLength = 64
	for _, d := range []*dispatcher.Dispatcher{b.release(s, &longer, "two %s %d"), b.release(s, nil, "three %s %d"), b.release(s, nil, "")} {
		b.elapse(backoff)
		b.expect(d, retried)
	}
	b.elapse(backoff)
	s.fail = nil
	b.expect(b.release(s, &tight, "five %s %d"), delivered)
	for i := range s.keys {
		if s.keys[i] != s.keys[0] || s.requests[i] != s.requests[0] {
			t.Errorf("attempt %d carried %s and sent %q, the first %s and %q", i+1, s.keys[i], s.requests[i], s.keys[0], s.requests[0])
		}
	}
}

func TestPlainIntentStaysPlain(t *testing.T) {
	b := setup(t)
	s := &sends{fail: errors.New("reset")}
	b.insert("charge_card")
	b.expect(b.release(s, nil, ""), retried)
	b.elapse(backoff)
	s.fail = nil
	b.expect(b.release(s, &tight, "two %s %d"), delivered)
	if s.keys[1] != s.keys[0] || len(s.keys[0]) != 36 || s.requests[1] != "none" {
		t.Errorf("carried %q, sent %q", s.keys, s.requests)
	}
	if n := b.count("select count(*) from samekey.outbox_sends"); n != 0 {
		t.Errorf("%d rows are stored", n)
	}
}

func TestUnsentKeepsItsStoredRequest(t *testing.T) {
	b := setup(t)
	s := &sends{fail: dispatcher.ErrUnsent}
	b.insert("charge_card")
	b.expect(b.release(s, &tight, "one %s %d"), retried)
	b.elapse(backoff)
	s.fail = nil
	b.expect(b.release(s, &tight, "two %s %d"), delivered)
	if s.requests[1] != s.requests[0] {
		t.Errorf("sent %q", s.requests)
	}
}

func TestRenderErrorIsDeadAndUnsent(t *testing.T) {
	for name, render := range map[string]func(context.Context, *dispatcher.Call, []byte) (dispatcher.Rendered, error){
		"an error": func(context.Context, *dispatcher.Call, []byte) (dispatcher.Rendered, error) {
			return dispatcher.Rendered{}, errors.New("no member amount")
		},
		"a panic": func(context.Context, *dispatcher.Call, []byte) (dispatcher.Rendered, error) { panic("boom") },
		"too large": func(context.Context, *dispatcher.Call, []byte) (dispatcher.Rendered, error) {
			return dispatcher.Rendered{Request: make([]byte, 2<<20+1)}, nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			b, d, s := scriptedSetup(t, policyOf(dispatcher.NonIdempotentWrite), withRender(render))
			id := b.insert("charge_card")
			b.expect(d, dispatcher.Summary{Dead: 1})
			b.wantHistory(id, "attempt:dead:render")
			if s.calls != 0 {
				t.Errorf("%d calls", s.calls)
			}
			// It was not sent, so it may be redriven, also by a release that can render it.
			if err := outbox.Redrive(b.ctx, b.db.Pool, id, by); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestZombieStoresNoRequest(t *testing.T) {
	b := setup(t)
	s := &sends{}
	taken := false
	d := b.dispatcher()
	d.Destination("vendor", dispatcher.Limits{Concurrency: 1})
	handle(d, "charge_card", policyOf(dispatcher.IdempotentWrite), s.handle, withRender(func(context.Context, *dispatcher.Call, []byte) (dispatcher.Rendered, error) {
		if !taken { // another worker takes the intent over while this one renders
			taken = true
			b.exec("update samekey.outbox_queue set status = 'pending', leased_by = null, lease_until = null, attempt = attempt + 1")
			return dispatcher.Rendered{Request: []byte("the zombie's")}, nil
		}
		return dispatcher.Rendered{Request: []byte("the other's")}, nil
	}))
	b.insert("charge_card")
	b.expect(d, dispatcher.Summary{Delivered: 1, TakenOver: 1})
	if len(s.requests) != 1 || !strings.HasPrefix(s.requests[0], "the other's") {
		t.Errorf("sent %q", s.requests)
	}
}
