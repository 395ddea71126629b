package dispatcher_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/samekey/samekey/dispatcher"
	"github.com/samekey/samekey/outbox"
)

// scripted is a handler that returns what the test sets, and counts.
type scripted struct {
	calls int
	next  func(call *dispatcher.Call) (dispatcher.Outcome, error)
	keys  map[string]bool
}

func (s *scripted) handle(_ context.Context, call *dispatcher.Call) (dispatcher.Outcome, error) {
	s.calls++
	if s.keys == nil {
		s.keys = map[string]bool{}
	}
	s.keys[call.DeliveryKey.String()+string(call.Payload)] = true
	return s.next(call)
}

// answering makes a handler that returns an outcome.
func answering(o dispatcher.Outcome) func(*dispatcher.Call) (dispatcher.Outcome, error) {
	return func(*dispatcher.Call) (dispatcher.Outcome, error) { return o, nil }
}

// failing makes a handler that returns an error.
func failing(err error) func(*dispatcher.Call) (dispatcher.Outcome, error) {
	return func(*dispatcher.Call) (dispatcher.Outcome, error) { return dispatcher.Outcome{}, err }
}

func succeeding(*dispatcher.Call) (dispatcher.Outcome, error) {
	return dispatcher.Delivered(dispatcher.Response{Code: "201", ContentType: "text/plain", Body: []byte("charged")}), nil
}

// scriptedSetup returns a dispatcher whose charge_card is scripted.
func scriptedSetup(t *testing.T, p dispatcher.Policy, options ...option) (*bundle, *dispatcher.Dispatcher, *scripted) {
	b := setup(t)
	s := &scripted{next: succeeding}
	d := b.dispatcher()
	d.Destination("vendor", dispatcher.Limits{Concurrency: 1}) // one call at a time: the script needs no lock
	handle(d, "charge_card", p, s.handle, options...)
	return b, d, s
}

func TestRefusedFinishesTheIntent(t *testing.T) {
	b, d := classSetup(t, dispatcher.NonIdempotentWrite, nil)
	b.vendor.Next("402")
	id := b.insert("charge_card")
	b.expect(d, dispatcher.Summary{Refused: 1})
	b.wantHistory(id, "attempt:refused:402")
	b.wantStatus(id, "refused")
	if n := b.count(`select count(*) from samekey.outbox_history where octet_length(response) > 0 and error is null`); n != 1 {
		t.Error("the vendor's answer is not in the history")
	}
}

func TestRetryUsesNoAttempt(t *testing.T) {
	p := policyOf(dispatcher.NonIdempotentWrite)
	p.Attempts, p.Backoff, p.MaxBackoff, p.Destination = 1, time.Millisecond, time.Millisecond, "patient"
	b, d, s := scriptedSetup(t, p)
	d.Destination("patient", dispatcher.Limits{Concurrency: 1, BreakAfter: -1}) // so many retries in a row would hold it
	id := b.insert("charge_card")
	s.next = func(call *dispatcher.Call) (dispatcher.Outcome, error) {
		if s.calls <= 30 {
			return dispatcher.Retry(dispatcher.Response{}).After(time.Millisecond), nil
		}
		return succeeding(call)
	}
	r := b.start(d)
	b.untilStatus(id, "delivered")
	_ = r.stop()
	if len(s.keys) != 1 || s.calls != 31 {
		t.Errorf("%d calls with %d keys and bodies, want 31 with one", s.calls, len(s.keys))
	}
	if n := b.count(`select count(*) from samekey.outbox_history where outcome = 'retry' and code = 'retry_after'`); n != 30 {
		t.Errorf("%d of 30 are in the history", n)
	}
}

func TestAfterIsExact(t *testing.T) {
	p := policyOf(dispatcher.Read)
	p.Backoff = time.Millisecond
	b, d, s := scriptedSetup(t, p)
	b.insert("charge_card")
	s.next = answering(dispatcher.Retry(dispatcher.Response{}).After(10 * time.Minute))
	b.expect(d, retried)
	b.elapse(9*time.Minute + 30*time.Second)
	b.expect(d, nothing)
	b.elapse(31 * time.Second)
	b.expect(d, retried)
}

