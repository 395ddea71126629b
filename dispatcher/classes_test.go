package dispatcher_test

import (
	"context"
	"errors"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/samekey/samekey/dispatcher"
	"github.com/samekey/samekey/internal/dbtest"
	"github.com/samekey/samekey/outbox"
	"github.com/samekey/samekey/samekeytest"
)

// The guarantees of the four classes, each against a vendor over sockets: which intents are sent again, looked up, or
// parked, and how often the vendor was called.

// classBundle has a dispatcher that delivers charge_card under one class.
func classSetup(t *testing.T, class dispatcher.Class, change func(*dispatcher.Policy), options ...option) (*bundle, *dispatcher.Dispatcher) {
	t.Helper()
	b := setup(t)
	return b, b.handles(class, change, options...)
}

func (b *bundle) handles(class dispatcher.Class, change func(*dispatcher.Policy), options ...option) *dispatcher.Dispatcher {
	p := policyOf(class)
	if change != nil {
		change(&p)
	}
	d := b.dispatcher()
	d.Destination("vendor", dispatcher.Limits{})
	handle(d, "charge_card", p, b.post, options...)
	return d
}

// approved inserts an irreversible intent and approves it at its first claim.
func (b *bundle) approved(d *dispatcher.Dispatcher) uuid.UUID {
	b.Helper()
	id := b.insert("charge_card")
	b.expect(d, dispatcher.Summary{AwaitingApproval: 1})
	b.wantStatus(id, "awaiting_approval")
	b.wantCalls(0)
	b.approve(id)
	return id
}

func (b *bundle) approve(id uuid.UUID) {
	b.Helper()
	if b.approver == nil {
		b.approver = dbtest.Approver(b, b.db)
	}
	if err := outbox.Approve(b.ctx, b.approver, id, by); err != nil {
		b.Fatal(err)
	}
}

var (
	retried   = dispatcher.Summary{Retried: 1}
	delivered = dispatcher.Summary{Delivered: 1}
	unknown   = dispatcher.Summary{Unknown: 1}
	parked    = dispatcher.Summary{Parked: 1}
	awaiting  = dispatcher.Summary{AwaitingApproval: 1}
	nothing   = dispatcher.Summary{}
)

// backoff is longer than the wait before a second attempt in these tests, and lease is longer than any lease.
const (
	backoff  = 61 * time.Minute
	settling = 6 * time.Second
	lease    = time.Minute
)

// refusePort makes the client's next dial fail, because no server listens there.
func (b *bundle) refuseNextDial() {
	dialer := &net.Dialer{}
	refused := false
	b.client = &http.Client{Transport: &http.Transport{DisableKeepAlives: true,
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			if !refused {
				refused = true
				address = "127.0.0.1:1"
			}
			return dialer.DialContext(ctx, network, address)
		}}}
}

func TestUnsentReadIsSentAgain(t *testing.T) { unsentIsSentAgain(t, dispatcher.Read) }
func TestUnsentIdempotentWriteIsSentAgain(t *testing.T) {
	unsentIsSentAgain(t, dispatcher.IdempotentWrite)
}
func TestUnsentNonIdempotentWriteIsSentAgain(t *testing.T) {
	unsentIsSentAgain(t, dispatcher.NonIdempotentWrite)
}

func unsentIsSentAgain(t *testing.T, class dispatcher.Class) {
	b, d := classSetup(t, class, nil)
	b.refuseNextDial()
	id := b.insert("charge_card")
	b.expect(d, retried)
	b.wantStatus(id, "pending")
	if n := b.count(`select count(*) from samekey.outbox_queue where attempts_used = 0 and first_sent_at is null and key_window_until is null`); n != 1 {
		t.Error("an unsent call used an attempt or began the key window")
	}
	b.elapse(backoff)
	b.expect(d, delivered)
	b.wantHistory(id, "attempt:unsent:unsent attempt:delivered:201")
	b.wantCalls(1)
	samekeytest.AssertOneEffect(t, b.vendor, b.deliveryKey(id))
}

func TestUnsentIrreversibleWriteWaitsForAnotherApproval(t *testing.T) {
	b, d := classSetup(t, dispatcher.IrreversibleWrite, nil)
	id := b.approved(d)
	b.refuseNextDial()
	b.expect(d, awaiting)
	b.elapse(backoff)
	b.expect(d, nothing)
	b.approve(id)
	b.expect(d, delivered)
	b.wantCalls(1)
	samekeytest.AssertOneEffect(t, b.vendor, b.deliveryKey(id))
}

func TestReadIsSentAgainAfterAReset(t *testing.T) { resetIsSentAgain(t, dispatcher.Read) }
func TestIdempotentWriteIsSentAgainAfterAReset(t *testing.T) {
	resetIsSentAgain(t, dispatcher.IdempotentWrite)
}

