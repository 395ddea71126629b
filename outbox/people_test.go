package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/samekey/samekey/outbox"
)

// what a person can do, by name.
var verbs = map[string]func(ctx context.Context, on outbox.DB, id uuid.UUID) error{
	"cancel":  func(ctx context.Context, on outbox.DB, id uuid.UUID) error { return outbox.Cancel(ctx, on, id, ada) },
	"reject":  func(ctx context.Context, on outbox.DB, id uuid.UUID) error { return outbox.Reject(ctx, on, id, ada) },
	"approve": func(ctx context.Context, on outbox.DB, id uuid.UUID) error { return outbox.Approve(ctx, on, id, ada) },
	"redrive": func(ctx context.Context, on outbox.DB, id uuid.UUID) error { return outbox.Redrive(ctx, on, id, ada) },
	"resolve delivered": func(ctx context.Context, on outbox.DB, id uuid.UUID) error {
		return outbox.Resolve(ctx, on, id, outbox.Resolution{Outcome: outbox.Delivered, Code: "200", Response: []byte(`{"id":"ch_1"}`)}, ada)
	},
	"resolve refused": func(ctx context.Context, on outbox.DB, id uuid.UUID) error {
		return outbox.Resolve(ctx, on, id, outbox.Resolution{Outcome: outbox.Refused, Code: "402"}, ada)
	},
	"resolve not sent": func(ctx context.Context, on outbox.DB, id uuid.UUID) error {
		return outbox.Resolve(ctx, on, id, outbox.Resolution{Outcome: outbox.NotSent}, ada)
	},
}

// event is what each verb leaves in the history.
var events = map[string]string{
	"cancel": "cancelled", "reject": "rejected", "approve": "approved", "redrive": "redriven",
	"resolve delivered": "resolved", "resolve refused": "resolved", "resolve not sent": "resolved",
}

// allowed says where each verb leads from each state, as "verb>state". What is
// not in it is refused.
func allowed(status outbox.Status, sent, repeatable bool) string {
	resolves := " resolve delivered>answered, resolve refused>answered,"
	switch status {
	case outbox.StatusPending, outbox.StatusBlocked:
		if sent {
			return ""
		}
		return " cancel>cancelled,"
	case outbox.StatusAwaitingApproval:
		if sent {
			return " approve>pending,"
		}
		return " cancel>cancelled, reject>cancelled, approve>pending,"
	case outbox.StatusUnknown:
		return resolves + " resolve not sent>parked,"
	case outbox.StatusParked, outbox.StatusDead:
		resolves += fmt.Sprintf(" resolve not sent>%s,", status)
		switch {
		case sent && repeatable:
			return resolves + " redrive>pending,"
		case sent:
			return resolves
		}
		return resolves + " cancel>cancelled, redrive>pending,"
	}
	return ""
}

func TestDecisionsAllowedInEachState(t *testing.T) {
	on := newGuardedDB(t)
	for _, status := range outbox.Statuses() {
		for _, sent := range []bool{false, true} {
			for _, repeatable := range []bool{false, true} {
				for verb, do := range verbs {
					name := fmt.Sprintf("%s, sent %v, repeatable %v: %s", status, sent, repeatable, verb)
					in := outbox.Intent{Action: "charge_card"}
					if status == outbox.StatusBlocked {
						in.OrderingKey = name
						insert(t, on, in)
					}
					id := insert(t, on, in)
					force(t, on, id, status, sent, repeatable)
					before := get(t, on, id)
					err := do(t.Context(), on, id)
					after := get(t, on, id)
					_, to, ok := strings.Cut(allowed(status, sent, repeatable), " "+verb+">")
					to, _, _ = strings.Cut(to, ",")
					if !ok {
						refusedAs(t, name, err, status)
						if fmt.Sprint(before) != fmt.Sprint(after) {
							t.Errorf("%s: refused, and yet changed:\n%+v\n%+v", name, before, after)
						}
						continue
					}
					if err != nil {
						t.Errorf("%s: %v", name, err)
						continue
					}
					last := after.History[len(after.History)-1]
					switch {
					case string(after.Status) != to:
						t.Errorf("%s: it is %s, want %s", name, after.Status, to)
					case last.Event != events[verb] || last.Actor != ada.Actor || last.Reason != ada.Reason:
						t.Errorf("%s: the history says %+v", name, last)
					case !after.Status.Finished() && after.Attempt <= before.Attempt:
						t.Errorf("%s: attempt %d after %d: a late settle would match", name, after.Attempt, before.Attempt)
					}
				}
			}
		}
	}
}