func TestDeadRestsUntilRedriven(t *testing.T) {
	for _, class := range []dispatcher.Class{dispatcher.IdempotentWrite, dispatcher.NonIdempotentWrite} {
		t.Run(class.String(), func(t *testing.T) {
			b, d, s := scriptedSetup(t, policyOf(class))
			id := b.insert("charge_card")
			s.next = answering(dispatcher.Dead(dispatcher.Response{Code: "401"}).Because(errors.New("the key was revoked")))
			b.expect(d, dispatcher.Summary{Dead: 1})
			b.elapse(24 * time.Hour / 2)
			b.expect(d, nothing)
			b.wantStatus(id, "dead")
			s.next = succeeding
			b.redrive(id)
			b.expect(d, delivered)
			b.wantHistory(id, "attempt:dead:401 redriven attempt:delivered:201")
		})
	}
}

func (b *bundle) redrive(id [16]byte) {
	b.Helper()
	if err := outbox.Redrive(b.ctx, b.db.Pool, id, by); err != nil {
		b.Fatal(err)
	}
}

func TestRedriveUsesTheSameKeyAndBytes(t *testing.T) {
	p := policyOf(dispatcher.IdempotentWrite)
	p.Attempts = 1
	b, d, s := scriptedSetup(t, p)
	id := b.insert("charge_card")
	s.next = failing(errors.New("reset"))
	b.expect(d, dispatcher.Summary{Dead: 1})
	for range 2 {
		b.redrive(id)
		if err := outbox.Redrive(b.ctx, b.db.Pool, id, by); err == nil {
			t.Fatal("a second redrive of a due intent was accepted")
		}
		b.expect(d, dispatcher.Summary{Dead: 1})
	}
	if s.calls != 3 || len(s.keys) != 1 {
		t.Errorf("%d calls with %d keys and bodies, want 3 with one", s.calls, len(s.keys))
	}
}

func TestIntentIsDeadAfterTheLastAttempt(t *testing.T) {
	p := policyOf(dispatcher.Read)
	p.Attempts = 3
	b, d, s := scriptedSetup(t, p)
	id := b.insert("charge_card")
	s.next = failing(errors.New("reset"))
	b.expect(d, retried)
	b.elapse(backoff)
	b.expect(d, retried)
	b.elapse(backoff)
	b.expect(d, dispatcher.Summary{Dead: 1})
	b.elapse(backoff)
	b.expect(d, nothing)
	b.wantHistory(id, "attempt:unknown:unknown attempt:unknown:unknown attempt:unknown:unknown")
	if s.calls != 3 {
		t.Errorf("%d calls, want 3", s.calls)
	}
}

func TestPolicyDeadline(t *testing.T) {
	p := policyOf(dispatcher.Read)
	p.Deadline = time.Hour
	b, d, s := scriptedSetup(t, p)
	young, old := b.insert("charge_card"), b.insert("charge_card")
	b.exec(`update samekey.outbox set created_at = created_at - interval '59 min'`)
	b.exec(`update samekey.outbox set created_at = created_at - interval '2 min' where id = $1`, old)
	b.expect(d, dispatcher.Summary{Delivered: 1, Dead: 1})
	b.wantStatus(young, "delivered")
	b.wantHistory(old, "attempt:dead:deadline")
	if s.calls != 1 {
		t.Errorf("%d calls, want 1", s.calls)
	}
}

func TestIntentDeadline(t *testing.T) {
	b, d, s := scriptedSetup(t, policyOf(dispatcher.NonIdempotentWrite))
	in := func(age time.Duration) func(*outbox.Intent) {
		return func(in *outbox.Intent) { in.Deadline = time.Now().Add(age) }
	}
	young, old := b.insert("charge_card", in(time.Hour+time.Minute)), b.insert("charge_card", in(time.Hour-time.Minute))
	b.elapse(time.Hour)
	b.expect(d, dispatcher.Summary{Delivered: 1, Dead: 1})
	b.wantStatus(young, "delivered")
	b.wantStatus(old, "dead")
	if s.calls != 1 {
		t.Errorf("%d calls, want 1", s.calls)
	}
}

func TestNothingIsSentBeforeDueAt(t *testing.T) {
	b, d, _ := scriptedSetup(t, policyOf(dispatcher.Read))
	id := b.insert("charge_card", func(in *outbox.Intent) { in.DueAt = time.Now().Add(time.Hour) })
	b.elapse(59 * time.Minute)
	b.expect(d, nothing)
	b.elapse(2 * time.Minute)
	b.expect(d, delivered)
	b.wantStatus(id, "delivered")
}

