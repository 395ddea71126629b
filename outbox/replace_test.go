package outbox_test

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/samekey/samekey/internal/db"
	"github.com/samekey/samekey/internal/dbtest"
	"github.com/samekey/samekey/outbox"
	"github.com/samekey/samekey/samekeytest"
)

// died inserts an intent that is dead after one attempt with this outcome.
func died(t *testing.T, on *samekeytest.DB, w *worker, outcome string, in outbox.Intent) uuid.UUID {
	t.Helper()
	id := insert(t, on, in)
	c := w.claimOne(in.Action, true)
	if c.ID != id || w.settle(c, outbox.StatusDead, outcome, "400") != 1 {
		t.Fatal("the attempt was not settled")
	}
	return id
}

func replace(t *testing.T, on outbox.DB, id uuid.UUID, r outbox.Replacement) uuid.UUID {
	t.Helper()
	successor, err := outbox.Replace(t.Context(), on, id, r, ada)
	if err != nil {
		t.Fatal(err)
	}
	return successor
}

func pgError(t *testing.T, err error) *pgconn.PgError {
	t.Helper()
	var pg *pgconn.PgError
	if !errors.As(err, &pg) {
		t.Errorf("the error is %v, want one of Postgres", err)
		return &pgconn.PgError{}
	}
	return pg
}

func TestReplaceWritesASuccessorInItsPlace(t *testing.T) {
	on := newGuardedDB(t)
	w := newWorker(t, on, 7)
	key := newKey(t, "order-1")
	in := outbox.Intent{Key: key, Action: "charge", Part: "1", Payload: []byte(`{"amount":-5}`), OrderingKey: "order-1", Subject: "booking/42",
		Headers: map[string]string{"X-Tenant": "acme"}, RequestedBy: "bob"}
	id := died(t, on, w, "dead", in)
	behind := insert(t, on, outbox.Intent{Key: key, Action: "charge", Part: "2", Payload: []byte(`{}`), OrderingKey: "order-1"})

	successor := replace(t, on, id, outbox.Replacement{Payload: []byte(`{"amount":5}`)})
	was, is := get(t, on, id), get(t, on, successor)
	if was.Status != outbox.StatusCancelled || was.ReplacedBy != successor || is.Replaces != id || is.Status != outbox.StatusPending {
		t.Fatalf("%+v\n%+v", was, is)
	}
	if last := was.History[len(was.History)-1]; last.Event != "replaced" || last.Actor != ada.Actor || last.DBUser == "" || last.Reason != ada.Reason {
		t.Errorf("the history ends with %+v", last)
	}
	if is.Key != key || is.Part != "1" || is.Subject != in.Subject || is.Headers["X-Tenant"] != "acme" || is.RequestedBy != "bob" ||
		is.OrderingKey != "order-1" || string(is.Payload) != `{"amount":5}` {
		t.Errorf("the successor is %+v", is)
	}
	if is.DeliveryKey == was.DeliveryKey || is.DeliveryKey.Version() != 8 {
		t.Errorf("the delivery key is %v", is.DeliveryKey)
	}
	if derived := dbtest.Value[uuid.UUID](t, on, `select samekey.replacement_key($1)`, was.DeliveryKey); derived != is.DeliveryKey {
		t.Errorf("the delivery key %v is not derived from the first one's", is.DeliveryKey)
	}
	if e := get(t, on, behind); e.Status != outbox.StatusBlocked {
		t.Errorf("the next intent of the order is %s", e.Status)
	}

	// The request again: with its own payload, and with the corrected one.
	for _, payload := range []string{`{"amount":-5}`, `{"amount":5}`} {
		again := in
		again.Payload = []byte(payload)
		if got := insert(t, on, again); got != successor {
			t.Errorf("inserting %s again returned %v, want the successor", payload, got)
		}
	}
	again := in
	again.Payload = []byte(`{"amount":6}`)
	if _, err := outbox.Insert(t.Context(), begin(t, on), again); !errors.As(err, new(*outbox.ConflictError)) {
		t.Errorf("inserting a third payload: %v", err)
	}

	// A second replacement: the chain has one end.
	c := w.claimOne("charge", true)
	if c.ID != successor || w.settle(c, outbox.StatusDead, "dead", "400") != 1 {
		t.Fatal("the successor was not sent")
	}
	third := replace(t, on, successor, outbox.Replacement{})
	if e := get(t, on, third); !bytes.Equal(e.Payload, is.Payload) || e.Replaces != successor {
		t.Errorf("the third is %+v", e)
	}
	if got := insert(t, on, in); got != third {
		t.Errorf("inserting again returned %v, want the third", got)
	}
	_, err := outbox.Replace(t.Context(), on, id, outbox.Replacement{}, ada)
	refusedAs(t, "replaced already", err, outbox.StatusCancelled)
	c = w.claimOne("charge", true)
	if w.settle(c, outbox.StatusDelivered, "delivered", "200") != 1 {
		t.Fatal("the third was not settled")
	}
}