// refusedAs expects a StateError that names the state.
func refusedAs(t *testing.T, name string, err error, status outbox.Status) {
	t.Helper()
	var state *outbox.StateError
	if !errors.As(err, &state) {
		t.Errorf("%s: got %v, want a StateError", name, err)
		return
	}
	if state.Status != status || state.Do == "" {
		t.Errorf("%s: the error says %q", name, err)
	}
}

func TestDecisionsNeedActorReasonAndIntent(t *testing.T) {
	on := newGuardedDB(t)
	id := insert(t, on, outbox.Intent{Action: "charge_card"})
	for name, by := range map[string]outbox.By{
		"Actor is empty":       {Reason: "r"},
		"Reason is empty":      {Actor: "a", Reason: " \n"},
		"Actor is 256 bytes":   {Actor: strings.Repeat("a", 256), Reason: "r"},
		"Reason is 4097 bytes": {Actor: "a", Reason: strings.Repeat("r", 4097)},
		"Reason must be text":  {Actor: "a", Reason: "a\x00b"},
		"Actor must be text":   {Actor: "a\xff", Reason: "r"},
	} {
		if err := outbox.Cancel(t.Context(), on, id, by); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("got %v, want %q", err, name)
		}
		if _, err := outbox.RedriveAll(outbox.Filter{}, by).Run(t.Context(), on); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("got %v, want %q", err, name)
		}
	}
	for verb, do := range verbs {
		if err := do(t.Context(), on, uuid.New()); !errors.Is(err, outbox.ErrNotFound) {
			t.Errorf("%s: got %v, want ErrNotFound", verb, err)
		}
	}
	long := outbox.By{Actor: strings.Repeat("a", 255), Reason: strings.Repeat("r", 4096)}
	if err := outbox.Cancel(t.Context(), on, id, long); err != nil {
		t.Error(err)
	}
}

func TestRedriveKeepsDeliveryKeyAndBytes(t *testing.T) {
	on := newGuardedDB(t)
	w := newWorker(t, on, 1)
	id := insert(t, on, outbox.Intent{Action: "charge_card", Payload: []byte(`{"amount": 1.00}`)})
	first := w.claimOne("charge_card", true)
	w.settle(first, outbox.StatusDead, "dead", "404")
	for range 2 {
		if err := outbox.Redrive(t.Context(), on, id, ada); err != nil {
			t.Fatal(err)
		}
		var state *outbox.StateError
		if err := outbox.Redrive(t.Context(), on, id, ada); !errors.As(err, &state) || state.Status != outbox.StatusPending {
			t.Fatalf("a second redrive before the attempt: %v, want a StateError", err)
		}
		c := w.claimOne("charge_card", true)
		if c.DeliveryKey != first.DeliveryKey || string(c.Payload) != `{"amount": 1.00}` || c.AttemptsUsed != 0 || c.Attempt <= first.Attempt {
			t.Errorf("the redriven claim is %+v", c)
		}
		if more := w.claim(nil, "charge_card", true); len(more) != 0 {
			t.Errorf("claimed again: %v", more)
		}
		w.settle(c, outbox.StatusDead, "dead", "404")
	}
	if n := count(t, on, "select count(*) from samekey.outbox_history where event = 'attempt'"); n != 3 {
		t.Errorf("%d attempts, want 3: the first and one per redrive", n)
	}
}

func TestAResolvedIntentHoldsTheAnswerThatItsApplyGets(t *testing.T) {
	on := newGuardedDB(t)
	w := newWorker(t, on, 1)
	id := insert(t, on, outbox.Intent{Action: "charge_card"})
	w.settle(w.claimOne("charge_card", false), outbox.StatusUnknown, "unknown", "timeout")
	w.settle(w.claimOne("charge_card", false), outbox.StatusParked, "unknown", "")
	err := outbox.Resolve(t.Context(), on, id, outbox.Resolution{
		Outcome: outbox.Delivered, Code: "200", Response: []byte("ch_1"), ResponseType: "text/plain",
	}, ada)
	if err != nil {
		t.Fatal(err)
	}
	if n := len(w.claim(nil, "charge_card", false)); n != 0 {
		t.Fatal("it is claimed to be sent")
	}
	if c := w.claimAnswered("charge_card"); len(c) != 1 || c[0].ID != id {
		t.Fatalf("claimed to be applied: %v", c)
	}
	answer, err := w.q.OutboxHistoryAnswer(t.Context(), id)
	if err != nil || answer.Outcome != "delivered" || answer.Code != "200" || string(answer.Response) != "ch_1" || answer.ResponseType != "text/plain" {
		t.Errorf("the worker reads %+v, %v", answer, err)
	}
}