func TestPanicIsUnknownAndOthersGoOn(t *testing.T) {
	b, d, s := scriptedSetup(t, policyOf(dispatcher.NonIdempotentWrite))
	bad := b.insert("charge_card")
	for range 3 {
		b.insert("charge_card")
	}
	s.next = func(call *dispatcher.Call) (dispatcher.Outcome, error) {
		if call.ID == bad {
			panic("a secret of the vendor's")
		}
		return succeeding(call)
	}
	b.expect(d, dispatcher.Summary{Delivered: 3, Unknown: 1})
	b.wantHistory(bad, "attempt:unknown:panic")
	if strings.Contains(b.logs.String(), "secret") {
		t.Error("the panic's text is in the logs")
	}
}

func TestLateOutcomeIsStillSettled(t *testing.T) {
	p := policyOf(dispatcher.NonIdempotentWrite)
	p.Timeout = time.Second
	b := setup(t)
	d := b.dispatcher()
	d.Destination("vendor", dispatcher.Limits{})
	handle(d, "charge_card", p, func(ctx context.Context, call *dispatcher.Call) (dispatcher.Outcome, error) {
		<-ctx.Done()
		return succeeding(call)
	})
	id := b.insert("charge_card")
	b.expect(d, delivered)
	b.wantHistory(id, "attempt:delivered:201")
}

// lookingUp is a lookup that returns the outcome that the test sets.
func lookingUp(o *dispatcher.Outcome, err *error) option {
	return withLookup(func(context.Context, *dispatcher.Call, []byte) (dispatcher.Outcome, error) {
		if *err != nil {
			return dispatcher.Outcome{}, *err
		}
		return *o, nil
	})
}

func TestLookupOutcomes(t *testing.T) {
	evidence := dispatcher.Response{Code: "evidence", Body: []byte("as the vendor's list says")}
	for _, c := range []struct {
		name    string
		outcome dispatcher.Outcome
		want    dispatcher.Summary
		status  string
		history string
	}{
		{"delivered", dispatcher.Delivered(evidence), delivered, "delivered", "lookup:delivered:evidence"},
		{"refused", dispatcher.Refused(evidence), dispatcher.Summary{Refused: 1}, "refused", "lookup:refused:evidence"},
		{"unknown", dispatcher.Unknown(evidence), parked, "parked", "lookup:unknown:evidence"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var err error
			b, d, s := scriptedSetup(t, policyOf(dispatcher.NonIdempotentWrite), lookingUp(&c.outcome, &err))
			s.next = failing(errors.New("reset"))
			id := b.insert("charge_card")
			b.expect(d, unknown)
			b.elapse(settling)
			b.expect(d, c.want)
			b.wantStatus(id, c.status)
			b.wantHistory(id, "attempt:unknown:unknown "+c.history)
			if n := b.count(`select count(*) from samekey.outbox_history where response = 'as the vendor''s list says'`); n != 1 {
				t.Error("the evidence is not in the history")
			}
			if s.calls != 1 {
				t.Errorf("%d calls, want 1", s.calls)
			}
		})
	}
}

func TestResendAfterTwoAbsentLookups(t *testing.T) {
	for name, resend := range map[string]bool{"parked": false, "sent once more": true} {
		t.Run(name, func(t *testing.T) {
			absent, err := dispatcher.Absent(dispatcher.Response{Code: "404"}), error(nil)
			p := policyOf(dispatcher.NonIdempotentWrite)
			p.ResendAbsent = resend
			b, d, s := scriptedSetup(t, p, lookingUp(&absent, &err))
			s.next = failing(errors.New("reset"))
			id := b.insert("charge_card")
			b.expect(d, unknown)
			b.elapse(settling)
			b.expect(d, unknown) // absent once
			if s.calls != 1 {
				t.Fatalf("%d calls after one absent", s.calls)
			}
			b.elapse(settling)
			history := "attempt:unknown:unknown lookup:absent:absent "
			if !resend {
				b.expect(d, parked)
				b.wantHistory(id, history+"lookup:absent:404")
				return
			}
			b.expect(d, dispatcher.Summary{Retried: 1, Unknown: 1}) // sent again, and unknown again
			b.elapse(settling)
			b.expect(d, unknown)
			b.elapse(settling)
			b.expect(d, parked) // not sent again
			history += "lookup:absent:absent attempt:unknown:unknown lookup:absent:absent lookup:absent:404"
			b.wantHistory(id, history)
			if err := outbox.Redrive(b.ctx, b.db.Pool, id, by); err == nil {
				t.Error("it was redriven, although it may have been sent")
			}
			if s.calls != 2 {
				t.Errorf("%d calls, want 2", s.calls)
			}
		})
	}
}

