package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/samekey/samekey/examples/createorder"
	"github.com/samekey/samekey/samekeytest"
)

// evidence is the input of the books: the rows in the database, the vendors' ledgers on disk, and the answers that
// clients got. It does not contain what the demo intended to do.
type evidence struct {
	replies  []reply
	orders   map[uuid.UUID]order
	intents  []intent
	payments samekeytest.Ledger
	mails    samekeytest.Ledger
	kills    []kill
}

// reply is the last answer to one POST. The client may have sent the POST several times.
type reply struct {
	key      string
	want     int // the expected status
	status   int
	order    uuid.UUID
	body     string
	replayed bool
}

type order struct {
	state  string
	amount int64
}

type intent struct {
	action      string
	deliveryKey string
	order       uuid.UUID
	finished    string // delivered, refused, or empty: not finished
}

// books is the result of the comparison.
type books struct {
	orders, replays, intents    int
	missing, conflicts          int // clients that order an unknown product; posts that were answered 422
	calls                       int
	charges, receipts, declined int
	doubles, lost               int
	open                        []int          // open calls of each killed worker
	held                        int            // intents that killed workers had claimed
	recovery                    time.Duration  // the longest time from a SIGKILL to the delivery of the worker's last intent
	faults                      map[string]int // played faults by kind
	problems                    []string       // empty if the books balance
}

// balance compares each order, each answer and each effect with the others.
func balance(e evidence) books {
	b := books{
		orders: len(e.orders), intents: len(e.intents),
		calls:   len(e.payments.Calls) + len(e.mails.Calls),
		charges: len(e.payments.Effects), receipts: len(e.mails.Effects), declined: len(e.payments.Declined),
		faults: played(e.payments, e.mails),
	}
	b.checkEffects("charge", e.payments, e.orders)
	b.checkEffects("receipt", e.mails, e.orders)
	b.checkOrders(e)
	b.checkReplies(e)
	b.checkIntents(e)
	b.checkBytes(e.payments)
	b.checkBytes(e.mails)
	b.countKills(e)
	return b
}

func (b *books) problem(format string, args ...any) {
	b.problems = append(b.problems, fmt.Sprintf(format, args...))
}

// checkEffects finds second effects of an order, effects without an order, and effects with another amount.
func (b *books) checkEffects(what string, ledger samekeytest.Ledger, orders map[uuid.UUID]order) {
	for _, double := range ledger.Doubles() {
		b.doubles += len(double.Effects) - 1
		b.problem("order %s has %d %ss", double.Identity, len(double.Effects), what)
	}
	for _, effect := range slices.Concat(ledger.Effects, ledger.Declined) {
		id, _ := uuid.Parse(effect.Identity)
		order, exists := orders[id]
		var body struct{ Amount int64 }
		switch err := json.Unmarshal(effect.Body, &body); {
		case !exists:
			b.problem("a %s was requested for an order that does not exist: %q", what, effect.Identity)
		case err != nil || body.Amount != order.amount:
			b.problem("the %s of order %s has the amount %d, the order has %d", what, id, body.Amount, order.amount)
		}
	}
}

// checkOrders finds lost effects, and orders whose state differs from the vendors' ledgers.
func (b *books) checkOrders(e evidence) {
	charged, declined, mailed := byOrder(e.payments.Effects), byOrder(e.payments.Declined), byOrder(e.mails.Effects)
	for id, order := range e.orders {
		if charged[id]+declined[id] == 0 {
			b.lost++
			b.problem("order %s was neither charged nor declined", id)
		}
		if charged[id] > 0 && mailed[id] == 0 {
			b.lost++
			b.problem("order %s was charged and got no receipt", id)
		}
		want := createorder.PaymentFailed
		if charged[id] > 0 {
			want = createorder.Paid
		}
		if order.state != want {
			b.problem("order %s is %s; the payment vendor has %d charges and %d declines", id, order.state, charged[id], declined[id])
		}
		if charged[id] == 0 && mailed[id] > 0 {
			b.problem("order %s was not charged and got a receipt", id)
		}
	}
}