// An attempt that may have taken effect forbids a replacement, until a person resolves the intent as not sent.
func TestReplaceNeedsProofThatNoVendorActed(t *testing.T) {
	on := newGuardedDB(t)
	w := newWorker(t, on, 7)
	for _, outcome := range []string{"dead", "retry", "unsent", "awaiting_approval"} {
		replace(t, on, died(t, on, w, outcome, outbox.Intent{Action: "a-" + outcome[:3], Payload: []byte(`{}`)}), outbox.Replacement{})
	}
	for _, outcome := range []string{"unknown", "accepted", "absent", "parked"} {
		id := died(t, on, w, outcome, outbox.Intent{Action: "b-" + outcome[:3], Payload: []byte(`{}`)})
		_, err := outbox.Replace(t.Context(), on, id, outbox.Replacement{}, ada)
		refusedAs(t, outcome, err, outbox.StatusDead)
		if err := outbox.Resolve(t.Context(), on, id, outbox.Resolution{Outcome: outbox.NotSent}, ada); err != nil {
			t.Fatal(err)
		}
		replace(t, on, id, outbox.Replacement{})
	}

	// A worker died in the first attempt, and the second one was refused: the first may have taken effect.
	id := insert(t, on, outbox.Intent{Action: "orphaned", Payload: []byte(`{}`)})
	w.claimOne("orphaned", true)
	if _, err := on.Exec(t.Context(), `update samekey.outbox_queue set lease_until = now() - interval '1 s' where id = $1`, id); err != nil {
		t.Fatal(err)
	}
	if _, err := w.q.OutboxQueueRelease(t.Context(), db.OutboxQueueReleaseParams{Holder: w.id, MaxCount: 10}); err != nil {
		t.Fatal(err)
	}
	if c := w.claimOne("orphaned", true); w.settle(c, outbox.StatusDead, "dead", "400") != 1 {
		t.Fatal("not settled")
	}
	_, err := outbox.Replace(t.Context(), on, id, outbox.Replacement{}, ada)
	refusedAs(t, "an attempt of a dead worker", err, outbox.StatusDead)

	for _, status := range []outbox.Status{outbox.StatusPending, outbox.StatusUnknown, outbox.StatusAwaitingApproval, outbox.StatusLeased, outbox.StatusDelivered} {
		id := insert(t, on, outbox.Intent{Action: "other", Payload: []byte(`{}`)})
		force(t, on, id, status, false, true)
		_, err := outbox.Replace(t.Context(), on, id, outbox.Replacement{}, ada)
		refusedAs(t, string(status), err, status)
	}
	if _, err := outbox.Replace(t.Context(), on, uuid.New(), outbox.Replacement{}, ada); !errors.Is(err, outbox.ErrNotFound) {
		t.Errorf("an intent that does not exist: %v", err)
	}
}

func TestReplaceChecksPayloadAndDeadline(t *testing.T) {
	on := newGuardedDB(t)
	w := newWorker(t, on, 7)
	id := died(t, on, w, "dead", outbox.Intent{Action: "charge", Payload: []byte(`{}`), Deadline: time.Now().Add(time.Hour)})
	if _, err := outbox.Replace(t.Context(), on, id, outbox.Replacement{Payload: []byte(`{`)}, ada); !errors.As(err, new(*outbox.IntentError)) {
		t.Errorf("a payload that is not JSON: %v", err)
	}
	for column, call := range map[string]string{
		"payload":      `select samekey.replace_payload($1, '{', 'ada', 'wrong amount')`,
		"content_type": `select samekey.replace_payload($1, '{}', 'ada', 'wrong amount', content_type => 'json')`,
		"deadline":     `select samekey.replace($1, 'ada', 'wrong amount', deadline => now() - interval '1 s')`,
		"reason":       `select samekey.replace($1, 'ada', '')`,
	} {
		_, err := on.Exec(t.Context(), call, id)
		if got := pgError(t, err); got.Code != "22023" || got.ColumnName != column {
			t.Errorf("%s: %v, column %q", call, err, got.ColumnName)
		}
	}
	if _, err := on.Exec(t.Context(), `update samekey.outbox set deadline = now() - interval '1 s' where id = $1`, id); err != nil {
		t.Fatal(err)
	}
	if _, err := outbox.Replace(t.Context(), on, id, outbox.Replacement{}, ada); err == nil {
		t.Error("the deadline has passed, and the successor would never be sent")
	}
	later := time.Now().Add(time.Hour).Round(time.Millisecond)
	if e := get(t, on, replace(t, on, id, outbox.Replacement{Deadline: later})); !e.Deadline.Equal(later) {
		t.Errorf("the deadline is %v", e.Deadline)
	}
}

