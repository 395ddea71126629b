package httpvendor

import (
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/samekey/samekey"
	"github.com/samekey/samekey/dispatcher"
	"github.com/samekey/samekey/outbox"
	"github.com/samekey/samekey/samekeytest"
)

// fate is the expected result of an answer: what is stored after the attempt, the status in which the intent rests,
// whether a person can redrive it, and how many requests the vendor has seen after that.
type fate struct {
	stored  string // status, attempts used, and whether the vendor may have seen the key
	rests   string // after the lookups; empty: it is retried
	redrive bool
	calls   int
}

var (
	again        = fate{"pending used=1 sent", "", false, 1}       // an idempotent write whose outcome is unknown
	postpone     = fate{"pending used=0 sent", "", false, 1}       // an idempotent write that is postponed
	postponeOnce = fate{"pending used=0 unsent", "", false, 1}     // postponed, and the vendor did not act
	notDone      = fate{"dead used=1 sent", "dead", true, 2}       // the same key again
	notDoneIs    = fate{"dead used=1 unsent", "dead", true, 2}     // of a write that is sent once: the vendor did not act
	mayHave      = fate{"unknown used=0 sent", "parked", true, 2}  // stuck: a person may send the same key again
	mayHaveOne   = fate{"unknown used=0 sent", "parked", false, 1} // of a write that is sent once: no second call
)

// The result of each answer by class, and what a redrive sends. No other status lets a write that is sent once be sent
// a second time.
func TestAnswersNeverRepeatANonIdempotentWrite(t *testing.T) {
	for _, tc := range []struct {
		wait                   string // Retry-After
		statuses               []int
		read, idempotent, once fate
	}{
		{"", []int{200, 202, 204, 206, 207, 226, 300, 301, 302, 303, 304, 307, 308, 406, 409, 412}, notDone, mayHave, mayHaveOne},
		{"", []int{408, 418, 423, 424, 425, 430, 444, 449, 460, 499, 500, 501, 502, 503, 504, 505, 511, 599, 600, 999}, again, again, mayHaveOne},
		{"5", []int{408, 423, 424, 425, 499, 500, 503}, postpone, postpone, mayHaveOne},
		{"5", []int{302, 409}, notDone, mayHave, mayHaveOne},
		{"", []int{400, 402, 403, 404, 405, 410, 411, 413, 414, 415, 416, 417, 421, 422, 426, 428, 431, 451}, notDone, notDone, notDoneIs},
		{"5", []int{400, 404, 422}, notDone, notDone, notDoneIs},
		{"", []int{401, 407}, postponeOnce, postponeOnce, postponeOnce}, // the first attempt: it starts no key window
		{"5", []int{413}, postpone, postpone, postponeOnce},
	} {
		for class, want := range map[dispatcher.Class]fate{
			dispatcher.Read: tc.read, dispatcher.IdempotentWrite: tc.idempotent, dispatcher.NonIdempotentWrite: tc.once,
		} {
			t.Run(fmt.Sprintf("%v %d %s", class, tc.statuses[0], tc.wait), func(t *testing.T) {
				answersLeadTo(t, class, tc.wait, tc.statuses, want)
			})
		}
	}
}

// These statuses hold the whole account, so each has its own database and worker.
func TestRateLimitMeansNotDone(t *testing.T) {
	for _, tc := range []struct {
		status int
		wait   string
	}{{429, ""}, {429, "2.0"}, {403, "2.0"}, {403, "1"}} {
		for class, want := range map[dispatcher.Class]fate{
			dispatcher.Read: postpone, dispatcher.IdempotentWrite: postpone, dispatcher.NonIdempotentWrite: postponeOnce,
		} {
			t.Run(fmt.Sprintf("%v %d %s", class, tc.status, tc.wait), func(t *testing.T) {
				answersLeadTo(t, class, tc.wait, []int{tc.status}, want)
			})
		}
	}
}

