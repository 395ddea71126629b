package outbox_test

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/samekey/samekey"
	"github.com/samekey/samekey/outbox"
	"github.com/samekey/samekey/processed"
	"github.com/samekey/samekey/samekeytest"
)

// bookingSubject names a booking in requests, intents and lists.
func bookingSubject(id int64) string { return fmt.Sprintf("booking/%d", id) }

// happenedTo lists what the outbox knows about a booking, newest first.
func happenedTo(ctx context.Context, pool *pgxpool.Pool, booking int64) ([]outbox.Entry, error) {
	page, err := outbox.List(ctx, pool, outbox.Filter{Subject: bookingSubject(booking)})
	return page.Entries, err
}

// found lists the intents that a filter finds.
func found(t *testing.T, on *samekeytest.DB, f outbox.Filter) (ids []uuid.UUID) {
	t.Helper()
	page, err := outbox.List(t.Context(), on, f)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range page.Entries {
		ids = append(ids, e.ID)
	}
	return ids
}

func TestListBySubjectAndReference(t *testing.T) {
	on := samekeytest.NewDB(t)
	first := insert(t, on, outbox.Intent{Action: "charge_card", Subject: "booking/42"})
	second := insert(t, on, outbox.Intent{Action: "send_mail", Subject: "booking/42"})
	other := insert(t, on, outbox.Intent{Action: "charge_card", Subject: "booking/4"})
	insert(t, on, outbox.Intent{Action: "charge_card"})
	dbExec := func(sql string, args ...any) {
		t.Helper()
		if _, err := on.Exec(t.Context(), sql, args...); err != nil {
			t.Fatal(err)
		}
	}
	dbExec(`delete from samekey.outbox_queue where id = $1`, first)
	dbExec(`insert into samekey.outbox_history (intent_id, event, outcome, reference, final_status) values
		($1, 'attempt', 'accepted', 'ch_1', null), ($1, 'lookup', 'accepted', 'ch_1', null), ($1, 'lookup', 'delivered', 'ch_2', 'delivered'), ($2, 'attempt', 'retry', 'ch_1', null)`, first, other)
	for name, c := range map[string]struct {
		filter outbox.Filter
		want   []uuid.UUID
	}{
		"subject":                        {outbox.Filter{Subject: "booking/42"}, []uuid.UUID{second, first}},
		"subject and limit":              {outbox.Filter{Subject: "booking/42", Limit: 1}, []uuid.UUID{second}},
		"subject, next page":             {outbox.Filter{Subject: "booking/42", After: second}, []uuid.UUID{first}},
		"subject and status":             {outbox.Filter{Subject: "booking/42", Status: outbox.StatusDelivered}, []uuid.UUID{first}},
		"subject and action":             {outbox.Filter{Subject: "booking/42", Action: "send_mail"}, []uuid.UUID{second}},
		"subject and key":                {outbox.Filter{Subject: "booking/42", Key: get(t, on, first).Key.Value}, []uuid.UUID{first}},
		"subject of another intent":      {outbox.Filter{Subject: "booking/4", Key: get(t, on, first).Key.Value}, nil},
		"unknown subject":                {outbox.Filter{Subject: "booking"}, nil},
		"reference":                      {outbox.Filter{Reference: "ch_1"}, []uuid.UUID{other, first}},
		"reference, next page":           {outbox.Filter{Reference: "ch_1", After: other}, []uuid.UUID{first}},
		"reference and subject":          {outbox.Filter{Reference: "ch_1", Subject: "booking/42"}, []uuid.UUID{first}},
		"reference and key":              {outbox.Filter{Reference: "ch_1", Key: get(t, on, other).Key.Value}, []uuid.UUID{other}},
		"reference and status":           {outbox.Filter{Reference: "ch_1", Status: outbox.StatusPending}, []uuid.UUID{other}},
		"reference of a later event":     {outbox.Filter{Reference: "ch_2"}, []uuid.UUID{first}},
		"reference and another's action": {outbox.Filter{Reference: "ch_2", Action: "send_mail"}, nil},
	} {
		if got := found(t, on, c.filter); !slices.Equal(got, c.want) {
			t.Errorf("%s: found %v, want %v", name, got, c.want)
		}
	}
	e := get(t, on, first)
	if e.Subject != "booking/42" || e.Reference != "ch_2" || e.History[0].Reference != "ch_1" {
		t.Errorf("subject %q, reference %q, that of the first event %q", e.Subject, e.Reference, e.History[0].Reference)
	}
}

