package httpkey_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/samekey/samekey"
	"github.com/samekey/samekey/internal/wiretest"
	"github.com/samekey/samekey/outbox"
	"github.com/samekey/samekey/processed"
	"github.com/samekey/samekey/processed/httpkey"
)

// verdicts answers with the status in the path, after the effect and after what the header X-Verdict asks for.
func verdicts(t *testing.T) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if err := effect(r, r.URL.Path); err != nil {
			t.Error(err)
		}
		for verdict := range strings.SplitSeq(r.Header.Get("X-Verdict"), ",") {
			switch verdict {
			case "keep":
				httpkey.Keep(r.Context())
			case "discard":
				httpkey.Discard(r.Context())
			}
		}
		status, err := strconv.Atoi(r.URL.Path[1:])
		if err != nil {
			t.Error(err)
		}
		w.Header().Set("Content-Type", "text/plain")
		w.WriteHeader(status)
		if status != 204 && status != 304 {
			fmt.Fprintf(w, "answer to %s", r.Header.Get("X-Attempt"))
		}
	}
}

func TestStatusDecidesWhatIsStored(t *testing.T) {
	b := setup(t, httpkey.Options{}, verdicts(t))
	type kept struct{ effects, records int }
	committed, rolledBack, forgotten := kept{1, 1}, kept{0, 1}, kept{0, 0}
	for _, c := range []struct {
		statuses []int
		verdict  string
		want     kept
	}{
		{[]int{200, 201, 202, 204, 226, 301, 302, 303, 304, 399}, "", committed},
		{[]int{402, 404, 409, 410}, "", rolledBack},
		{[]int{307, 308, 400, 401, 403, 405, 412, 418, 422, 429, 451, 500, 501, 502, 503, 504, 599}, "", forgotten},
		{[]int{400, 403, 422, 500}, "keep", rolledBack},
		{[]int{200, 303}, "keep", committed},
		{[]int{307, 308}, "keep", forgotten},
		{[]int{404}, "keep", rolledBack},
		{[]int{200, 201, 303, 402, 404, 409, 422, 500}, "discard", forgotten},
		{[]int{200, 422}, "keep,discard", forgotten},
		{[]int{422}, "discard,keep", rolledBack},
		{[]int{200}, "discard,keep", committed},
	} {
		for _, status := range c.statuses {
			t.Run(fmt.Sprint(status, c.verdict), func(t *testing.T) {
				b.exec("truncate effects")
				b.exec("truncate samekey.processed_events")
				sub := &bundle{t: t, db: b.db, url: b.url}
				path := fmt.Sprintf("/%d", status)
				first := sub.send("POST", path, "k1", "{}", with("X-Attempt", "1"), with("X-Verdict", c.verdict))
				if first.status != status || first.replayed {
					t.Fatalf("answered %d, replayed %t", first.status, first.replayed)
				}
				sub.holds(c.want.effects, c.want.records, 0)
				again := sub.send("POST", path, "k1", "{}", with("X-Attempt", "2"), with("X-Verdict", c.verdict))
				if c.want.records == 1 {
					sub.sameAs(first, again)
				} else if again.status != status || again.replayed || first.body == again.body && first.body != "" {
					t.Errorf("not done again: first %q, again %q, replayed %t", first.body, again.body, again.replayed)
				}
				sub.holds(c.want.effects, c.want.records, 0)
			})
		}
	}
}

func TestAForgottenKeyMayBeUsedForAnotherRequest(t *testing.T) {
	b := setup(t, httpkey.Options{}, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if string(body) == `{"n":-1}` {
			_ = effect(r, "bad")
			http.Error(w, "n is negative", http.StatusUnprocessableEntity)
			return
		}
		created(w, r)
	})
	b.want(b.post("k1", `{"n":-1}`), 422, "")
	b.holds(0, 0, 1)
	b.want(b.post("k1", `{"n":1}`), 201, "")
	b.holds(1, 1, 2)
}

