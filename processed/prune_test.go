package processed_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/samekey/samekey/internal/db"
	"github.com/samekey/samekey/outbox"
	"github.com/samekey/samekey/processed"
	"github.com/samekey/samekey/samekeytest"
)

func (b *bundle) prune(how processed.Pruning) processed.Pruned {
	b.t.Helper()
	done, err := processed.Prune(b.t.Context(), b.db.Pool, how)
	if err != nil {
		b.t.Fatal(err)
	}
	return done
}

// finish does what a worker does to an intent: the queue row goes, the history says so. The window is an SQL
// expression.
func (b *bundle) finish(k, part, window string) {
	b.t.Helper()
	b.exec("delete from samekey.outbox_queue q using samekey.outbox o where o.id = q.id and o.idem_key = $1 and o.part = $2", k, part)
	b.exec(`insert into samekey.outbox_history (intent_id, event, outcome, final_status, key_window_until)
		select id, 'attempt', 'delivered', 'delivered', `+window+` from samekey.outbox where idem_key = $1 and part = $2`, k, part)
	b.exec("insert into samekey.outbox_sends (intent_id, carried_key) select id, 'k' from samekey.outbox where idem_key = $1 and part = $2", k, part)
}

// untold gives the intents of a key an attention event, of an action whose function some worker has, or none.
func (b *bundle) untold(k string, function bool) {
	b.t.Helper()
	b.exec("insert into samekey.outbox_attention (intent_id, first_id, action, status, event) select id, id, $1, 'cancelled', 'cancelled' from samekey.outbox where idem_key = $1", k)
	b.exec("insert into samekey.actions (action, attention) values ($1, $2)", k, function)
}

// left are the keys of what is there: records, intents.
func (b *bundle) left() (records, intents string) {
	b.t.Helper()
	err := b.db.QueryRow(b.t.Context(), `select
		(select coalesce(string_agg(idem_key, ' ' order by idem_key), '') from samekey.processed_events),
		(select coalesce(string_agg(distinct idem_key, ' '), '') from samekey.outbox)`).Scan(&records, &intents)
	if err != nil {
		b.t.Fatal(err)
	}
	if n := b.count("samekey.outbox_history h where not exists (select from samekey.outbox o where o.id = h.intent_id)"); n != 0 {
		b.t.Errorf("%d events of intents that are gone", n)
	}
	if n := b.count("samekey.outbox_sends s where not exists (select from samekey.outbox o where o.id = s.intent_id)"); n != 0 {
		b.t.Errorf("%d sends of intents that are gone", n)
	}
	if n := b.count("samekey.outbox_attention a where not exists (select from samekey.outbox o where o.id = a.intent_id)"); n != 0 {
		b.t.Errorf("%d attention events of intents that are gone", n)
	}
	return records, intents
}

