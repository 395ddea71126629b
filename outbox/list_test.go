package outbox_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/samekey/samekey/outbox"
	"github.com/samekey/samekey/samekeytest"
)

// list returns the ids of all pages, and fails on an empty page that is not the last.
func list(t testing.TB, on *samekeytest.DB, f outbox.Filter) (ids []uuid.UUID) {
	t.Helper()
	for {
		page, err := outbox.List(t.Context(), on, f)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range page.Entries {
			ids = append(ids, e.ID)
		}
		if page.Next == uuid.Nil {
			return ids
		}
		f.After = page.Next
	}
}

func TestListFilters(t *testing.T) {
	on := newGuardedDB(t)
	byStatus := map[outbox.Status][]uuid.UUID{}
	var all []uuid.UUID
	for i, status := range slices.Concat(outbox.Statuses(), outbox.Statuses()) {
		in := outbox.Intent{Action: "charge_card", Key: newKey(t, fmt.Sprint("order-", i))}
		if i%2 == 1 {
			in = outbox.Intent{Action: "send_mail", Part: "shop-17", Key: newKey(t, "order-0", "globex", fmt.Sprint(i))}
		}
		if status == outbox.StatusBlocked {
			in.OrderingKey = "o"
		}
		id := insert(t, on, in)
		force(t, on, id, status, true, true)
		byStatus[status] = append([]uuid.UUID{id}, byStatus[status]...)
		all = append([]uuid.UUID{id}, all...)
	}
	expect := func(f outbox.Filter, want []uuid.UUID) {
		t.Helper()
		for _, limit := range []int{0, 1, 3} {
			f.Limit = limit
			if got := list(t, on, f); !slices.Equal(got, want) {
				t.Errorf("%+v: %d intents, want %d:\n%v\n%v", f, len(got), len(want), got, want)
			}
		}
	}
	expect(outbox.Filter{}, all)
	for status, ids := range byStatus {
		expect(outbox.Filter{Status: status}, ids)
		expect(outbox.Filter{Status: status, Scope: "acme/orders.create", Action: "send_mail"}, nil)
		code := "timeout"
		if status.Finished() {
			code = "200"
		}
		expect(outbox.Filter{Status: status, Code: code}, ids)
		expect(outbox.Filter{Status: status, Code: "503"}, nil)
		expect(outbox.Filter{Status: status, OlderThan: time.Hour}, nil)
		expect(outbox.Filter{Status: status, Action: "charge_card"}, filter(t, on, ids, "charge_card"))
		expect(outbox.Filter{Status: status, Part: "shop-17"}, filter(t, on, ids, "send_mail"))
	}
	expect(outbox.Filter{Action: "send_mail"}, filter(t, on, all, "send_mail"))
	expect(outbox.Filter{Part: "shop-17"}, filter(t, on, all, "send_mail"))
	expect(outbox.Filter{Key: "order-0", Part: "shop-17"}, filter(t, on, all, "send_mail"))
	expect(outbox.Filter{Scope: "globex/3"}, all[len(all)-4:len(all)-3])
	expect(outbox.Filter{Key: "order-2"}, all[len(all)-3:len(all)-2])
	// The value "order-0" is in the scope of one charge and of each mail.
	expect(outbox.Filter{Key: "order-0"}, append(filter(t, on, all, "send_mail"), all[len(all)-1]))
	expect(outbox.Filter{Key: "order-0", Scope: "globex/3"}, all[len(all)-4:len(all)-3])
	expect(outbox.Filter{Key: "order-0", Code: "503"}, nil)
	expect(outbox.Filter{Key: "order-0", Status: outbox.StatusBlocked}, filter(t, on, byStatus[outbox.StatusBlocked], "send_mail"))
	expect(outbox.Filter{Key: "order-0", Status: outbox.StatusDelivered, Code: "200"}, filter(t, on, byStatus[outbox.StatusDelivered], "send_mail"))

	samekeytest.Elapse(t, on, time.Hour)
	expect(outbox.Filter{OlderThan: time.Hour}, all)
	expect(outbox.Filter{OlderThan: 2 * time.Hour}, nil)
	expect(outbox.Filter{Status: outbox.StatusDead, OlderThan: time.Hour}, byStatus[outbox.StatusDead])
}