// Another payload is another effect: it needs the approver, and no login that had a part in it may approve it.
func TestReplaceOfThePayloadNeedsTheApprover(t *testing.T) {
	on := samekeytest.NewDB(t)
	l := newLogins(t, on)
	w := newWorker(t, on, 7)
	id := died(t, on, w, "dead", outbox.Intent{Action: "pay_out", Payload: []byte(`{}`)})
	other := outbox.Replacement{Payload: []byte(`{"amount":5}`)}
	if _, err := outbox.Replace(t.Context(), l.operator, id, other, ada); pgError(t, err).Code != "42501" {
		t.Errorf("the operator replaced a payload: %v", err)
	}
	for name, pool := range map[string]outbox.DB{"application": l.app, "worker": l.worker} {
		if _, err := outbox.Replace(t.Context(), pool, id, outbox.Replacement{}, ada); pgError(t, err).Code != "42501" {
			t.Errorf("the %s replaced an intent: %v", name, err)
		}
	}
	successor := replace(t, l.approver, id, other)
	force(t, on, successor, outbox.StatusAwaitingApproval, false, false)
	refusedAs(t, "by the login that replaced it", outbox.Approve(t.Context(), l.approver, successor, ada), outbox.StatusAwaitingApproval)

	force(t, on, successor, outbox.StatusDead, false, false)
	third := replace(t, l.operator, successor, outbox.Replacement{})
	force(t, on, third, outbox.StatusAwaitingApproval, false, false)
	refusedAs(t, "by the author of its payload", outbox.Approve(t.Context(), l.approver, third, ada), outbox.StatusAwaitingApproval)
	if err := outbox.Approve(t.Context(), on, third, ada); err == nil {
		t.Error("the writer of the first one approved the third")
	}
}

// The vendor delivered the first one after all, as its event says: the successor is held before it is sent.
func TestEventForAReplacedIntentHoldsItsSuccessor(t *testing.T) {
	on := newGuardedDB(t)
	w := newWorker(t, on, 7)
	for name, before := range map[string]outbox.Status{"pending": outbox.StatusPending, "approval": outbox.StatusAwaitingApproval, "dead": outbox.StatusDead} {
		id := died(t, on, w, "dead", outbox.Intent{Action: "charge-" + name, Payload: []byte(`{}`)})
		successor := replace(t, on, replace0(t, on, w, id), outbox.Replacement{})
		force(t, on, successor, before, false, true)
		if err := outbox.Resolve(t.Context(), on, id, outbox.Resolution{Outcome: outbox.Delivered, Reference: "ch_1"}, ada); err != nil {
			t.Fatal(err)
		}
		e := get(t, on, successor)
		if last := e.History[len(e.History)-1]; e.Status != outbox.StatusParked || e.Code != "predecessor_delivered" || last.Event != "held" {
			t.Errorf("%s: the successor is %s, its last event %+v", name, e.Status, last)
		}
		if e := get(t, on, id); e.Status != outbox.StatusCancelled || e.Reference != "ch_1" {
			t.Errorf("%s: the first one is %+v", name, e)
		}
		if len(w.claim(nil, "charge-"+name, true)) != 0 {
			t.Errorf("%s: the successor is sent", name)
		}
	}
}