func TestAPanicStoresNothing(t *testing.T) {
	fail := true
	b := setup(t, httpkey.Options{}, func(w http.ResponseWriter, r *http.Request) {
		if fail {
			fail = false
			_ = effect(r, "half")
			w.WriteHeader(http.StatusCreated)
			panic("a bug")
		}
		created(w, r)
	})
	if got, err := b.try(t.Context(), "POST", "/things", "k1", "{}"); err == nil {
		t.Errorf("answered %d %s", got.status, got.body)
	}
	b.holds(0, 0, 1)
	b.want(b.post("k1", "{}"), 201, "")
	b.holds(1, 1, 2)
}

func TestHandlerWithoutAnswerIsAnError(t *testing.T) {
	b := setup(t, httpkey.Options{}, func(w http.ResponseWriter, r *http.Request) {
		if err := effect(r, "half"); err != nil {
			t.Error(err)
		}
		w.Header().Set("X-Other", "1")
	})
	got := b.post("k1", "{}")
	b.want(got, 500, "internal")
	b.holds(0, 0, 1)
	if !strings.Contains(b.log.String(), "without an answer") {
		t.Errorf("the log does not say why: %s", b.log)
	}
}

func TestAbortRollsBackAndForgets(t *testing.T) {
	cause := errMine
	b := setup(t, httpkey.Options{}, func(w http.ResponseWriter, r *http.Request) {
		if err := effect(r, "half"); err != nil {
			t.Error(err)
		}
		w.Header().Set("Location", "/half")
		w.WriteHeader(http.StatusCreated)
		_, _ = io.WriteString(w, "half an answer")
		httpkey.Abort(r.Context(), cause)
	})
	got := b.post("k1-secret", "{}")
	b.want(got, 500, "internal")
	if got.header.Get("Location") != "" || strings.Contains(got.body, "mine") {
		t.Errorf("answered %v %s", got.header, got.body)
	}
	if log := b.log.String(); !strings.Contains(log, "mine") || !strings.Contains(log, "key=key:") || strings.Contains(log, "secret") {
		t.Errorf("logged %s", log)
	}
	cause = fmt.Errorf("ask: %w", context.DeadlineExceeded)
	got = b.post("k1", "{}")
	b.want(got, 503, "unavailable")
	if got.header.Get("Retry-After") != "1" {
		t.Errorf("Retry-After %q", got.header.Get("Retry-After"))
	}
	cause = fmt.Errorf("of another request: %w", processed.ErrConflict)
	b.want(b.post("k1", "{}"), 500, "internal")
	b.holds(0, 0, 3)
	cause = nil
	b.want(b.post("k1", "{}"), 201, "")
	b.holds(1, 1, 4)
}

func TestAbortWithAFailureIsAnAnswer(t *testing.T) {
	b := setup(t, httpkey.Options{}, func(w http.ResponseWriter, r *http.Request) {
		if err := effect(r, "half"); err != nil {
			t.Error(err)
		}
		httpkey.Abort(r.Context(), fmt.Errorf("insert: %w", processed.Fail(402, map[string]string{"code": "declined"})))
	})
	first := b.post("k1", "{}")
	b.sameAs(first, b.post("k1", "{}"))
	if first.status != 402 || first.body != `{"code":"declined"}` || first.header.Get("Content-Type") != "application/json" {
		t.Errorf("answered %d %s %v", first.status, first.body, first.header)
	}
	b.holds(0, 1, 1)
}

func TestUnreportedFailedStatementCommitsNothing(t *testing.T) {
	b := setup(t, httpkey.Options{}, func(w http.ResponseWriter, r *http.Request) {
		_ = effect(r, "half")
		_, _ = httpkey.Tx(r.Context()).Exec(r.Context(), "select 1/0")
		w.WriteHeader(http.StatusCreated)
	})
	b.want(b.post("k1", "{}"), 500, "internal")
	b.holds(0, 0, 1)
}