// checkReplies compares the clients' answers with each other and with the orders.
func (b *books) checkReplies(e evidence) {
	first := map[string]reply{}
	owner := map[uuid.UUID]string{}
	for _, r := range e.replies {
		if r.replayed {
			b.replays++
		}
		if r.status != r.want {
			b.problem("key %s was answered %d instead of %d: %s", r.key, r.status, r.want, r.body)
			continue
		}
		if r.status == 422 {
			b.conflicts++
			continue // another request under a used key: not this key's answer
		}
		if have, again := first[r.key]; again && (have.status != r.status || have.body != r.body) {
			b.problem("key %s was answered %d %s and %d %s", r.key, have.status, have.body, r.status, r.body)
		}
		if _, again := first[r.key]; r.status == 404 && !again {
			b.missing++
		}
		first[r.key] = r
		if r.status != 201 {
			continue
		}
		if _, exists := e.orders[r.order]; !exists {
			b.problem("the answer to key %s names order %s, which does not exist", r.key, r.order)
		}
		if have, taken := owner[r.order]; taken && have != r.key {
			b.problem("the answers to keys %s and %s name the same order %s", have, r.key, r.order)
		}
		owner[r.order] = r.key
	}
	for id := range e.orders {
		if owner[id] == "" {
			b.problem("order %s exists, and no answer names it", id)
		}
	}
}

// checkIntents expects that each intent is finished, and that its vendor has one result for its delivery key: one
// charge intent for each order, one receipt intent for each paid order.
func (b *books) checkIntents(e evidence) {
	decided := map[string]int{}
	for _, record := range slices.Concat(e.payments.Effects, e.payments.Declined, e.mails.Effects, e.mails.Declined) {
		decided[record.Key]++
	}
	count := map[string]map[uuid.UUID]int{"charge_card": {}, "send_receipt": {}}
	for _, in := range e.intents {
		if in.finished == "" {
			b.problem("the %s intent of order %s is not finished", in.action, in.order)
		} else if n := decided[in.deliveryKey]; n != 1 {
			b.problem("the %s intent of order %s is %s, and its vendor has %d results for its key", in.action, in.order, in.finished, n)
		}
		if count[in.action] == nil {
			count[in.action] = map[uuid.UUID]int{}
		}
		count[in.action][in.order]++
	}
	for id, order := range e.orders {
		want := 0
		if order.state == createorder.Paid {
			want = 1
		}
		if charges, receipts := count["charge_card"][id], count["send_receipt"][id]; charges != 1 || receipts != want {
			b.problem("order %s is %s and has %d charge_card and %d send_receipt intents", id, order.state, charges, receipts)
		}
	}
}

// checkBytes expects the same bytes in each call with the same key.
func (b *books) checkBytes(ledger samekeytest.Ledger) {
	body := map[string]string{}
	for _, call := range ledger.Calls {
		if have, again := body[call.Key]; again && have != call.BodyHash {
			b.problem("delivery key %s was sent with two bodies", call.Key)
		}
		body[call.Key] = call.BodyHash
	}
}

// countKills counts the open calls of each worker at its kill: those that are open in the vendor's ledger at that
// moment, for orders whose intents the worker had claimed.
func (b *books) countKills(e evidence) {
	for _, k := range e.kills {
		ledger := e.payments
		if k.action == "send_receipt" {
			ledger = e.mails
		}
		open := map[string]bool{}
		for _, call := range ledger.Calls {
			order, _ := uuid.Parse(call.Identity)
			if k.held[order] && call.Arrived.Before(k.at) && (call.Ended == nil || call.Ended.After(k.at)) {
				open[call.Identity] = true
			}
		}
		b.open = append(b.open, len(open))
		b.held += k.intents
		b.recovery = max(b.recovery, k.last.Sub(k.at))
	}
}

func byOrder(records []samekeytest.VendorRecord) map[uuid.UUID]int {
	count := map[uuid.UUID]int{}
	for _, r := range records {
		id, _ := uuid.Parse(r.Identity)
		count[id]++
	}
	return count
}

// played counts the faults by kind. If the client disconnected before the fault was played, the call does not count,
// unless the fault is a wait.
func played(ledgers ...samekeytest.Ledger) map[string]int {
	waits := []string{"hang", "hang_after", "late", "slow"}
	count := map[string]int{}
	for _, ledger := range ledgers {
		for _, call := range ledger.Calls {
			kind, _, _ := strings.Cut(string(call.Fault), "(")
			if kind != "" && (!call.ClientGone || slices.Contains(waits, kind)) {
				count[kind]++
			}
		}
	}
	return count
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