func TestRedriveOfAnUnrepeatableNeedsResolveAsNotSent(t *testing.T) {
	on := newGuardedDB(t)
	w := newWorker(t, on, 1)
	id := insert(t, on, outbox.Intent{Action: "wire_money"})
	w.settle(w.claimOne("wire_money", false), outbox.StatusUnknown, "unknown", "timeout")
	w.settle(w.claimOne("wire_money", false), outbox.StatusParked, "unknown", "")
	err := outbox.Redrive(t.Context(), on, id, ada)
	if err == nil || !strings.Contains(err.Error(), "resolve it") {
		t.Fatalf("got %v, want a refusal that says to resolve it", err)
	}
	if n, err := outbox.RedriveAll(outbox.Filter{}, ada).Run(t.Context(), on); n != 0 || err != nil {
		t.Fatalf("RedriveAll made %d due, %v", n, err)
	}
	if err := outbox.Resolve(t.Context(), on, id, outbox.Resolution{Outcome: outbox.NotSent}, ada); err != nil {
		t.Fatal(err)
	}
	if e := get(t, on, id); !e.FirstSentAt.IsZero() || e.Status != outbox.StatusParked {
		t.Errorf("it is %+v", e)
	}
	if err := outbox.Redrive(t.Context(), on, id, ada); err != nil {
		t.Fatal(err)
	}
	if c := w.claimOne("wire_money", false); c.Status != string(outbox.StatusLeased) {
		t.Errorf("claimed as %s", c.Status)
	}
}

func TestCancelOfASentIntentNeedsResolveAsNotSent(t *testing.T) {
	on := newGuardedDB(t)
	w := newWorker(t, on, 1)
	id := insert(t, on, outbox.Intent{Action: "charge_card"})
	w.settle(w.claimOne("charge_card", true), outbox.StatusDead, "dead", "404")
	err := outbox.Cancel(t.Context(), on, id, ada)
	if err == nil || !strings.Contains(err.Error(), "redrive it, or resolve it; resolved as not sent, it can be cancelled") {
		t.Fatalf("got %v, want a refusal that says what can be done", err)
	}
	if err := outbox.Resolve(t.Context(), on, id, outbox.Resolution{Outcome: outbox.NotSent}, ada); err != nil {
		t.Fatal(err)
	}
	if err := outbox.Cancel(t.Context(), on, id, ada); err != nil {
		t.Error(err)
	}
}

func TestCancelAndRejectMakeTheNextOfTheOrderingKeyDue(t *testing.T) {
	on := newGuardedDB(t)
	for verb, status := range map[string]outbox.Status{"cancel": outbox.StatusDead, "reject": outbox.StatusAwaitingApproval} {
		head := insert(t, on, outbox.Intent{Action: "a", OrderingKey: verb})
		next := insert(t, on, outbox.Intent{Action: "b", OrderingKey: verb})
		last := insert(t, on, outbox.Intent{Action: "c", OrderingKey: verb})
		force(t, on, head, status, false, false)
		if err := verbs[verb](t.Context(), on, head); err != nil {
			t.Fatal(err)
		}
		if a, b := get(t, on, next).Status, get(t, on, last).Status; a != outbox.StatusPending || b != outbox.StatusBlocked {
			t.Errorf("%s: the next are %s and %s, want pending and blocked", verb, a, b)
		}
		if err := outbox.Cancel(t.Context(), on, last, ada); err != nil {
			t.Errorf("%s: cancel a blocked one: %v", verb, err)
		}
	}
}

