package main

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/samekey/samekey/samekeytest"
)

var (
	paid     = uuid.MustParse("00000000-0000-0000-0000-000000000001")
	declined = uuid.MustParse("00000000-0000-0000-0000-000000000002")
	noOrder  = uuid.MustParse("00000000-0000-0000-0000-000000000003")
	killedAt = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
)

func record(order uuid.UUID, key string, amount, status int) samekeytest.VendorRecord {
	return samekeytest.VendorRecord{
		Key: key, Identity: order.String(), Path: "/v1", Body: fmt.Appendf(nil, `{"amount":%d}`, amount),
		Answer: samekeytest.VendorAnswer{Status: status},
	}
}

func call(order uuid.UUID, key, hash string, from, to time.Duration) samekeytest.VendorCall {
	ended := killedAt.Add(to)
	return samekeytest.VendorCall{Key: key, BodyHash: hash, Identity: order.String(), Arrived: killedAt.Add(from), Ended: &ended}
}

// balanced has a paid order and a declined order. The charge of the paid order was called twice, because its worker was
// killed during the first call. The worker of the declined order was killed after the vendor had answered.
func balanced() evidence {
	return evidence{
		replies: []reply{
			{key: "k1", want: 201, status: 201, order: paid, body: "1"},
			{key: "k1", want: 201, status: 201, order: paid, body: "1", replayed: true},
			{key: "k1", want: 422, status: 422, body: "another"},
			{key: "k2", want: 201, status: 201, order: declined, body: "2"},
			{key: "k3", want: 404, status: 404, body: "no such product"},
		},
		orders: map[uuid.UUID]order{paid: {state: "paid", amount: 5}, declined: {state: "payment_failed", amount: 7}},
		intents: []intent{
			{action: "charge_card", deliveryKey: "c1", order: paid, finished: "delivered"},
			{action: "send_receipt", deliveryKey: "r1", order: paid, finished: "delivered"},
			{action: "charge_card", deliveryKey: "c2", order: declined, finished: "refused"},
		},
		payments: samekeytest.Ledger{
			Calls: []samekeytest.VendorCall{
				call(paid, "c1", "h", -time.Second, time.Millisecond), call(paid, "c1", "h", time.Second, 2*time.Second),
				call(declined, "c2", "h", -time.Second, -time.Millisecond), call(declined, "c2", "h", time.Second, 2*time.Second),
			},
			Effects:  []samekeytest.VendorRecord{record(paid, "c1", 5, 201)},
			Declined: []samekeytest.VendorRecord{record(declined, "c2", 7, 402)},
		},
		mails: samekeytest.Ledger{
			Calls:   []samekeytest.VendorCall{call(paid, "r1", "h", 3*time.Second, 4*time.Second)},
			Effects: []samekeytest.VendorRecord{record(paid, "r1", 5, 202)},
		},
		kills: []kill{{at: killedAt, action: "charge_card", held: map[uuid.UUID]bool{paid: true, declined: true}, intents: 2, last: killedAt.Add(time.Second)}},
	}
}

func TestCorrectBooksBalance(t *testing.T) {
	b := balance(balanced())
	if len(b.problems) > 0 {
		t.Errorf("problems: %v", b.problems)
	}
	got := fmt.Sprint(b.orders, b.replays, b.intents, b.calls, b.charges, b.receipts, b.declined, b.doubles, b.lost)
	if want := "2 1 3 5 1 1 1 0 0"; got != want {
		t.Errorf("figures %s, want %s", got, want)
	}
	if len(b.open) != 1 || b.open[0] != 1 || b.held != 2 || b.recovery != time.Second {
		t.Errorf("open at the kill %v, held %d, recovery %v", b.open, b.held, b.recovery)
	}
}