func TestAcceptedIsLookedUpUntilDone(t *testing.T) {
	pending, err := dispatcher.Accepted(dispatcher.Response{Code: "202"}).After(time.Minute), error(nil)
	b, d, s := scriptedSetup(t, policyOf(dispatcher.NonIdempotentWrite), lookingUp(&pending, &err))
	s.next = answering(dispatcher.Accepted(dispatcher.Response{Code: "202", Body: []byte("job 7")}).After(time.Minute))
	id, byEvent := b.insert("charge_card"), b.insert("charge_card")
	b.expect(d, dispatcher.Summary{Unknown: 2})
	// Several lookups do not use up the attempts.
	for range 30 {
		b.elapse(61 * time.Second)
		b.expect(d, dispatcher.Summary{Unknown: 2})
	}
	if err := outbox.Resolve(b.ctx, b.db.Pool, byEvent, outbox.Resolution{Outcome: outbox.Delivered, Code: "done"}, outbox.By{Actor: "vendor's webhook", Reason: "event 7"}); err != nil {
		t.Fatal(err)
	}
	b.expect(d, delivered)
	pending = dispatcher.Delivered(dispatcher.Response{Code: "200"})
	b.elapse(61 * time.Second)
	b.expect(d, delivered)
	b.wantStatus(id, "delivered")
	if s.calls != 2 {
		t.Errorf("%d calls, want 2", s.calls)
	}
}

func TestAcceptedWithoutLookupIsParkedAfterCompletionTime(t *testing.T) {
	p := policyOf(dispatcher.IdempotentWrite)
	p.CompletionTime = time.Hour
	b, d, s := scriptedSetup(t, p)
	s.next = answering(dispatcher.Accepted(dispatcher.Response{Code: "202"}).After(time.Minute))
	id := b.insert("charge_card")
	b.expect(d, unknown)
	b.elapse(59 * time.Minute)
	b.expect(d, nothing)
	b.elapse(2 * time.Minute)
	b.expect(d, parked)
	b.wantHistory(id, "attempt:accepted:accepted lookup:parked:not_completed")
	if s.calls != 1 {
		t.Errorf("%d calls, want 1", s.calls)
	}
}

// A vendor that accepted a call and then cannot be asked does not get more time.
func TestAcceptedIsParkedAfterCompletionTime(t *testing.T) {
	p := policyOf(dispatcher.IdempotentWrite)
	p.CompletionTime = 5 * time.Hour
	found, err := dispatcher.Outcome{}, errors.New("the vendor is away")
	b, d, s := scriptedSetup(t, p, lookingUp(&found, &err))
	s.next = answering(dispatcher.Accepted(dispatcher.Response{Code: "202"}).After(time.Minute))
	id := b.insert("charge_card")
	b.expect(d, unknown)
	for range 3 {
		b.elapse(90 * time.Minute)
		b.expect(d, unknown)
	}
	b.elapse(90 * time.Minute)
	b.expect(d, parked)
	const failed = " lookup:retry:lookup_failed"
	b.wantHistory(id, "attempt:accepted:accepted"+failed+failed+failed+" lookup:parked:not_completed")
	if s.calls != 1 {
		t.Errorf("%d calls, want 1", s.calls)
	}
}

func TestFailedLookupIsRetriedAndNeverSends(t *testing.T) {
	found, err := dispatcher.Delivered(dispatcher.Response{Code: "200"}), errors.New("the vendor is away")
	p := policyOf(dispatcher.NonIdempotentWrite)
	p.Attempts = 3
	b, d, s := scriptedSetup(t, p, lookingUp(&found, &err))
	s.next = failing(errors.New("reset"))
	lucky, unlucky := b.insert("charge_card"), b.insert("charge_card")
	b.expect(d, dispatcher.Summary{Unknown: 2})
	b.elapse(settling)
	b.expect(d, dispatcher.Summary{Unknown: 2})
	b.elapse(backoff)
	b.expect(d, dispatcher.Summary{Unknown: 2})
	b.exec(`update samekey.outbox_queue set due_at = due_at + interval '2 h' where id = $1`, lucky)
	b.elapse(backoff)
	b.expect(d, parked)
	b.wantHistory(unlucky, "attempt:unknown:unknown lookup:retry:lookup_failed lookup:retry:lookup_failed lookup:unknown:lookup_failed")
	err = nil
	b.elapse(2 * backoff)
	b.expect(d, delivered)
	b.wantHistory(lucky, "attempt:unknown:unknown lookup:retry:lookup_failed lookup:retry:lookup_failed lookup:delivered:200")
	if s.calls != 2 {
		t.Errorf("%d calls, want one per intent", s.calls)
	}
}