func filter(t testing.TB, on *samekeytest.DB, ids []uuid.UUID, action string) (kept []uuid.UUID) {
	t.Helper()
	for _, id := range ids {
		if get(t, on, id).Action == action {
			kept = append(kept, id)
		}
	}
	return kept
}

func TestPagesStayStableWhileIntentsAreInsertedAndDecided(t *testing.T) {
	on := newGuardedDB(t)
	var want []uuid.UUID
	dead := func() uuid.UUID {
		id := insert(t, on, outbox.Intent{Action: "charge_card"})
		force(t, on, id, outbox.StatusDead, false, true)
		return id
	}
	for range 9 {
		want = append([]uuid.UUID{dead()}, want...)
	}
	f := outbox.Filter{Status: outbox.StatusDead, Limit: 2}
	var seen []uuid.UUID
	for {
		page, err := outbox.List(t.Context(), on, f)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range page.Entries {
			seen = append(seen, e.ID)
			if err := outbox.Redrive(t.Context(), on, e.ID, ada); err != nil { // leaves the list behind the cursor
				t.Fatal(err)
			}
		}
		dead() // before the cursor
		if page.Next == uuid.Nil {
			break
		}
		f.After = page.Next
	}
	if !slices.Equal(seen, want) {
		t.Errorf("seen\n%v\nwant\n%v", seen, want)
	}
}

func TestListRefusesInvalidFilters(t *testing.T) {
	for want, f := range map[string]outbox.Filter{
		"Limit is -1":           {Limit: -1},
		"Limit is 1001":         {Limit: 1001},
		"OlderThan is negative": {OlderThan: -1},
		`Status is "done"`:      {Status: "done"},
		"Code needs a Status":   {Code: "503"},
		"Action must be text":   {Action: "a\x00"},
		"Key must be text":      {Key: "\xff"},
		"Scope must be text":    {Scope: "\xff"},
		"Code must be text":     {Code: "\xff", Status: outbox.StatusDead},
	} {
		if _, err := outbox.List(t.Context(), noSQL{}, f); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

func TestGetShowsTheWholeTimeline(t *testing.T) {
	on := newGuardedDB(t)
	w := newWorker(t, on, 1)
	id := insert(t, on, outbox.Intent{Action: "charge_card", Payload: []byte(`{"a": 1}`), TraceContext: "00-1-2-3"})
	w.settle(w.claimOne("charge_card", true), outbox.StatusDead, "dead", "401")
	if err := outbox.Redrive(t.Context(), on, id, ada); err != nil {
		t.Fatal(err)
	}
	c := w.claimOne("charge_card", true)
	if e := get(t, on, id); e.Status != outbox.StatusLeased || e.LeasedBy != 1 || e.LeaseUntil.IsZero() || e.FirstSentAt.IsZero() || e.Attempt != 3 {
		t.Errorf("while it is sent: %+v", e)
	}
	w.settle(c, outbox.StatusDelivered, "delivered", "200")
	e := get(t, on, id)
	var line []string
	for _, event := range e.History {
		line = append(line, event.Event+"/"+event.Outcome+"/"+event.Code+"/"+event.Actor)
	}
	if got, want := strings.Join(line, " "), "attempt/dead/401/ redriven///ada attempt/delivered/200/"; got != want {
		t.Errorf("history %q, want %q", got, want)
	}
	if e.Status != outbox.StatusDelivered || e.FinishedAt.IsZero() || e.Code != "200" || string(e.Payload) != `{"a": 1}` || e.TraceContext != "00-1-2-3" {
		t.Errorf("%+v", e)
	}
	if last := e.History[2]; last.FinalStatus != outbox.StatusDelivered || last.StartedAt.IsZero() || last.Worker != 1 || !last.At.Equal(e.FinishedAt) {
		t.Errorf("%+v", last)
	}
	if _, err := outbox.Get(t.Context(), on, uuid.New()); !errors.Is(err, outbox.ErrNotFound) {
		t.Errorf("got %v, want ErrNotFound", err)
	}
}