// A filter that a redrive does not apply would redrive intents of other bookings.
func TestRedriveAllObeysSubjectAndReference(t *testing.T) {
	on := samekeytest.NewDB(t)
	ids := map[string]uuid.UUID{}
	for _, subject := range []string{"booking/1", "booking/2", "booking/3"} {
		ids[subject] = insert(t, on, outbox.Intent{Action: "charge_card", Subject: subject})
	}
	mustExec(t, on, `update samekey.outbox_queue set status = 'dead';
		insert into samekey.outbox_history (intent_id, event, outcome, reference) select id, 'attempt', 'dead', 'ref-' || subject from samekey.outbox`)
	for subject, f := range map[string]outbox.Filter{"booking/1": {Subject: "booking/1"}, "booking/2": {Reference: "ref-booking/2"}} {
		n, err := outbox.RedriveAll(f, ada).Run(t.Context(), on.Pool)
		if err != nil || n != 1 || get(t, on, ids[subject]).Status != outbox.StatusPending {
			t.Errorf("%s: %d redriven, %v", subject, n, err)
		}
	}
	if e := get(t, on, ids["booking/3"]); e.Status != outbox.StatusDead {
		t.Errorf("the third is %s", e.Status)
	}
}

func TestIntentTakesTheRequestsSubject(t *testing.T) {
	on := newGuardedDB(t)
	tx := &keyedTx{begin(t, on), newKey(t, "order-1")}
	for _, c := range []struct{ own, want string }{{"", "booking/42"}, {"invoice/7", "invoice/7"}} {
		id, err := outbox.Insert(t.Context(), tx, outbox.Intent{Action: "charge_card", Part: "p" + c.own, Payload: 1, Subject: c.own})
		if err != nil {
			t.Fatal(err)
		}
		many, err := outbox.InsertMany(t.Context(), tx, []outbox.Intent{{Action: "send_mail", Part: "p" + c.own, Payload: 1, Subject: c.own}})
		if err != nil {
			t.Fatal(err)
		}
		for _, id := range append(many, id) {
			if e, err := outbox.Get(t.Context(), tx, id); err != nil || e.Subject != c.want {
				t.Errorf("subject %q, %v; want %q", e.Subject, err, c.want)
			}
		}
	}
}

// The same intent with another subject is the same intent.
func TestSubjectIsNotCompared(t *testing.T) {
	on := samekeytest.NewDB(t)
	in := outbox.Intent{Key: newKey(t, "order-1"), Action: "charge_card", Payload: 1, Subject: "booking/42"}
	id := insert(t, on, in)
	in.Subject = "booking/43"
	if again := insert(t, on, in); again != id || get(t, on, id).Subject != "booking/42" {
		t.Errorf("another intent, or the subject is now %q", get(t, on, id).Subject)
	}
}

func TestResolveStoresTheReference(t *testing.T) {
	on := samekeytest.NewDB(t)
	id := insert(t, on, outbox.Intent{Action: "charge_card"})
	mustExec(t, on, `update samekey.outbox_queue set status = 'parked'`)
	for _, bad := range []string{"ch_1\n", string(make([]byte, 256))} {
		if err := outbox.Resolve(t.Context(), on.Pool, id, outbox.Resolution{Outcome: outbox.Delivered, Reference: bad}, ada); err == nil {
			t.Errorf("%q was stored", bad)
		}
	}
	if err := outbox.Resolve(t.Context(), on.Pool, id, outbox.Resolution{Outcome: outbox.Delivered, Reference: "ch_123"}, ada); err != nil {
		t.Fatal(err)
	}
	if e := get(t, on, id); e.Reference != "ch_123" || !slices.Equal(found(t, on, outbox.Filter{Reference: "ch_123"}), []uuid.UUID{id}) {
		t.Errorf("the reference is %q", e.Reference)
	}
}

// The intents of a request have its subject, and so has its record.
func TestSubjectOfARequestReachesItsIntents(t *testing.T) {
	on := samekeytest.NewDB(t)
	request := processed.Request{Key: newKey(t, "request-1"), Payload: []byte("{}"), Subject: bookingSubject(42)}
	_, err := processed.Run(t.Context(), on.Pool, request, func(ctx context.Context, tx pgx.Tx) (int, error) {
		if _, err := outbox.Insert(ctx, tx, outbox.Intent{Action: "charge_card", Payload: 1}); err != nil {
			return 0, err
		}
		nested := processed.Request{Key: newKey(t, "request-2"), Payload: []byte("{}")}
		if _, err := processed.Do(ctx, tx, nested, func(ctx context.Context, tx samekey.Tx) (int, error) {
			_, err := outbox.Insert(ctx, tx, outbox.Intent{Action: "send_mail", Payload: 1})
			return 1, err
		}); err != nil {
			return 0, err
		}
		return 1, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if entries, err := happenedTo(t.Context(), on.Pool, 42); err != nil || len(entries) != 2 {
		t.Errorf("%d intents have the subject, want 2, %v", len(entries), err)
	}
	if n := count(t, on, `select count(*) from samekey.processed_events where subject = 'booking/42'`); n != 2 {
		t.Errorf("%d records have the subject, want 2", n)
	}
}