// The event comes when the successor is being sent, or was sent: the effect may be there twice.
func TestEventForAReplacedIntentWarnsOfTwoEffects(t *testing.T) {
	on := newGuardedDB(t)
	w := newWorker(t, on, 7)
	for action, test := range map[string]struct {
		sent  func(successor uuid.UUID)
		is    outbox.Status
		warns bool
	}{
		"not_sent":  {func(uuid.UUID) {}, outbox.StatusParked, false},
		"leased":    {func(uuid.UUID) { w.claimOne("leased", true) }, outbox.StatusLeased, true},
		"sent":      {func(id uuid.UUID) { force(t, on, id, outbox.StatusPending, true, true) }, outbox.StatusParked, true},
		"delivered": {func(id uuid.UUID) { force(t, on, id, outbox.StatusDelivered, true, true) }, outbox.StatusDelivered, true},
		"cancelled": {func(id uuid.UUID) { force(t, on, id, outbox.StatusCancelled, false, true) }, outbox.StatusCancelled, false},
	} {
		if _, err := on.Exec(t.Context(), `insert into samekey.actions (action, attention) values ($1, true)`, action); err != nil {
			t.Fatal(err)
		}
		id := died(t, on, w, "dead", outbox.Intent{Action: action, Payload: []byte(`{}`)})
		successor := replace(t, on, id, outbox.Replacement{})
		test.sent(successor)
		var warnings []string
		config := on.Pool.Config().ConnConfig.Copy()
		config.OnNotice = func(_ *pgconn.PgConn, n *pgconn.Notice) {
			warnings = append(warnings, n.Severity+" "+n.Message+" "+n.Hint)
		}
		conn, err := pgx.ConnectConfig(t.Context(), config)
		if err != nil {
			t.Fatal(err)
		}
		err = outbox.Resolve(t.Context(), conn, id, outbox.Resolution{Outcome: outbox.Delivered}, ada)
		if err := errors.Join(err, conn.Close(t.Context())); err != nil {
			t.Fatal(err)
		}
		warned := len(warnings) == 1 && strings.Contains(warnings[0], "WARNING samekey: resolve") && strings.Contains(warnings[0], successor.String())
		if warned != test.warns || len(warnings) > 1 {
			t.Errorf("%s: the database said %q", action, warnings)
		}
		if e := get(t, on, successor); e.Status != test.is {
			t.Errorf("%s: the successor is %s, want %s", action, e.Status, test.is)
		}
		var code string
		if err := on.QueryRow(t.Context(), `select coalesce((select code from samekey.outbox_attention where intent_id = $1 and event = 'resolved'), '')`,
			id).Scan(&code); err != nil {
			t.Fatal(err)
		}
		if wants := test.warns && test.is != outbox.StatusParked; wants != (code == "successor_sent") {
			t.Errorf("%s: the attention event has the code %q", action, code)
		}
	}
}

// Redriven with many others, a successor that is held would be a second effect.
func TestHeldSuccessorIsNotRedriven(t *testing.T) {
	on := newGuardedDB(t)
	w := newWorker(t, on, 7)
	id := died(t, on, w, "dead", outbox.Intent{Action: "charge", Payload: []byte(`{}`)})
	successor := replace(t, on, id, outbox.Replacement{})
	if err := outbox.Resolve(t.Context(), on, id, outbox.Resolution{Outcome: outbox.Delivered}, ada); err != nil {
		t.Fatal(err)
	}
	bulk := outbox.RedriveAll(outbox.Filter{}, ada)
	plan, err := bulk.Plan(t.Context(), on)
	if n, runErr := bulk.Run(t.Context(), on); n != 0 || plan.Intents != 0 || errors.Join(err, runErr) != nil {
		t.Errorf("%d intents are redriven, planned %+v, %v, %v", n, plan, err, runErr)
	}
	refusedAs(t, "redrive", outbox.Redrive(t.Context(), on, successor, ada), outbox.StatusParked)
	_, err = outbox.Replace(t.Context(), on, successor, outbox.Replacement{}, ada)
	refusedAs(t, "replace", err, outbox.StatusParked)
	if err := outbox.Resolve(t.Context(), on, successor, outbox.Resolution{Outcome: outbox.NotSent}, ada); err != nil {
		t.Fatal(err)
	}
	if err := outbox.Redrive(t.Context(), on, successor, ada); err != nil {
		t.Error(err)
	}
}

// replace0 replaces an intent and lets the successor die.
func replace0(t *testing.T, on *samekeytest.DB, w *worker, id uuid.UUID) uuid.UUID {
	t.Helper()
	successor := replace(t, on, id, outbox.Replacement{})
	if c := w.claimOne(get(t, on, id).Action, true); c.ID != successor || w.settle(c, outbox.StatusDead, "dead", "400") != 1 {
		t.Fatal("the successor was not settled")
	}
	return successor
}

// Two people, and a person with a late answer, meet at one row.
func TestReplaceWaitsForTheRow(t *testing.T) {
	on := newGuardedDB(t)
	w := newWorker(t, on, 7)
	id := died(t, on, w, "dead", outbox.Intent{Action: "charge", Payload: []byte(`{}`)})
	tx := begin(t, on)
	successor := replace(t, tx, id, outbox.Replacement{})
	second := make(chan error, 1)
	go func() { second <- outbox.Redrive(t.Context(), on, id, ada) }()
	eventually(t, "the redrive waits", func() bool { return waiting(t, on) == 1 })
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	refusedAs(t, "the redrive", <-second, outbox.StatusCancelled)
	if e := get(t, on, successor); e.Status != outbox.StatusPending {
		t.Errorf("the successor is %s", e.Status)
	}
}