func TestTransactionsThatCollideAreRunAgainWithTheWholeBody(t *testing.T) {
	b := setup(t, httpkey.Options{Isolation: pgx.Serializable}, func(w http.ResponseWriter, r *http.Request) {
		ctx, tx := r.Context(), httpkey.Tx(r.Context())
		body, err := io.ReadAll(r.Body)
		if err != nil || string(body) != `{"n":1}` {
			t.Errorf("the body is %q, %v", body, err)
		}
		w.Header().Add("X-Run", "one")
		var total int
		if err := tx.QueryRow(ctx, "select count(*) from effects").Scan(&total); err != nil {
			httpkey.Abort(ctx, err)
			return
		}
		if err := effect(r, fmt.Sprint(total)); err != nil {
			httpkey.Abort(ctx, err)
			return
		}
		w.WriteHeader(http.StatusCreated)
		fmt.Fprint(w, total)
	})
	var clients sync.WaitGroup
	for i := range 8 {
		clients.Go(func() {
			if r := b.post(fmt.Sprint("k", i), `{"n":1}`); r.status != 201 || len(r.header["X-Run"]) != 1 {
				t.Errorf("answered %d %s %v", r.status, r.body, r.header["X-Run"])
			}
		})
	}
	clients.Wait()
	var distinct int
	if err := b.db.QueryRow(t.Context(), "select count(distinct note) from effects").Scan(&distinct); err != nil || distinct != 8 {
		t.Errorf("%d of 8 saw a state of their own, %v", distinct, err)
	}
	if b.ran.Load() == 8 {
		t.Log("no request collided")
	}
}

func TestIntentsAreInsertedUnderTheRequestsKey(t *testing.T) {
	b := setup(t, httpkey.Options{}, func(w http.ResponseWriter, r *http.Request) {
		if _, err := outbox.Insert(r.Context(), httpkey.Tx(r.Context()), outbox.Intent{Action: "charge", Payload: []byte("1")}); err != nil {
			t.Error(err)
		}
		w.Header().Set("X-Key", httpkey.Key(r.Context()).Value)
		status, _ := strconv.Atoi(r.URL.Path[1:])
		w.WriteHeader(status)
	})
	if got := b.send("POST", "/404", "k0", ""); got.status != 404 || got.header.Get("X-Key") != "k0" {
		t.Errorf("answered %d %v", got.status, got.header)
	}
	b.send("POST", "/500", "k0b", "")
	b.send("POST", "/202", "k1", "")
	b.send("POST", "/202", "k1", "")
	var keys []string
	err := b.db.QueryRow(t.Context(), "select array_agg(idem_key || ' ' || scope) from samekey.outbox").Scan(&keys)
	if err != nil || len(keys) != 1 || keys[0] != "k1 acme/things.create" {
		t.Errorf("intents %v, %v", keys, err)
	}
}

func TestAnAnswerOfProcessedRunReplaysOverHTTP(t *testing.T) {
	raw := func(_ *http.Request, body []byte) (samekey.Fingerprint, error) {
		return samekey.FingerprintBytes(body), nil
	}
	b := setup(t, httpkey.Options{Fingerprint: raw}, created)
	key, err := samekey.NewKey("k1", "acme", "things.create")
	if err != nil {
		t.Fatal(err)
	}
	_, err = processed.Run(t.Context(), b.db.Pool, processed.Request{Key: key, Payload: samekey.FingerprintBytes([]byte("{}"))},
		func(context.Context, pgx.Tx) (map[string]int, error) { return map[string]int{"id": 7}, nil })
	if err != nil {
		t.Fatal(err)
	}
	got := b.post("k1", "{}")
	if got.status != 200 || got.body != `{"id":7}` || got.header.Get("Content-Type") != "application/json" || !got.replayed {
		t.Errorf("answered %d %s %v", got.status, got.body, got.header)
	}
	b.holds(0, 1, 0)
}