func resetIsSentAgain(t *testing.T, class dispatcher.Class) {
	b, d := classSetup(t, class, nil)
	b.vendor.Next(samekeytest.FaultResetAfter)
	b.sentAgainWithTheSameKeyAndBytes(d, "unknown")
}

func TestReadIsSentAgainAfterATimeout(t *testing.T) { timeoutIsSentAgain(t, dispatcher.Read) }
func TestIdempotentWriteIsSentAgainAfterATimeout(t *testing.T) {
	timeoutIsSentAgain(t, dispatcher.IdempotentWrite)
}

func timeoutIsSentAgain(t *testing.T, class dispatcher.Class) {
	b, d := classSetup(t, class, short)
	b.vendor.Next(samekeytest.FaultHangAfter)
	b.sentAgainWithTheSameKeyAndBytes(d, "timeout")
}

// short is longer than a claim takes on a busy machine. An intent whose claim takes longer is given back.
func short(p *dispatcher.Policy) { p.Timeout = 1500 * time.Millisecond }

func (b *bundle) sentAgainWithTheSameKeyAndBytes(d *dispatcher.Dispatcher, code string) {
	b.Helper()
	id := b.insert("charge_card")
	b.expect(d, retried)
	b.wantStatus(id, "pending")
	b.elapse(backoff)
	b.expect(d, delivered)
	b.wantHistory(id, "attempt:unknown:"+code+" attempt:delivered:201")
	b.wantSameCalls(id, 2)
}

// wantSameCalls fails unless the vendor saw that many calls, all with the intent's key and the same bytes, and one
// effect.
func (b *bundle) wantSameCalls(id uuid.UUID, calls int) {
	b.Helper()
	b.wantCalls(calls)
	ledger := b.vendor.Ledger()
	for _, call := range ledger.Calls {
		if call.Key != b.deliveryKey(id) || call.BodyHash != ledger.Calls[0].BodyHash {
			b.Errorf("call %d came with key %s and body %s", call.Call, call.Key, call.BodyHash)
		}
	}
	samekeytest.AssertOneEffect(b, b.vendor, b.deliveryKey(id))
}

func TestNonIdempotentWriteIsLookedUpAfterAReset(t *testing.T) {
	ambiguousIsLookedUp(t, dispatcher.NonIdempotentWrite, nil, samekeytest.FaultResetAfter, "unknown")
}

func TestNonIdempotentWriteIsLookedUpAfterATimeout(t *testing.T) {
	ambiguousIsLookedUp(t, dispatcher.NonIdempotentWrite, short, samekeytest.FaultHangAfter, "timeout")
}

func TestIrreversibleWriteIsLookedUpAfterAReset(t *testing.T) {
	ambiguousIsLookedUp(t, dispatcher.IrreversibleWrite, nil, samekeytest.FaultResetAfter, "unknown")
}

func TestIrreversibleWriteIsLookedUpAfterATimeout(t *testing.T) {
	ambiguousIsLookedUp(t, dispatcher.IrreversibleWrite, short, samekeytest.FaultHangAfter, "timeout")
}

func ambiguousIsLookedUp(t *testing.T, class dispatcher.Class, change func(*dispatcher.Policy), fault samekeytest.Fault, code string) {
	b := setup(t)
	d := b.handles(class, change, withLookup(b.lookup))
	id, approval := b.insert("charge_card"), ""
	if class == dispatcher.IrreversibleWrite {
		b.expect(d, awaiting)
		b.approve(id)
		approval = "attempt:awaiting_approval:approval approved "
	}
	b.vendor.Next(fault)
	b.expect(d, unknown)
	b.wantStatus(id, "unknown")
	b.expect(d, nothing) // the settling delay
	b.elapse(settling)
	b.expect(d, delivered)
	b.wantHistory(id, approval+"attempt:unknown:"+code+" lookup:delivered:201")
	b.wantSameCalls(id, 1)
}

func TestNonIdempotentWriteWithoutLookupIsParkedAfterAReset(t *testing.T) {
	ambiguousIsParked(t, dispatcher.NonIdempotentWrite, nil, samekeytest.FaultResetAfter)
}

func TestNonIdempotentWriteWithoutLookupIsParkedAfterATimeout(t *testing.T) {
	ambiguousIsParked(t, dispatcher.NonIdempotentWrite, short, samekeytest.FaultHangAfter)
}

func TestIrreversibleWriteWithoutLookupIsParkedAfterAReset(t *testing.T) {
	ambiguousIsParked(t, dispatcher.IrreversibleWrite, nil, samekeytest.FaultResetAfter)
}

func TestIrreversibleWriteWithoutLookupIsParkedAfterATimeout(t *testing.T) {
	ambiguousIsParked(t, dispatcher.IrreversibleWrite, short, samekeytest.FaultHangAfter)
}