func TestWrongBooksDoNotBalance(t *testing.T) {
	for name, c := range map[string]struct {
		spoil         func(*evidence)
		doubles, lost int
		says          string
	}{
		"a second charge under another key": {func(e *evidence) {
			e.payments.Effects = append(e.payments.Effects, record(paid, "c9", 5, 201))
		}, 1, 0, "has 2 charges"},
		"three receipts": {func(e *evidence) {
			e.mails.Effects = append(e.mails.Effects, record(paid, "r8", 5, 202), record(paid, "r9", 5, 202))
		}, 2, 0, "has 3 receipts"},
		"a lost charge":  {func(e *evidence) { e.payments.Effects = nil }, 0, 1, "neither charged nor declined"},
		"a lost decline": {func(e *evidence) { e.payments.Declined = nil }, 0, 1, "neither charged nor declined"},
		"a lost receipt": {func(e *evidence) { e.mails.Effects = nil }, 0, 1, "got no receipt"},
		"a receipt for a declined card": {func(e *evidence) {
			e.mails.Effects = append(e.mails.Effects, record(declined, "r2", 7, 202))
		}, 0, 0, "was not charged and got a receipt"},
		"a charge for no order": {func(e *evidence) {
			e.payments.Effects = append(e.payments.Effects, record(noOrder, "c9", 5, 201))
		}, 0, 0, "does not exist"},
		"another amount": {func(e *evidence) { e.payments.Effects[0] = record(paid, "c1", 6, 201) }, 0, 0, "has the amount 6"},
		"a paid order that is pending": {func(e *evidence) {
			e.orders[paid] = order{state: "pending", amount: 5}
		}, 0, 0, "is pending"},
		"a declined order that is paid": {func(e *evidence) {
			e.orders[declined] = order{state: "paid", amount: 7}
		}, 0, 0, "0 charges and 1 declines"},
		"an answer that names no order": {func(e *evidence) { e.replies[3].order = noOrder }, 0, 0, "which does not exist"},
		"one key, two orders":           {func(e *evidence) { e.replies[1].body = "2"; e.replies[1].order = declined }, 0, 0, "was answered 201 1 and 201 2"},
		"two keys, one order":           {func(e *evidence) { e.replies[3].order = paid }, 0, 0, "name the same order"},
		"an order without a client": {func(e *evidence) {
			e.orders[noOrder] = order{state: "payment_failed", amount: 7}
			e.payments.Declined = append(e.payments.Declined, record(noOrder, "c3", 7, 402))
			e.intents = append(e.intents, intent{action: "charge_card", deliveryKey: "c3", order: noOrder, finished: "refused"})
		}, 0, 0, "no answer names it"},
		"a conflict that was answered":   {func(e *evidence) { e.replies[2].status = 201; e.replies[2].order = paid }, 0, 0, "instead of 422"},
		"a client without an answer":     {func(e *evidence) { e.replies[0].status = 0 }, 0, 0, "instead of 201"},
		"an intent that is not finished": {func(e *evidence) { e.intents[1].finished = "" }, 0, 0, "is not finished"},
		"an intent without a result":     {func(e *evidence) { e.intents[1].deliveryKey = "r9" }, 0, 0, "has 0 results"},
		"a missing intent":               {func(e *evidence) { e.intents = e.intents[:2] }, 0, 0, "has 0 charge_card"},
		"an extra receipt intent": {func(e *evidence) {
			e.intents = append(e.intents, intent{action: "send_receipt", deliveryKey: "r1", order: paid, finished: "delivered"})
		}, 0, 0, "2 send_receipt"},
		"other bytes with the same key": {func(e *evidence) { e.payments.Calls[1].BodyHash = "other" }, 0, 0, "two bodies"},
	} {
		t.Run(name, func(t *testing.T) {
			e := balanced()
			c.spoil(&e)
			b := balance(e)
			if b.doubles != c.doubles || b.lost != c.lost {
				t.Errorf("%d doubles and %d lost, want %d and %d", b.doubles, b.lost, c.doubles, c.lost)
			}
			if all := strings.Join(b.problems, "\n"); !strings.Contains(all, c.says) {
				t.Errorf("problems %q do not say %q", all, c.says)
			}
		})
	}
}

// The ledger's figures fit together: each client that orders an existing product has one order.
func TestBooksCountClientsOrdersAndConflicts(t *testing.T) {
	e := balanced()
	e.replies = append(e.replies,
		reply{key: "k8", want: 404, status: 404, body: "no"}, reply{key: "k8", want: 404, status: 404, body: "no"},
		reply{key: "k9", want: 404, status: 404, body: "no"}, reply{key: "k1", want: 422, status: 422, body: "another"})
	before := balance(balanced())
	if b := balance(e); b.missing-before.missing != 2 || b.conflicts-before.conflicts != 1 || len(b.problems) > 0 {
		t.Errorf("%d clients order an unknown product, %d conflicts: %v", b.missing, b.conflicts, b.problems)
	}
}

func TestFaultWithoutItsClientDoesNotCount(t *testing.T) {
	got := played(samekeytest.Ledger{Calls: []samekeytest.VendorCall{
		{Fault: "500"}, {Fault: "500", ClientGone: true}, {Fault: "hang", ClientGone: true}, {Fault: "slow(400ms)"}, {},
	}})
	if fmt.Sprint(got) != "map[500:1 hang:1 slow:1]" {
		t.Errorf("played: %v", got)
	}
}

func TestDemoThatShowsTooLittleFails(t *testing.T) {
	b := books{}
	(&demo{}).checkShow(&b)
	all := strings.Join(b.problems, "\n")
	for _, want := range []string{"an order", "a declined card", "a killed worker", "a killed service", "the fault lose_answer", "the fault slow"} {
		if !strings.Contains(all, want) {
			t.Errorf("problems %q do not say %q", all, want)
		}
	}
	if err := (&demo{out: t.Output(), traffic: &traffic{}}).report(b); err == nil {
		t.Error("the report returns no error")
	}
}