func TestLostCommitResponseIsFoundOut(t *testing.T) {
	b := setup(t, httpkey.Options{}, created)
	b.close()
	proxy := wiretest.Start(t, b.db.DSN)
	pool := b.pool(proxy.DSN())
	b.serve(httpkey.Options{}, pool, created, nil)
	b.want(b.post("warm", "{}"), 201, "")

	lost := proxy.Arm(wiretest.LoseAnswer, "commit")
	first := b.post("k1", "{}")
	<-lost
	if first.status != 201 || !first.replayed {
		t.Errorf("answered %d %s, replayed %t", first.status, first.body, first.replayed)
	}
	again := b.post("k1", "{}")
	if again.body != first.body {
		t.Errorf("first %s, again %s", first.body, again.body)
	}
	b.holds(2, 2, 2)

	cut := proxy.Arm(wiretest.CutBefore, "commit")
	got := b.post("k2", "{}")
	<-cut
	b.want(got, 503, "unavailable")
	b.holds(2, 2, 3)
	b.want(b.post("k2", "{}"), 201, "")
	b.holds(3, 3, 4)
}

func TestUnavailableDatabaseIs503(t *testing.T) {
	b := setup(t, httpkey.Options{}, created)
	b.close()
	proxy := wiretest.Start(t, b.db.DSN)
	pool := b.pool(proxy.DSN())
	b.serve(httpkey.Options{}, pool, created, nil)
	b.want(b.post("k1", "{}"), 201, "")
	allow := "alter database " + pgx.Identifier{pool.Config().ConnConfig.Database}.Sanitize() + " allow_connections "
	elsewhere := b.db.Config().ConnConfig.Copy()
	elsewhere.Database = "postgres"
	admin, err := pgx.ConnectConfig(t.Context(), elsewhere)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = admin.Close(context.Background()) }()
	if _, err := admin.Exec(t.Context(), allow+"false"); err != nil {
		t.Fatal(err)
	}
	proxy.Cut()
	got := b.post("k2", "{}")
	b.want(got, 503, "unavailable")
	if _, err := admin.Exec(t.Context(), allow+"true"); err != nil {
		t.Fatal(err)
	}
	b.want(b.post("k2", "{}"), 201, "")
	b.holds(2, 2, 2)
}

func TestADeferredConstraintThatFailsAtCommitIsAnError(t *testing.T) {
	b := setup(t, httpkey.Options{}, created)
	b.exec("alter table effects add constraint one_note unique (note) deferrable initially deferred")
	b.want(b.post("k1", "{}"), 201, "")
	b.want(b.post("k2", "{}"), 500, "internal")
	b.holds(1, 1, 2)
	if !strings.Contains(b.log.String(), "one_note") {
		t.Errorf("logged %s", b.log)
	}
}

// pool is one of the test's own.
func (b *bundle) pool(dsn string) *pgxpool.Pool {
	b.t.Helper()
	pool, err := pgxpool.New(b.t.Context(), dsn)
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { b.close(); pool.Close() })
	return pool
}

func TestErasedAnswerIs410AndNotRunAgain(t *testing.T) {
	b := setup(t, httpkey.Options{}, created)
	first := b.post("k", `{"a":1}`)
	b.exec(`select samekey.erase_scope(p.scope, 'dpo', 'request 7', after => '{"key": "", "scope": ""}') from samekey.processed_events p`)
	for range 2 {
		b.want(b.post("k", `{"a":1}`), http.StatusGone, "answer-erased")
	}
	b.want(b.post("k", `{"a":2}`), http.StatusUnprocessableEntity, "key-reused")
	b.holds(1, 1, 1)
	if first.status != http.StatusCreated {
		t.Errorf("the first answer was %d", first.status)
	}
}