func TestApprovalIsGoodForOneAttempt(t *testing.T) {
	b, d, s := scriptedSetup(t, policyOf(dispatcher.IrreversibleWrite))
	id := b.insert("charge_card")
	b.expect(d, awaiting)
	b.elapse(time.Hour)
	b.expect(d, nothing)
	b.approve(id)
	s.next = answering(dispatcher.Dead(dispatcher.Response{Code: "404"}))
	b.expect(d, dispatcher.Summary{Dead: 1})
	b.redrive(id)
	b.expect(d, awaiting)
	s.next = succeeding
	b.approve(id)
	b.expect(d, delivered)
	if s.calls != 2 {
		t.Errorf("%d calls, want one per approval", s.calls)
	}
}

func TestRejectedIsNeverSent(t *testing.T) {
	b, d, s := scriptedSetup(t, policyOf(dispatcher.IrreversibleWrite))
	id := b.insert("charge_card")
	b.expect(d, awaiting)
	if err := outbox.Reject(b.ctx, b.db.Pool, id, by); err != nil {
		t.Fatal(err)
	}
	b.elapse(time.Hour)
	b.expect(d, nothing)
	b.wantStatus(id, "cancelled")
	if s.calls != 0 {
		t.Errorf("%d calls, want none", s.calls)
	}
}

func TestResolvedAsDeliveredRunsApply(t *testing.T) {
	told := make(chan dispatcher.Settled, 1)
	b, d, s := scriptedSetup(t, policyOf(dispatcher.NonIdempotentWrite),
		withApply(func(_ context.Context, _ pgx.Tx, _ []byte, o dispatcher.Settled) error {
			told <- o
			return nil
		}))
	s.next = failing(errors.New("reset"))
	id := b.insert("charge_card")
	b.expect(d, unknown)
	b.elapse(settling)
	b.expect(d, parked)
	resolution := outbox.Resolution{Outcome: outbox.Delivered, Code: "200", Response: []byte("ch_1"), ResponseType: "text/plain"}
	if err := outbox.Resolve(b.ctx, b.db.Pool, id, resolution, by); err != nil {
		t.Fatal(err)
	}
	b.expect(d, delivered)
	o := wait(b, "Apply ran", told)
	if !o.Resolved || o.Status != outbox.StatusDelivered || o.Response.Code != "200" || string(o.Response.Body) != "ch_1" || o.Response.ContentType != "text/plain" {
		t.Errorf("Apply got %+v", o)
	}
	b.wantStatus(id, "delivered")
	if s.calls != 1 {
		t.Errorf("%d calls, want 1", s.calls)
	}
}

func TestResolvedAsNotSentCanBeRedriven(t *testing.T) {
	for _, class := range []dispatcher.Class{dispatcher.NonIdempotentWrite, dispatcher.IrreversibleWrite} {
		t.Run(class.String(), func(t *testing.T) {
			b, d, s := scriptedSetup(t, policyOf(class))
			id := b.insert("charge_card")
			if class == dispatcher.IrreversibleWrite {
				b.expect(d, awaiting)
				b.approve(id)
			}
			s.next = failing(errors.New("reset"))
			b.expect(d, unknown)
			b.elapse(settling)
			b.expect(d, parked)
			if err := outbox.Resolve(b.ctx, b.db.Pool, id, outbox.Resolution{Outcome: outbox.NotSent}, by); err != nil {
				t.Fatal(err)
			}
			b.expect(d, nothing)
			s.next = succeeding
			b.redrive(id)
			if class == dispatcher.IrreversibleWrite {
				b.expect(d, awaiting)
				b.approve(id)
			}
			b.expect(d, delivered)
			if s.calls != 2 || len(s.keys) != 1 {
				t.Errorf("%d calls with %d keys and bodies, want 2 with one", s.calls, len(s.keys))
			}
		})
	}
}

func TestResponseCap(t *testing.T) {
	p := policyOf(dispatcher.Read)
	p.ResponseCap = 4
	b, d, _ := scriptedSetup(t, p)
	b.insert("charge_card")
	b.expect(d, delivered)
	if got := value[string](b, `select convert_from(response, 'UTF8') from samekey.outbox_history`); got != "char" {
		t.Errorf("the stored answer is %q, want its first 4 bytes", got)
	}
}