func TestPruneKeepsRecordsWithUnfinishedIntents(t *testing.T) {
	b := setup(t)
	add := func(k string, parts ...string) {
		if err := b.run(k, func(ctx context.Context, tx pgx.Tx) error {
			for _, part := range parts {
				if _, err := insert(ctx, tx, part, 1); err != nil {
					return err
				}
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	// Windows are counted from now, and 72 hours will pass.
	add("gone-alone")
	add("gone-no-window", "")
	b.finish("gone-no-window", "", "null")
	add("gone-window-over", "")
	b.finish("gone-window-over", "", "now() + interval '71 hours'")
	add("gone-for-ever", "")
	b.finish("gone-for-ever", "", "'infinity'")
	add("gone-two", "1", "2")
	b.finish("gone-two", "1", "null")
	b.finish("gone-two", "2", "null")
	add("kept-window-open", "")
	b.finish("kept-window-open", "", "now() + interval '73 hours'")
	add("kept-half", "1", "2")
	b.finish("kept-half", "1", "null")
	for _, status := range []string{"pending", "unknown", "parked", "dead", "awaiting_approval", "answered"} {
		add("kept-"+status, "")
		b.exec("update samekey.outbox_queue set status = $1 where id = (select id from samekey.outbox where idem_key = $2)", status, "kept-"+status)
	}
	for _, k := range []string{"kept-attention", "gone-attention"} {
		add(k, "")
		b.finish(k, "", "null")
		b.untold(k, k == "kept-attention")
	}
	add("kept-lost-row", "")
	b.exec("delete from samekey.outbox_queue where id = (select id from samekey.outbox where idem_key = 'kept-lost-row')")
	b.exec("insert into samekey.outbox_history (intent_id, event, outcome) select id, 'attempt', 'retry' from samekey.outbox where idem_key = 'kept-lost-row'")
	add("kept-redriven", "")
	b.finish("kept-redriven", "", "null")
	b.exec("insert into samekey.outbox_queue (id, due_at, action, status) select id, now(), action, 'pending' from samekey.outbox where idem_key = 'kept-redriven'")
	b.exec("insert into samekey.outbox_queue (id, due_at, action, status) select gen_random_uuid(), now(), 'other', 'pending' from generate_series(1, 3)")

	samekeytest.Elapse(t, b.db, 72*time.Hour-10*time.Minute)
	if done := b.prune(processed.Pruning{}); done != (processed.Pruned{}) {
		t.Fatalf("before the retention was over: %+v", done)
	}
	samekeytest.Elapse(t, b.db, 11*time.Minute)
	// Pages of one: those that stay do not stall the rest.
	done := b.prune(processed.Pruning{Batch: 1})
	if want := (processed.Pruned{Records: 6, Intents: 6, Kept: 11}); done != want {
		t.Errorf("%+v, want %+v", done, want)
	}
	records, intents := b.left()
	want := "kept-answered kept-attention kept-awaiting_approval kept-dead kept-half kept-lost-row kept-parked kept-pending kept-redriven kept-unknown kept-window-open"
	if records != want || intents != want {
		t.Errorf("records %s\nintents %s\nwant    %s", records, intents, want)
	}
	b.finish("kept-dead", "", "null")
	samekeytest.Elapse(t, b.db, 2*time.Hour)
	if done := b.prune(processed.Pruning{}); done.Records != 2 || done.Intents != 2 {
		t.Errorf("after a person finished the dead one, and a window closed: %+v", done)
	}
}

func TestKeyIsNewAgainAfterPruneAndNotEarlier(t *testing.T) {
	b := setup(t)
	req := request(t, "k", `1`)
	req.Retain = 7 * 24 * time.Hour
	b.mustPlace(req, order{"o1", 7})
	b.finish("k", "", "null")
	samekeytest.Elapse(t, b.db, 6*24*time.Hour)
	b.prune(processed.Pruning{})
	if res := b.mustPlace(req, order{"o2", 7}); !res.Deduplicated {
		t.Fatal("a day early")
	}
	samekeytest.Elapse(t, b.db, 25*time.Hour)
	if res := b.mustPlace(req, order{"o2", 7}); !res.Deduplicated {
		t.Fatal("past its retention, a key lives until it is pruned")
	}
	b.prune(processed.Pruning{})
	if res := b.mustPlace(req, order{"o2", 7}); res.Deduplicated {
		t.Fatal("a replay after prune")
	}
	b.stored(2, 1, 1)
}

func TestIntentsWithoutRecordHaveTheirOwnRetention(t *testing.T) {
	b := setup(t)
	add := func(k string, parts ...string) {
		err := pgx.BeginFunc(t.Context(), b.db.Pool, func(tx pgx.Tx) error {
			for _, part := range parts {
				if _, err := outbox.Insert(t.Context(), tx, outbox.Intent{Key: key(t, k), Action: "send_mail", Part: part, Payload: 1}); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	add("gone", "1", "2", "3")
	b.finish("gone", "1", "null")
	b.finish("gone", "2", "now() + interval '1 hour'")
	b.finish("gone", "3", "'infinity'")
	b.untold("gone", false)
	add("kept-attention", "1")
	b.finish("kept-attention", "1", "null")
	b.untold("kept-attention", true)
	add("kept-half", "1", "2")
	b.finish("kept-half", "2", "null")
	add("kept-window", "1", "2")
	b.finish("kept-window", "1", "null")
	b.finish("kept-window", "2", "now() + interval '100 hours'")
	add("kept-pending", "")
	// This one has a record, which is not over yet.
	req := request(t, "kept-record", `1`)
	req.Retain = 1000 * time.Hour
	b.mustPlace(req, order{"o1", 7})
	b.finish("kept-record", "", "null")

	samekeytest.Elapse(t, b.db, 72*time.Hour-10*time.Minute)
	if done := b.prune(processed.Pruning{}); done != (processed.Pruned{}) {
		t.Fatalf("early: %+v", done)
	}
	samekeytest.Elapse(t, b.db, 11*time.Minute)
	if done := b.prune(processed.Pruning{IntentRetain: -1}); done != (processed.Pruned{}) {
		t.Fatalf("left alone: %+v", done)
	}
	if done := b.prune(processed.Pruning{IntentRetain: 80 * time.Hour}); done != (processed.Pruned{}) {
		t.Fatalf("with a longer retention: %+v", done)
	}
	if done := b.prune(processed.Pruning{Batch: 2}); done != (processed.Pruned{Intents: 3}) {
		t.Fatalf("%+v", done)
	}
	if _, intents := b.left(); intents != "kept-attention kept-half kept-pending kept-record kept-window" {
		t.Error(intents)
	}
}

// The interleavings that the comment in prune.go names. The pruner's transaction is open while others come.
func TestPruneAgainstCallsWithTheSameKey(t *testing.T) {
	b := setup(t)
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	for _, k := range []string{"replay", "failure"} {
		b.mustPlace(request(t, k, `1`), order{k, 7})
		b.finish(k, "", "null")
	}
	samekeytest.Elapse(t, b.db, 73*time.Hour)

	old, err := b.db.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = old.Rollback(ctx) }()
	if _, err := old.Exec(ctx, "select count(*) from orders"); err != nil {
		t.Fatal(err)
	}
	pruner, err := b.db.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = pruner.Rollback(ctx) }()
	seen, err := db.New(pruner).ProcessedEventsPrune(ctx, db.ProcessedEventsPruneParams{MaxCount: 100})
	if err != nil || seen.Records != 2 || seen.Intents != 2 {
		t.Fatalf("%+v, %v", seen, err)
	}

	// Before the pruner commits: a replay, and a second pruner goes past.
	if res := b.mustPlace(request(t, "replay", `1`), order{"x", 7}); !res.Deduplicated {
		t.Error("not a replay before the pruner's commit")
	}
	if done := b.prune(processed.Pruning{}); done != (processed.Pruned{}) {
		t.Errorf("a second pruner: %+v", done)
	}
	// An intent written outside Run waits for it.
	written := make(chan error, 1)
	go func() {
		written <- pgx.BeginFunc(ctx, b.db.Pool, func(tx pgx.Tx) error {
			_, err := outbox.Insert(ctx, tx, outbox.Intent{Key: key(t, "failure"), Action: "charge_card", Payload: order{"later", 7}})
			return err
		})
	}()
	b.waiting("transactionid")
	if err := pruner.Commit(ctx); err != nil {
		t.Fatal(err)
	}
	if err := <-written; err != nil {
		t.Errorf("the intent that waited: %v", err)
	}
	// With an older snapshot: still a replay.
	res, err := processed.Do(ctx, old, request(t, "replay", `1`), neverDo)
	if err != nil || !res.Deduplicated {
		t.Errorf("with an older snapshot: %+v, %v", res, err)
	}
	if err := old.Rollback(ctx); err != nil {
		t.Fatal(err)
	}
	// Afterwards: new, its intent too.
	if res := b.mustPlace(request(t, "replay", `1`), order{"again", 7}); res.Deduplicated {
		t.Error("a replay after the pruner's commit")
	}
	if records, intents := b.left(); records != "replay" || intents != "failure replay" {
		t.Errorf("records %q, intents %q", records, intents)
	}
}

func TestPruneMakesProgressUnderStatementTimeout(t *testing.T) {
	b := setup(t)
	const total = 30_000
	b.exec(fmt.Sprintf(`insert into samekey.processed_events (idem_key, scope, payload_hash, hash_version, completed_at, expires_at)
		select 'k' || i, 's', sha256('x'), 1, now(), now() - i * interval '1 ms' from generate_series(1, %d) i`, total))
	pool := b.pool(b.db.DSN, 1, func(config *pgxpool.Config) {
		config.ConnConfig.RuntimeParams["statement_timeout"] = "5s"
	})
	ctx, cancel := context.WithCancel(t.Context())
	pages := 0
	cut := b.pool(b.db.DSN, 1, func(config *pgxpool.Config) {
		config.PrepareConn = func(context.Context, *pgx.Conn) (bool, error) {
			if pages++; pages == 4 {
				cancel()
			}
			return true, nil
		}
	})
	done, err := processed.Prune(ctx, cut, processed.Pruning{})
	if err == nil || done.Records != 3000 {
		t.Errorf("cut short at the fourth page: %+v, %v", done, err)
	}
	if left := b.count("samekey.processed_events"); left != total-3000 {
		t.Errorf("%d left, the pages before did not last", left)
	}
	done, err = processed.Prune(t.Context(), pool, processed.Pruning{})
	if err != nil || done.Records != total-3000 {
		t.Errorf("%+v, %v", done, err)
	}
}

func TestPruneRetriesAPageAfterStatementTimeout(t *testing.T) {
	b := setup(t)
	b.mustPlace(request(t, "k", `1`), order{"o1", 7})
	b.finish("k", "", "null")
	samekeytest.Elapse(t, b.db, 73*time.Hour)
	// Slow twice; a sequence is not rolled back.
	b.exec("create sequence tries")
	b.exec(`create function slow() returns trigger language plpgsql as
		$$ begin if nextval('tries') <= 2 then perform pg_sleep(60); end if; return old; end $$`)
	b.exec("create trigger slow before delete on samekey.processed_events for each row execute function slow()")
	pool := b.pool(b.db.DSN, 1, func(config *pgxpool.Config) {
		config.ConnConfig.RuntimeParams["statement_timeout"] = "1s"
	})
	done, err := processed.Prune(t.Context(), pool, processed.Pruning{})
	if err != nil || done != (processed.Pruned{Records: 1, Intents: 1}) {
		t.Errorf("%+v, %v", done, err)
	}
}

func TestPruneLocksAtMostAThousandKeys(t *testing.T) {
	b := setup(t)
	b.exec(`with o as (select samekey.enqueue('acme/orders.create', 'k' || i, 'charge_card', '{}') as id from generate_series(1, 1001) i),
		h as (insert into samekey.outbox_history (intent_id, event, final_status) select id, 'attempt', 'delivered' from o)
		select count(*) from o`)
	b.exec("delete from samekey.outbox_queue")
	samekeytest.Elapse(t, b.db, 73*time.Hour)
	// While a page is being deleted, its keys are in flight, and others are not.
	err := pgx.BeginFunc(t.Context(), b.db.Pool, func(tx pgx.Tx) error {
		seen, err := db.New(tx).ProcessedEventsPruneOrphans(t.Context(), db.ProcessedEventsPruneOrphansParams{MaxCount: 2000, RetainUs: time.Hour.Microseconds()})
		if err != nil || seen.Intents != 1001 {
			t.Errorf("%+v, %v", seen, err)
		}
		if _, err := processed.Run(t.Context(), b.db.Pool, request(t, "k1", `1`), never); !errors.Is(err, processed.ErrInFlight) {
			t.Errorf("a key of the page: %v", err)
		}
		b.mustPlace(request(t, "k1002", `1`), order{"o1", 7})
		return errRollback
	})
	if !errors.Is(err, errRollback) {
		t.Fatal(err)
	}
	pages := 0
	pool := b.pool(b.db.DSN, 1, func(config *pgxpool.Config) {
		config.PrepareConn = func(context.Context, *pgx.Conn) (bool, error) { pages++; return true, nil }
	})
	done, err := processed.Prune(t.Context(), pool, processed.Pruning{Batch: 10_000})
	if err != nil || done.Intents != 1001 {
		t.Errorf("%+v, %v", done, err)
	}
	if pages != 4 {
		t.Errorf("%d transactions, want one for the records, one for the operations and two for the intents", pages)
	}
}

var errRollback = errors.New("roll back")

func TestPruneRefusesInvalidSettings(t *testing.T) {
	for field, how := range map[string]processed.Pruning{"Batch": {Batch: -1}, "IntentRetain": {IntentRetain: time.Second}} {
		if _, err := processed.Prune(t.Context(), nil, how); err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("%s: %v", field, err)
		}
	}
}