// answersLeadTo sends one intent for each status. The payload tells the vendor what to answer.
func answersLeadTo(t *testing.T, class dispatcher.Class, wait string, statuses []int, want fate) {
	db := database(t)
	var mu sync.Mutex
	calls := map[string]int{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var asked struct{ Status int }
		body, _ := io.ReadAll(r.Body)
		_ = json.Unmarshal(body, &asked)
		mu.Lock()
		calls[r.Header.Get("Idempotency-Key")]++
		mu.Unlock()
		if wait != "" {
			w.Header().Set("Retry-After", wait)
		}
		w.WriteHeader(asked.Status)
	}))
	t.Cleanup(server.Close)
	work := func() {
		t.Helper()
		client := testClient(t, Destination{URL: server.URL, Limits: dispatcher.Limits{BreakAfter: -1}})
		d := dispatcher.New(db.Pool, &dispatcher.Config{Logger: slog.New(slog.NewTextHandler(t.Output(), nil))})
		policy := dispatcher.Policy{Class: class, Backoff: time.Hour, MaxBackoff: time.Hour}
		if class == dispatcher.IdempotentWrite {
			policy.KeyWindow = 24 * time.Hour
		}
		client.register(d, "charge_card", Action{Request: "POST /", Delivered: status(201, 201), Policy: policy})
		if _, err := d.Drain(t.Context()); err != nil {
			t.Fatal(err)
		}
		// Retries come due at random times. They must not be part of the next drain.
		if _, err := db.Exec(t.Context(), "update samekey.outbox_queue set due_at = due_at + interval '1 day' where status = 'pending'"); err != nil {
			t.Fatal(err)
		}
	}
	ids := map[int]uuid.UUID{}
	for _, status := range statuses {
		key, err := samekey.NewKey(fmt.Sprint(status), "test", "effects")
		if err != nil {
			t.Fatal(err)
		}
		err = pgx.BeginFunc(t.Context(), db, func(tx pgx.Tx) (err error) {
			ids[status], err = outbox.Insert(t.Context(), tx, outbox.Intent{Key: key, Action: "charge_card", Payload: map[string]int{"status": status}})
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	work()
	for status, id := range ids {
		entry := stored(t, db, id)
		sent := "unsent"
		if !entry.FirstSentAt.IsZero() {
			sent = "sent"
		}
		if got := fmt.Sprintf("%s used=%d %s", entry.Status, entry.AttemptsUsed, sent); got != want.stored {
			t.Errorf("%d: is stored as %s, want %s", status, got, want.stored)
		}
	}
	samekeytest.Elapse(t, db, time.Minute)
	work() // unknown intents are parked, since there is no lookup
	if want.rests != "" {
		for status, id := range ids {
			if entry := stored(t, db, id); string(entry.Status) != want.rests {
				t.Errorf("%d: rests as %s %s, want %s", status, entry.Status, entry.Code, want.rests)
			}
			err := outbox.Redrive(t.Context(), db.Pool, id, outbox.By{Actor: "ann", Reason: "try again"})
			if redriven := err == nil; redriven != want.redrive {
				t.Errorf("%d: redriven is %t (%v), want %t", status, redriven, err, want.redrive)
			}
		}
		work()
	}
	mu.Lock()
	defer mu.Unlock()
	for status, id := range ids {
		entry := stored(t, db, id)
		if n := calls[entry.DeliveryKey.String()]; n != want.calls {
			t.Errorf("%d: the vendor saw %d calls, want %d", status, n, want.calls)
		}
	}
	if len(calls) != len(statuses) {
		t.Errorf("the vendor saw %d keys, want %d", len(calls), len(statuses))
	}
}

func stored(t *testing.T, db *samekeytest.DB, id uuid.UUID) outbox.Entry {
	t.Helper()
	entry, err := outbox.Get(t.Context(), db.Pool, id)
	if err != nil {
		t.Fatal(err)
	}
	return entry
}