func TestRedriveAllTakesTheOldestFirst(t *testing.T) {
	on := newGuardedDB(t)
	var dead []uuid.UUID
	for i := range 5 {
		dead = append(dead, insert(t, on, outbox.Intent{Action: "charge_card", Payload: i}))
		force(t, on, dead[i], outbox.StatusDead, true, true)
	}
	parked := insert(t, on, outbox.Intent{Action: "charge_card"})
	force(t, on, parked, outbox.StatusParked, false, false)
	sent := insert(t, on, outbox.Intent{Action: "charge_card"})
	force(t, on, sent, outbox.StatusDead, true, false)
	other := insert(t, on, outbox.Intent{Action: "send_mail", Key: newKey(t, "order-1", "globex", "x")})
	force(t, on, other, outbox.StatusDead, true, true)

	redrive := func(f outbox.Filter, want int) {
		t.Helper()
		if n, err := outbox.RedriveAll(f, ada).Run(t.Context(), on); n != want || err != nil {
			t.Errorf("%+v: %d, %v; want %d", f, n, err, want)
		}
	}
	redrive(outbox.Filter{Action: "charge_card", Status: outbox.StatusDead, Limit: 2}, 2)
	for i, id := range dead {
		if pending := get(t, on, id).Status == outbox.StatusPending; pending != (i < 2) {
			t.Errorf("intent %d: pending = %v: not the oldest were taken", i, pending)
		}
	}
	redrive(outbox.Filter{OlderThan: 1e12}, 0)
	redrive(outbox.Filter{Code: "503"}, 0)
	redrive(outbox.Filter{Scope: "nobody/x"}, 0)
	redrive(outbox.Filter{Key: "order-1", Scope: "globex/x", Code: "timeout"}, 1)
	redrive(outbox.Filter{Action: "charge_card"}, 4)
	redrive(outbox.Filter{}, 0)
	if s := get(t, on, sent).Status; s != outbox.StatusDead {
		t.Errorf("what may have been sent and must not be sent twice is %s, want dead", s)
	}
	if _, err := outbox.RedriveAll(outbox.Filter{Status: outbox.StatusPending}, ada).Run(t.Context(), on); err == nil {
		t.Error("redriving pending intents is no error")
	}
}

func TestRequesterCannotApprove(t *testing.T) {
	on := newGuardedDB(t)
	id := insert(t, on, outbox.Intent{Action: "pay_out", RequestedBy: ada.Actor})
	force(t, on, id, outbox.StatusAwaitingApproval, false, false)
	refusedAs(t, "by its requester", outbox.Approve(t.Context(), on, id, ada), outbox.StatusAwaitingApproval)
	if e := get(t, on, id); e.Status != outbox.StatusAwaitingApproval || e.RequestedBy != ada.Actor || len(e.History) != 0 {
		t.Errorf("%+v", e)
	}
	if err := outbox.Approve(t.Context(), on, id, outbox.By{Actor: "bob", Reason: "checked the invoice"}); err != nil {
		t.Error(err)
	}
	if e := get(t, on, id); e.Status != outbox.StatusPending {
		t.Errorf("%+v", e)
	}

	// Its requester may take it back.
	other := insert(t, on, outbox.Intent{Action: "pay_out", RequestedBy: ada.Actor})
	force(t, on, other, outbox.StatusAwaitingApproval, false, false)
	if err := outbox.Reject(t.Context(), on, other, ada); err != nil {
		t.Error(err)
	}
	long := outbox.Intent{Key: newKey(t, "k"), Action: "pay_out", Payload: struct{}{}, RequestedBy: strings.Repeat("a", 256)}
	if _, err := outbox.Insert(t.Context(), on, long); err == nil || !strings.Contains(err.Error(), "RequestedBy") {
		t.Errorf("256 bytes: %v", err)
	}
}

func TestGetShowsWhatWasSent(t *testing.T) {
	on := newGuardedDB(t)
	id := insert(t, on, outbox.Intent{Action: "charge_card"})
	if sent := get(t, on, id).Sent; sent.CarriedKey != "" || !sent.CreatedAt.IsZero() {
		t.Errorf("no request was stored: %+v", sent)
	}
	_, err := on.Exec(t.Context(), `insert into samekey.outbox_sends (intent_id, carried_key, request_type, request, message_id) values ($1, 'k25', 'http', 'POST /', '<m@x>')`, id)
	if err != nil {
		t.Fatal(err)
	}
	if sent := get(t, on, id).Sent; sent.CarriedKey != "k25" || string(sent.Request) != "POST /" || sent.RequestType != "http" || sent.MessageID != "<m@x>" || sent.CreatedAt.IsZero() {
		t.Errorf("%+v", sent)
	}
}