func ambiguousIsParked(t *testing.T, class dispatcher.Class, change func(*dispatcher.Policy), fault samekeytest.Fault) {
	b, d := classSetup(t, class, change)
	id := b.insert("charge_card")
	if class == dispatcher.IrreversibleWrite {
		b.expect(d, awaiting)
		b.approve(id)
	}
	b.vendor.Next(fault)
	b.expect(d, unknown)
	b.elapse(settling)
	b.expect(d, parked)
	b.elapse(lease)
	b.expect(d, nothing)
	b.wantStatus(id, "parked")
	b.wantSameCalls(id, 1)

	// An intent that may have been sent is not sent again until a person resolves it as not sent.
	var state *outbox.StateError
	if err := outbox.Redrive(b.ctx, b.db.Pool, id, by); !errors.As(err, &state) {
		t.Errorf("a redrive of an intent that may have been sent returned %v, want a StateError", err)
	}
}

func TestKilledReadIsSentAgainAtOnce(t *testing.T) {
	killedIsSentAgain(t, dispatcher.Read)
}

func TestKilledIdempotentWriteIsSentAgainAtOnce(t *testing.T) {
	killedIsSentAgain(t, dispatcher.IdempotentWrite)
}

// The leases of these two last another minute: the missing lock shows that the process was killed.
func killedIsSentAgain(t *testing.T, class dispatcher.Class) {
	b, d := classSetup(t, class, nil)
	id := b.insert("charge_card")
	b.killInTheCall(class)
	b.expect(d, delivered)
	b.wantHistory(id, "orphaned:unknown:orphaned attempt:delivered:201")
	b.wantSameCalls(id, 2)
}

// killInTheCall has a worker call the vendor, which acts, and kills the worker while it waits for the answer.
func (b *bundle) killInTheCall(class dispatcher.Class) {
	b.Helper()
	b.vendor.Next(samekeytest.FaultLate)
	worker := b.startWorker(workerSettings{Class: class, Timeout: 50 * time.Second})
	if err := b.vendor.WaitOpen(b.ctx, 1); err != nil {
		b.Fatal(err)
	}
	worker.kill()
	if err := b.vendor.WaitEffects(b.ctx, 1); err != nil {
		b.Fatal(err)
	}
}

func TestKilledNonIdempotentWriteIsLookedUpAfterItsLease(t *testing.T) {
	killedIsLookedUp(t, dispatcher.NonIdempotentWrite)
}

func TestKilledIrreversibleWriteIsLookedUpAfterItsLease(t *testing.T) {
	killedIsLookedUp(t, dispatcher.IrreversibleWrite)
}

func killedIsLookedUp(t *testing.T, class dispatcher.Class) {
	b := setup(t)
	d := b.handles(class, nil, withLookup(b.lookup))
	id := b.insert("charge_card")
	if class == dispatcher.IrreversibleWrite {
		b.expect(d, awaiting)
		b.approve(id)
	}
	b.killInTheCall(class)

	b.expect(d, nothing)
	b.elapse(40 * time.Second) // the lease lasts 60 s: the timeout of 50 s, and 10 s
	b.expect(d, nothing)
	b.wantStatus(id, "leased")
	b.elapse(21 * time.Second)
	b.expect(d, nothing)
	b.wantStatus(id, "unknown")
	b.elapse(settling)
	b.expect(d, delivered)
	b.wantSameCalls(id, 1)
}

func TestKilledNonIdempotentWriteWithoutLookupIsParked(t *testing.T) {
	b, d := classSetup(t, dispatcher.NonIdempotentWrite, nil)
	id := b.insert("charge_card")
	b.killInTheCall(dispatcher.NonIdempotentWrite)
	b.elapse(lease + time.Second)
	b.expect(d, nothing)
	b.elapse(settling)
	b.expect(d, parked)
	b.wantHistory(id, "orphaned:unknown:orphaned lookup:parked:no_lookup")
	b.wantCalls(1)
}

func TestIntentsThatKillWorkersEndDead(t *testing.T) {
	b, d := classSetup(t, dispatcher.IdempotentWrite, func(p *dispatcher.Policy) { p.Attempts = 3 })
	id := b.insert("charge_card")
	for range 3 {
		// A killed worker leaves the intent leased to a worker whose lock is gone.
		b.exec(`update samekey.outbox_queue set status = 'leased', leased_by = 999, attempt = attempt + 1, safe_to_resend = true,
			last_sent_attempt = attempt + 1, lease_until = clock_timestamp() - interval '1 s', due_at = clock_timestamp() + interval '1 h'`)
		if b.count(`select attempts_used from samekey.outbox_queue`) == 2 {
			break
		}
		d2 := b.dispatcher() // it handles another action, but sweeps for all
		handle(d2, "other", dispatcher.Policy{Class: dispatcher.Read}, b.post)
		b.expect(d2, nothing)
	}
	b.expect(d, dispatcher.Summary{Dead: 1})
	b.wantStatus(id, "dead")
	b.wantCalls(0)
}
