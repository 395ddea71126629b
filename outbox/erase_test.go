package outbox_test

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/samekey/samekey"
	"github.com/samekey/samekey/internal/db"
	"github.com/samekey/samekey/internal/dbtest"
	"github.com/samekey/samekey/outbox"
	"github.com/samekey/samekey/processed"
	"github.com/samekey/samekey/samekeytest"
)

var dpo = outbox.By{Actor: "dpo", Reason: "request 7 of the register"}

const secret = "jane@example.com"

// mentions lists the tables of samekey in which the secret is, as text or as bytes.
func mentions(t *testing.T, on *samekeytest.DB) string {
	t.Helper()
	tables, err := on.Query(t.Context(), `select c.relname from pg_class c
		where c.relnamespace = 'samekey'::regnamespace and c.relkind in ('r', 'v') order by c.relname`)
	if err != nil {
		t.Fatal(err)
	}
	names, err := pgx.CollectRows(tables, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, name := range names {
		if count(t, on, fmt.Sprintf(`select count(*) from samekey.%s r where strpos(r::text, $1) > 0 or strpos(r::text, $2) > 0`, name),
			secret, hex.EncodeToString([]byte(secret))) > 0 {
			found = append(found, name)
		}
	}
	return strings.Join(found, " ")
}

// request is a request about the subject.
func eraseRequest(t *testing.T, value, subject string) processed.Request {
	t.Helper()
	return processed.Request{Key: newKey(t, value), Payload: []byte(`{"to":"` + secret + `"}`), Subject: subject}
}

// answered does a request with one intent, and returns the intent.
func answered(t *testing.T, on *samekeytest.DB, value, subject string) (id uuid.UUID) {
	t.Helper()
	_, err := processed.Run(t.Context(), on.Pool, eraseRequest(t, value, subject), func(ctx context.Context, tx pgx.Tx) (string, error) {
		_, err := outbox.Insert(ctx, tx, outbox.Intent{Action: "send_mail", Payload: []byte(`{"to":"` + secret + `"}`),
			ContentType: "application/octet-stream", Headers: map[string]string{"x-to": secret}, OrderingKey: "customer " + secret, RequestedBy: secret})
		return "to " + secret, err
	})
	if err != nil {
		t.Fatal(err)
	}
	return dbtest.Value[uuid.UUID](t, on, `select id from samekey.outbox where idem_key = $1`, value)
}

// finish ends an intent as delivered, with an answer that quotes the secret.
func finish(t *testing.T, on *samekeytest.DB, id uuid.UUID) {
	t.Helper()
	force(t, on, id, outbox.StatusDelivered, true, true)
	dbtest.Exec(t, on, `update samekey.outbox_history set error = $2, response = convert_to($2, 'UTF8'), response_type = 'text/plain', reference = $2
		where intent_id = $1`, id, secret)
	dbtest.Exec(t, on, `insert into samekey.outbox_sends (intent_id, carried_key, request_type, request, message_id)
		values ($1, 'carried', 'text/plain', convert_to($2, 'UTF8'), $2)`, id, secret)
	dbtest.Exec(t, on, `insert into samekey.outbox_attention (intent_id, first_id, action, status, event, error, reason, last_error)
		values ($1, $1, 'send_mail', 'dead', 'attempt', $2, $2, $2)`, id, secret)
}

// stepped does an operation of one step about the subject.
func stepped(t *testing.T, on *samekeytest.DB, value, subject string, end error) error {
	t.Helper()
	_, err := processed.Steps(t.Context(), on.Pool, eraseRequest(t, value, subject), func(ctx context.Context, op *processed.Operation) (string, error) {
		_, err := processed.Step(ctx, op, "note", func(context.Context, pgx.Tx) (string, error) { return secret, nil })
		return secret, errors.Join(err, end)
	})
	return err
}

func mustErase(t *testing.T, on *samekeytest.DB, what outbox.Content, want outbox.Erased) {
	t.Helper()
	if done, err := outbox.Erase(t.Context(), on, what, dpo); err != nil || done != want {
		t.Fatalf("Erase: %+v, %v, want %+v", done, err, want)
	}
}

func TestEraseDropsContentAndKeepsTheRest(t *testing.T) {
	for name, what := range map[string]outbox.Content{
		"subject": {Subject: "customer/" + secret},
		"scope":   {Scope: newKey(t, "k").Scope},
	} {
		t.Run(name, func(t *testing.T) {
			on := samekeytest.NewDB(t)
			id := answered(t, on, "k1", "customer/"+secret)
			finish(t, on, id)
			if err := stepped(t, on, "k2", "customer/"+secret, nil); err != nil {
				t.Fatal(err)
			}
			if got := mentions(t, on); got != "intents operation_steps outbox outbox_attention outbox_history outbox_sends processed_events timeline" {
				t.Fatalf("before, the secret is in %q: the test misses a table", got)
			}
			before := get(t, on, id)
			plan, err := outbox.PlanErase(t.Context(), on, what)
			if err != nil || plan.Intents != 1 || plan.Records != 2 || plan.Unfinished != 0 || plan.Requests != 0 {
				t.Errorf("the plan is %+v, %v", plan, err)
			}
			mustErase(t, on, what, outbox.Erased{Intents: 1, Records: 2})
			if got := mentions(t, on); got != "" {
				t.Errorf("the secret is still in %s", got)
			}

			e := get(t, on, id)
			if e.ErasedAt.IsZero() || e.Payload != nil || e.Subject != "" || e.Reference != "" || e.OrderingKey != "" || e.RequestedBy != "" || len(e.Headers) > 0 {
				t.Errorf("the entry is %+v", e)
			}
			if e.Key != before.Key || e.DeliveryKey != before.DeliveryKey || e.Status != outbox.StatusDelivered || e.Code != "200" ||
				!e.FinishedAt.Equal(before.FinishedAt) || !e.CreatedAt.Equal(before.CreatedAt) || e.Sent.CarriedKey != "carried" {
				t.Errorf("before %+v, after %+v", before, e)
			}
			last := e.History[len(e.History)-1]
			if len(e.History) != 2 || last.Event != "erased" || last.Actor != "dpo" || last.Reason != dpo.Reason || last.DBUser == "" {
				t.Errorf("the history is %+v", e.History)
			}
			text, err := json.Marshal(e)
			if err != nil || !strings.Contains(string(text), `"erased_at":`) || strings.Contains(string(text), `"payload`) {
				t.Errorf("as JSON: %s, %v", text, err)
			}
			if n := count(t, on, `select count(*) from samekey.intents where id = $1 and erased_at is not null`, id); n != 1 {
				t.Errorf("the view has %d erased intents", n)
			}
			if n := count(t, on, `select count(*) from samekey.processed_events where erased_at is not null and payload_hash is not null and completed_at is not null`); n != 2 {
				t.Errorf("%d records are erased", n)
			}
			mustErase(t, on, what, outbox.Erased{}) // again
		})
	}
}

func TestEraseLeavesOtherSubjectsAndScopes(t *testing.T) {
	on := samekeytest.NewDB(t)
	finish(t, on, answered(t, on, "k1", "customer/1"))
	other := answered(t, on, "k2", "customer/2")
	finish(t, on, other)
	before, records := get(t, on, other), dbtest.Value[string](t, on, `select string_agg(p::text, ';') from samekey.processed_events p where idem_key = 'k2'`)
	mustErase(t, on, outbox.Content{Subject: "customer/1"}, outbox.Erased{Intents: 1, Records: 1})
	mustErase(t, on, outbox.Content{Scope: "another/scope"}, outbox.Erased{})
	if after := get(t, on, other); fmt.Sprintf("%+v", after) != fmt.Sprintf("%+v", before) {
		t.Errorf("before %+v\nafter %+v", before, after)
	}
	if after := dbtest.Value[string](t, on, `select string_agg(p::text, ';') from samekey.processed_events p where idem_key = 'k2'`); after != records {
		t.Errorf("the record was %s, and is %s", records, after)
	}
}

func TestErasedRequestIsNeverRunAgain(t *testing.T) {
	on := samekeytest.NewDB(t)
	id := answered(t, on, "k1", "customer/1")
	finish(t, on, id)
	mustErase(t, on, outbox.Content{Subject: "customer/1"}, outbox.Erased{Intents: 1, Records: 1})

	req := eraseRequest(t, "k1", "")
	ways := map[string]func(processed.Request) error{
		"Run": func(req processed.Request) error {
			_, err := processed.Run(t.Context(), on.Pool, req, func(context.Context, pgx.Tx) (int, error) { t.Error("Run ran"); return 0, nil })
			return err
		},
		"Once": func(req processed.Request) error {
			_, err := processed.Once(t.Context(), on.Pool, req, func(context.Context, pgx.Tx) error { t.Error("Once ran"); return nil })
			return err
		},
		"Do": func(req processed.Request) error {
			_, err := processed.Do(t.Context(), begin(t, on), req, func(context.Context, samekey.Tx) (int, error) { t.Error("Do ran"); return 0, nil })
			return err
		},
		"Steps": func(req processed.Request) error {
			_, err := processed.Steps(t.Context(), on.Pool, req, func(context.Context, *processed.Operation) (int, error) { t.Error("Steps ran"); return 0, nil })
			return err
		},
	}
	for name, do := range ways {
		if err := do(req); !errors.Is(err, processed.ErrErased) || processed.SafeToRetry(err) {
			t.Errorf("%s: %v", name, err)
		}
		changed := req
		changed.Payload = []byte(`{"to":"another"}`)
		if err := do(changed); !errors.Is(err, processed.ErrConflict) {
			t.Errorf("%s with another payload: %v", name, err)
		}
	}

	again := outbox.Intent{Key: req.Key, Action: "send_mail", Payload: []byte(`{"to":"` + secret + `"}`), ContentType: "application/octet-stream"}
	if got, err := outbox.Insert(t.Context(), begin(t, on), again); got != id || err != nil {
		t.Errorf("Insert: %s, %v, want %s", got, err, id)
	}
	for _, payload := range []string{``, `{"to":"another"}`} {
		again.Payload = []byte(payload)
		conflict := (*outbox.ConflictError)(nil)
		if _, err := outbox.Insert(t.Context(), begin(t, on), again); !errors.As(err, &conflict) {
			t.Errorf("Insert of %q: %v", payload, err)
		}
	}
	state, err := outbox.Await(t.Context(), on.Pool, req.Key, id)
	if err != nil || state.Status != outbox.StatusDelivered {
		t.Errorf("Await: %+v, %v", state, err)
	}
}

func TestEraseRefusesWhatIsUnfinished(t *testing.T) {
	on := samekeytest.NewDB(t)
	done := answered(t, on, "done", "customer/1")
	finish(t, on, done)
	subject, scope := outbox.Content{Subject: "customer/1"}, outbox.Content{Scope: newKey(t, "k").Scope}
	refuses := func(why string, intents, requests int) {
		t.Helper()
		for _, what := range []outbox.Content{subject, scope} {
			refusal := (*outbox.UnfinishedError)(nil)
			if done, err := outbox.Erase(t.Context(), on, what, dpo); !errors.As(err, &refusal) || done != (outbox.Erased{}) {
				t.Fatalf("%s, %+v: %+v, %v", why, what, done, err)
			}
			if refusal.Intents != intents || len(refusal.Sample) != intents || refusal.Requests != requests {
				t.Errorf("%s, %+v: %+v", why, what, refusal)
			}
			if e := get(t, on, done); !e.ErasedAt.IsZero() {
				t.Fatalf("%s: an intent was erased", why)
			}
		}
	}
	id := insert(t, on, outbox.Intent{Key: newKey(t, "open"), Action: "charge_card", Subject: "customer/1", OrderingKey: "o"})
	for _, status := range []outbox.Status{outbox.StatusPending, outbox.StatusBlocked, outbox.StatusLeased, outbox.StatusUnknown,
		outbox.StatusAnswered, outbox.StatusAwaitingApproval, outbox.StatusParked, outbox.StatusDead} {
		force(t, on, id, status, true, true)
		refuses(string(status), 1, 0)
	}
	force(t, on, id, outbox.StatusDelivered, true, true)

	dbtest.Exec(t, on, `insert into samekey.actions (action, attention) values ('send_mail', true)`)
	refuses("an attention event", 1, 0)
	dbtest.Exec(t, on, `delete from samekey.actions`)

	if err := stepped(t, on, "steps", "customer/1", errors.New("later")); err == nil {
		t.Fatal("the operation ended")
	}
	refuses("an operation", 0, 1)
	if err := stepped(t, on, "steps", "customer/1", nil); err != nil {
		t.Fatal(err)
	}

	// A queue row that was lost: reconcile restores it.
	lost := insert(t, on, outbox.Intent{Key: newKey(t, "lost"), Action: "charge_card", Subject: "customer/1"})
	dbtest.Exec(t, on, `delete from samekey.outbox_queue where id = $1`, lost)
	for _, what := range []outbox.Content{subject, scope} {
		if _, err := outbox.Erase(t.Context(), on, what, dpo); err == nil || !strings.Contains(err.Error(), lost.String()) {
			t.Errorf("a lost row, %+v: %v", what, err)
		}
	}
	force(t, on, lost, outbox.StatusCancelled, false, false)
	mustErase(t, on, subject, outbox.Erased{Intents: 3, Records: 2})
}

func TestActsOnAnErasedIntentAreRefused(t *testing.T) {
	on := samekeytest.NewDB(t)
	first := insert(t, on, outbox.Intent{Action: "charge_card", Subject: "customer/1"})
	force(t, on, first, outbox.StatusDead, false, false)
	second, err := outbox.Replace(t.Context(), on, first, outbox.Replacement{}, ada)
	if err != nil {
		t.Fatal(err)
	}
	force(t, on, second, outbox.StatusDelivered, true, true)
	mustErase(t, on, outbox.Content{Subject: "customer/1"}, outbox.Erased{Intents: 2})
	lines := count(t, on, `select count(*) from samekey.outbox_history`)
	for _, id := range []uuid.UUID{first, second} {
		acts := map[string]error{}
		for verb, do := range verbs {
			acts[verb] = do(t.Context(), on, id)
		}
		_, acts["replace"] = outbox.Replace(t.Context(), on, id, outbox.Replacement{}, ada)
		for verb, err := range acts {
			refusal := (*outbox.StateError)(nil)
			if !errors.As(err, &refusal) || !strings.Contains(refusal.Do, "erased") || !refusal.Status.Finished() {
				t.Errorf("%s: %v", verb, err)
			}
		}
	}
	if n := count(t, on, `select count(*) from samekey.outbox_history`); n != lines {
		t.Errorf("the history has %d lines more", n-lines)
	}
}

// late is the answer of a zombie that quotes the secret.
func eraseLate(t *testing.T, q *db.Queries, id uuid.UUID) {
	t.Helper()
	row, err := q.OutboxQueueSettleLate(t.Context(), db.OutboxQueueSettleLateParams{ID: id, Attempt: 9, Worker: 9, Outcome: "delivered",
		Code: "201", Error: secret, ResponseType: "text/plain", Response: []byte(secret), Reference: secret})
	if err != nil || row.Logged != 1 {
		t.Errorf("the late answer: %+v, %v", row, err)
	}
}

func TestEraseSkipsAnIntentWithALateAnswer(t *testing.T) {
	on := samekeytest.NewDB(t)
	id := answered(t, on, "k1", "customer/1")
	finish(t, on, id)
	tx := begin(t, on)
	eraseLate(t, db.New(tx), id)
	if done, err := outbox.Erase(t.Context(), on, outbox.Content{Subject: "customer/1"}, dpo); err == nil || done != (outbox.Erased{Records: 1}) {
		t.Errorf("%+v, %v", done, err)
	}
	commit(t, tx)
	mustErase(t, on, outbox.Content{Subject: "customer/1"}, outbox.Erased{Intents: 1})
	if got := mentions(t, on); got != "" {
		t.Errorf("the secret is in %s", got)
	}
}

func TestLateAnswerBringsNoContentBack(t *testing.T) {
	on := samekeytest.NewDB(t)
	id := answered(t, on, "k1", "customer/1")
	finish(t, on, id)
	tx := begin(t, on)
	if _, err := outbox.Erase(t.Context(), tx, outbox.Content{Subject: "customer/1"}, dpo); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { defer close(ended); eraseLate(t, db.New(on.Pool), id) }()
	eventually(t, "the late answer waits for the erasure", func() bool { return waiting(t, on) == 1 })
	commit(t, tx)
	<-ended
	if got := mentions(t, on); got != "" {
		t.Errorf("the secret is in %s", got)
	}
	e := get(t, on, id)
	if last := e.History[len(e.History)-1]; last.Event != "late" || last.Outcome != "delivered" || last.Code != "201" {
		t.Errorf("the last event is %+v", last)
	}
}

func TestEraseMeetsAnActThatIsUnderWay(t *testing.T) {
	subject := outbox.Content{Subject: "customer/1"}
	for verb, want := range map[string]outbox.Erased{"redrive": {}, "resolve delivered": {}, "cancel": {Intents: 1}} {
		t.Run(verb, func(t *testing.T) {
			on := samekeytest.NewDB(t)
			id := insert(t, on, outbox.Intent{Action: "charge_card", Subject: "customer/1"})
			force(t, on, id, outbox.StatusDead, false, false)
			tx := begin(t, on)
			if err := verbs[verb](t.Context(), tx, id); err != nil {
				t.Fatal(err)
			}
			refusal := (*outbox.UnfinishedError)(nil)
			if _, err := outbox.Erase(t.Context(), on, subject, dpo); !errors.As(err, &refusal) {
				t.Errorf("before the commit: %v", err)
			}
			commit(t, tx)
			done, err := outbox.Erase(t.Context(), on, subject, dpo)
			if done != want || errors.As(err, &refusal) != (want.Intents == 0) {
				t.Errorf("after the commit: %+v, %v, want %+v", done, err, want)
			}
		})
	}
}

// A first attempt that is under way keeps its rows; a second erasure finds them. A repetition meets one version of the
// record.
func TestEraseMeetsARequestThatIsUnderWay(t *testing.T) {
	on := samekeytest.NewDB(t)
	subject := outbox.Content{Subject: "customer/1"}
	began, goOn, ended := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	go func() {
		_, err := processed.Run(t.Context(), on.Pool, eraseRequest(t, "k1", "customer/1"), func(context.Context, pgx.Tx) (string, error) {
			close(began)
			<-goOn
			return secret, nil
		})
		ended <- err
	}()
	<-began
	mustErase(t, on, subject, outbox.Erased{})
	close(goOn)
	if err := <-ended; err != nil {
		t.Fatal(err)
	}

	tx := begin(t, on)
	if _, err := outbox.Erase(t.Context(), tx, subject, dpo); err != nil {
		t.Fatal(err)
	}
	run := func() error {
		res, err := processed.Run(t.Context(), on.Pool, eraseRequest(t, "k1", ""), func(context.Context, pgx.Tx) (string, error) { t.Error("it ran"); return "", nil })
		if err == nil && (res.Value != secret || !res.Deduplicated) {
			t.Errorf("the replay is %+v", res)
		}
		return err
	}
	if err := run(); err != nil {
		t.Errorf("before the commit: %v", err)
	}
	commit(t, tx)
	if err := run(); !errors.Is(err, processed.ErrErased) {
		t.Errorf("after the commit: %v", err)
	}
}

func TestEraseAndPruneMeet(t *testing.T) {
	on := samekeytest.NewDB(t)
	subject := outbox.Content{Subject: "customer/1"}
	finish(t, on, answered(t, on, "k1", "customer/1"))
	dbtest.Exec(t, on, `update samekey.processed_events set expires_at = clock_timestamp()`)
	prune := func(want processed.Pruned) {
		t.Helper()
		if got, err := processed.Prune(t.Context(), on.Pool, processed.Pruning{IntentRetain: -1}); err != nil || got != want {
			t.Errorf("Prune: %+v, %v, want %+v", got, err, want)
		}
	}
	tx := begin(t, on)
	dbtest.Exec(t, tx, `select from samekey.processed_events for update`) // as a prune does before it deletes
	if done, err := outbox.Erase(t.Context(), on, subject, dpo); err == nil || done != (outbox.Erased{Intents: 1}) {
		t.Errorf("while a prune looks: %+v, %v", done, err)
	}
	commit(t, tx)
	tx = begin(t, on)
	if done, err := outbox.Erase(t.Context(), tx, subject, dpo); err != nil || done != (outbox.Erased{Records: 1}) {
		t.Fatalf("%+v, %v", done, err)
	}
	prune(processed.Pruned{}) // the record is locked
	commit(t, tx)
	prune(processed.Pruned{Records: 1, Intents: 1})
	for _, table := range []string{"outbox", "outbox_history", "outbox_sends", "outbox_attention", "processed_events"} {
		if n := count(t, on, `select count(*) from samekey.`+table); n != 0 {
			t.Errorf("%s has %d rows", table, n)
		}
	}

	finish(t, on, answered(t, on, "k2", "customer/1"))
	tx = begin(t, on)
	dbtest.Exec(t, tx, `delete from samekey.processed_events`)
	dbtest.Exec(t, tx, `delete from samekey.outbox`)
	if done, err := outbox.Erase(t.Context(), on, subject, dpo); err == nil || done != (outbox.Erased{}) {
		t.Errorf("while a prune deletes: %+v, %v", done, err)
	}
	commit(t, tx)
	mustErase(t, on, subject, outbox.Erased{})
}

func TestTwoErasuresMeet(t *testing.T) {
	on := samekeytest.NewDB(t)
	subject := outbox.Content{Subject: "customer/1"}
	id := answered(t, on, "k1", "customer/1")
	finish(t, on, id)
	tx := begin(t, on)
	if _, err := outbox.Erase(t.Context(), tx, subject, dpo); err != nil {
		t.Fatal(err)
	}
	if done, err := outbox.Erase(t.Context(), on, subject, dpo); err == nil || done != (outbox.Erased{}) || !strings.Contains(err.Error(), "erase again") {
		t.Errorf("the second: %+v, %v", done, err)
	}
	if err := tx.Rollback(t.Context()); err != nil { // as if it was killed
		t.Fatal(err)
	}
	if e := get(t, on, id); !e.ErasedAt.IsZero() || e.Subject != "customer/1" || len(e.History) != 1 {
		t.Errorf("after the rollback: %+v", e)
	}
	mustErase(t, on, subject, outbox.Erased{Intents: 1, Records: 1})
	if n := count(t, on, `select count(*) from samekey.outbox_history where event = 'erased'`); n != 1 {
		t.Errorf("the history has %d lines", n)
	}
}

// Two walks of pages of 10,000 rows, most of them of another scope, and an interruption after the first batch.
func TestErasureGoesOnWhereItWasInterrupted(t *testing.T) {
	on := samekeytest.NewDB(t)
	const mine = 1050 // of each scope and subject
	for _, sql := range []string{
		`insert into samekey.outbox (id, scope, idem_key, action, delivery_key, payload, content_type, due_at, subject)
		 select samekey.uuidv7(), 'shop/' || n % 20, 'k' || n, 'send_mail', gen_random_uuid(), 'p', 'text/plain', now(),
		        'customer/' || n % 20 from generate_series(1, 21000) n`,
		`insert into samekey.outbox_history (intent_id, event, outcome, final_status) select id, 'attempt', 'delivered', 'delivered' from samekey.outbox`,
		`insert into samekey.processed_events (idem_key, scope, subject, payload_hash, hash_version, completed_at, expires_at, response_body)
		 select idem_key, scope, subject, sha256('p'), 1, now(), now() + interval '1 day', 'answer' from samekey.outbox`,
	} {
		dbtest.Exec(t, on, sql)
	}
	for name, what := range map[string]outbox.Content{"scope": {Scope: "shop/1"}, "subject": {Subject: "customer/2"}} {
		stopping := &stopsAfter{DB: on, batches: 1}
		done, err := outbox.Erase(t.Context(), stopping, what, dpo)
		if err == nil || done.Intents < 400 || done.Intents > 500 || done.Records != 0 {
			t.Fatalf("%s, interrupted: %+v, %v", name, done, err)
		}
		mustErase(t, on, what, outbox.Erased{Intents: mine - done.Intents, Records: mine})
	}
	if n := count(t, on, `select count(*) from samekey.outbox where erased_at is not null and length(payload) = 32`); n != 2*mine {
		t.Errorf("%d intents are erased", n)
	}
	if n := count(t, on, `select count(*) from samekey.processed_events where erased_at is not null and response_body is null`); n != 2*mine {
		t.Errorf("%d records are erased", n)
	}
	if n := count(t, on, `select count(distinct intent_id) from samekey.outbox_history where event = 'erased'`); n != 2*mine {
		t.Errorf("%d intents have a line", n)
	}
}

// One intent at the end of a long queue, or of many attention events, refuses the erasure before anything is erased.
func TestErasureByScopeLooksAtTheQueueInPages(t *testing.T) {
	on := samekeytest.NewDB(t)
	mine := outbox.Content{Scope: newKey(t, "k").Scope}
	finish(t, on, answered(t, on, "k1", ""))
	call := func(after *string) (next string) {
		t.Helper()
		return dbtest.Value[string](t, on, `select coalesce(e.next::text, '') || ' ' || e.intents || ' ' || e.skipped from samekey.erase_scope($1, 'dpo', 'r', after => $2::text::jsonb) e`, mine.Scope, after)
	}
	dbtest.Exec(t, on, `insert into samekey.outbox_queue (id, action, status, due_at) select samekey.uuidv7(), 'send_mail', 'dead', now() from generate_series(1, 10000)`)
	if next := call(nil); !strings.HasPrefix(next, `{"queue": "`) || !strings.HasSuffix(next, " 0 0") {
		t.Errorf("a full page of the queue ends with %s", next)
	}
	dbtest.Exec(t, on, `insert into samekey.actions (action, attention) values ('charge_card', true)`)
	dbtest.Exec(t, on, `insert into samekey.outbox_attention (intent_id, first_id, action, status, event) select i, i, 'charge_card', 'dead', 'attempt'
		from (select samekey.uuidv7() as i from generate_series(1, 10000)) u`)
	queue := `{"queue": "ffffffff-ffff-ffff-ffff-ffffffffffff"}`
	if next := call(&queue); !strings.HasPrefix(next, `{"attention": 1`) {
		t.Errorf("a full page of attention events ends with %s", next)
	}
	last := insert(t, on, outbox.Intent{Key: newKey(t, "k2"), Action: "charge_card"})
	refused := func() {
		t.Helper()
		refusal := (*outbox.UnfinishedError)(nil)
		if done, err := outbox.Erase(t.Context(), on, mine, dpo); !errors.As(err, &refusal) || refusal.Intents != 1 || refusal.Sample[0] != last || done != (outbox.Erased{}) {
			t.Errorf("%+v, %v", done, err)
		}
		if n := count(t, on, `select count(*) from samekey.outbox where erased_at is not null`); n != 0 {
			t.Errorf("%d intents are erased", n)
		}
	}
	refused()
	force(t, on, last, outbox.StatusDelivered, true, true)
	dbtest.Exec(t, on, `insert into samekey.outbox_attention (intent_id, first_id, action, status, event) values ($1, $1, 'charge_card', 'dead', 'attempt')`, last)
	refused()
	dbtest.Exec(t, on, `delete from samekey.outbox_attention where intent_id = $1`, last)
	mustErase(t, on, mine, outbox.Erased{Intents: 2, Records: 1})
}

func TestErasedRecordSaysWhoErasedIt(t *testing.T) {
	on := samekeytest.NewDB(t)
	finish(t, on, answered(t, on, "k1", "customer/1"))
	if err := stepped(t, on, "k2", "customer/1", nil); err != nil {
		t.Fatal(err)
	}
	mustErase(t, on, outbox.Content{Subject: "customer/1"}, outbox.Erased{Intents: 1, Records: 2})
	mustErase(t, on, outbox.Content{Scope: newKey(t, "k").Scope}, outbox.Erased{}) // again
	said := dbtest.Value[string](t, on, `select string_agg(concat_ws(' ', idem_key, position, resolved_by, resolved_reason, resolved_db_user = session_user, resolved_at is not null), ', ' order by idem_key)
		from samekey.operation_steps where name = 'samekey.erased'`)
	if want := fmt.Sprintf("k1 1 dpo %s t t, k2 2 dpo %[1]s t t", dpo.Reason); said != want {
		t.Errorf("is %q, want %q", said, want)
	}
}

// stopsAfter is a database that can no longer be reached after some batches.
type stopsAfter struct {
	outbox.DB
	batches int
}

func (s *stopsAfter) Begin(ctx context.Context) (pgx.Tx, error) {
	if s.batches == 0 {
		return nil, context.Canceled
	}
	s.batches--
	return s.DB.Begin(ctx)
}

func TestWrongArgumentsOfEraseAreNamed(t *testing.T) {
	on := samekeytest.NewDB(t)
	for want, do := range map[string]func() error{
		"set either Subject or Scope": func() error { _, err := outbox.Erase(t.Context(), on, outbox.Content{}, dpo); return err },
		"Subject or Scope": func() error {
			_, err := outbox.PlanErase(t.Context(), on, outbox.Content{Subject: "s", Scope: "s"})
			return err
		},
		"Actor is empty": func() error {
			_, err := outbox.Erase(t.Context(), on, outbox.Content{Scope: "s"}, outbox.By{Reason: "r"})
			return err
		},
		"the subject is required": func() error { _, err := on.Exec(t.Context(), `select samekey.erase_subject('', 'a', 'r')`); return err },
		"the scope is required":   func() error { _, err := on.Exec(t.Context(), `select samekey.erase_scope(null, 'a', 'r')`); return err },
		"max_count must be": func() error {
			_, err := on.Exec(t.Context(), `select samekey.erase_scope('s', 'a', 'r', 0)`)
			return err
		},
		"after must be null": func() error {
			_, err := on.Exec(t.Context(), `select samekey.erase_scope('s', 'a', 'r', after => '{}')`)
			return err
		},
		"give either a subject or a scope": func() error { _, err := on.Exec(t.Context(), `select samekey.erase_plan()`); return err },
	} {
		if err := do(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}
