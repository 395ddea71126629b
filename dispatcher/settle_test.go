package dispatcher

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/samekey/samekey/internal/db"
	"github.com/samekey/samekey/internal/dbtest"
	"github.com/samekey/samekey/outbox"
	"github.com/samekey/samekey/samekeytest"
)

// settling returns a settler, a session that holds its worker's lock, and a destination that claims charge_card.
func settling(t *testing.T) (*samekeytest.DB, *worker, *settler) {
	t.Helper()
	t.Parallel()
	on := samekeytest.NewDB(t)
	d := New(on.Pool, &Config{Logger: slog.New(slog.DiscardHandler)})
	Handle(d, outbox.NewAction[[]byte]("charge_card"), Delivery[[]byte]{
		Policy: Policy{Class: IdempotentWrite, KeyWindow: Forever},
		Send:   func(context.Context, *Call, []byte) (Outcome, error) { return Delivered(Response{}), nil },
	})
	n, err := d.newWorker(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(n.close)
	conn, err := n.session.open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { n.session.leave(conn) })
	if _, err := on.Exec(t.Context(), `select samekey.enqueue('tenant/orders', 'order-1', 'charge_card', '{}')`); err != nil {
		t.Fatal(err)
	}
	return on, n, n.settler
}

// A worker may not know yet that its session is gone. The claim itself checks.
func TestClaimWithoutTheLockTakesNothing(t *testing.T) {
	on, n, _ := settling(t)
	if _, err := on.Exec(t.Context(), `select pg_terminate_backend(pid) from pg_locks where locktype = 'advisory' and classid::bigint = samekey.worker_class()
		and objid::bigint = $1 and database = (select oid from pg_database where datname = current_database())`, n.session.id()); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); {
		var gone bool
		if err := on.QueryRow(t.Context(), `select pg_try_advisory_xact_lock_shared(samekey.worker_class(), $1)`, n.session.id()).Scan(&gone); err != nil {
			t.Fatal(err)
		}
		if gone {
			break
		}
	}
	rows, err := n.q.OutboxQueueClaim(t.Context(), n.destinations.list[0].claimParams(n.destinations.list[0].actions[0], time.Time{}, 1))
	if err != nil || len(rows) != 0 {
		t.Fatalf("claimed %d intents, %v; want none", len(rows), err)
	}
}

// claimOne claims the only due intent.
func claimOne(t *testing.T, n *worker) *claim {
	t.Helper()
	a := n.destinations.list[0].actions[0]
	rows, err := n.q.OutboxQueueClaim(t.Context(), n.destinations.list[0].claimParams(a, time.Time{}, 1))
	if err != nil || len(rows) != 1 {
		t.Fatalf("claimed %d intents, %v", len(rows), err)
	}
	c := newClaim(rows[0], a, time.Now(), n.session.id())
	c.resting = a.beforeCall(&c.OutboxQueueClaimRow)
	return c
}

func resultOf(c *claim, o Outcome) result {
	return result{claim: c, settlement: c.action.decide(&c.OutboxQueueClaimRow, o)}
}

// settle writes a batch, late answers too, and returns which of its settlements were written.
func settle(ctx context.Context, s *settler, batch []result) (written []bool) {
	s.persist(ctx, batch)
	s.alone.Wait()
	for _, r := range batch {
		written = append(written, <-r.claim.settled)
	}
	return written
}

// deliver runs a claim's delivery as the drain does.
func deliver(t *testing.T, n *worker, c *claim) {
	t.Helper()
	d := n.destinations.list[0]
	if d.slots.reserve() == 0 {
		t.Fatal("no slot is free")
	}
	n.open.Add(1)
	ended := make(chan struct{})
	go func() { defer close(ended); d.deliver(c) }()
	batch, _ := n.settler.next(t.Context(), nil)
	n.settler.persist(t.Context(), batch)
	<-ended
}

func TestLateResultInTheNextBatchIsFenced(t *testing.T) {
	on, n, s := settling(t)
	first := claimOne(t, n)
	if _, err := on.Exec(t.Context(), `update samekey.outbox_queue set status = 'pending', leased_by = null, lease_until = null`); err != nil {
		t.Fatal(err)
	}
	second := claimOne(t, n)

	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second) // a refused batch is retried until then
	defer cancel()
	written := settle(ctx, s, []result{resultOf(first, Delivered(Response{Code: "200"})), resultOf(second, Delivered(Response{Code: "200"}))})
	if written[0] || !written[1] {
		t.Errorf("the first attempt settled: %v, the second: %v, want only the second", written[0], written[1])
	}
	if got := timeline(t, on); got != "late:1 attempt:2:delivered" && got != "attempt:2:delivered late:1" {
		t.Errorf("the history is %q", got)
	}
}

// Both attempts are by the same worker. Only the attempt's number differs.
func TestLateResultDoesNotEndTheNextAttempt(t *testing.T) {
	for name, outcome := range map[string]Outcome{"delivered": Delivered(Response{}), "to be retried": Unknown(Response{})} {
		t.Run(name, func(t *testing.T) {
			on, n, s := settling(t)
			first := claimOne(t, n)
			if _, err := on.Exec(t.Context(), `update samekey.outbox_queue set status = 'pending', leased_by = null, lease_until = null`); err != nil {
				t.Fatal(err)
			}
			second := claimOne(t, n)
			settled := settle(t.Context(), s, []result{resultOf(first, outcome)})[0]
			var held bool
			if err := on.QueryRow(t.Context(), `select exists (select from samekey.outbox_queue where status = 'leased' and attempt = $1)`, second.Attempt).Scan(&held); err != nil {
				t.Fatal(err)
			}
			if settled || !held || timeline(t, on) != "late:1" {
				t.Errorf("the late result was settled: %v, the second attempt is held: %v, the history %q", settled, held, timeline(t, on))
			}
		})
	}
}

func timeline(t *testing.T, on *samekeytest.DB) (line string) {
	t.Helper()
	err := on.QueryRow(t.Context(), `select coalesce(string_agg(concat_ws(':', event, attempt, final_status), ' ' order by id), '')
		from samekey.outbox_history`).Scan(&line)
	if err != nil {
		t.Fatal(err)
	}
	return line
}

// If the answer to a settle's commit is lost, the settle is written again. It matches no row and adds no second event.
func TestRepeatedSettleAddsOneEvent(t *testing.T) {
	on, n, s := settling(t)
	c := claimOne(t, n)
	settle(t.Context(), s, []result{resultOf(c, conclude(Outcome{}, errors.New("reset"), false, false))})
	settle(t.Context(), s, []result{resultOf(c, conclude(Outcome{}, errors.New("reset"), false, false))})
	if got := timeline(t, on); got != "attempt:1" {
		t.Errorf("the history is %q", got)
	}
}

func TestDefiniteLateAnswerOfTheLastSendResolves(t *testing.T) {
	done, lost := Delivered(Response{Code: "200"}), Unknown(Response{})
	for _, c := range []struct {
		status  string // the status when the late answer arrives
		later   bool   // another attempt was sent meanwhile
		outcome Outcome
		want    string // the status afterwards
		history string
	}{
		{"unknown", false, done, "answered", "late:1"},
		{"parked", false, done, "answered", "late:1"},
		{"unknown", false, Refused(Response{Code: "402"}), "answered", "late:1"},
		{"unknown", false, lost, "unknown", "late:1"},
		{"unknown", true, done, "unknown", "late:1"},
		{"parked", true, done, "parked", "late:1"},
		{"dead", false, done, "answered", "late:1"},
		{"dead", true, done, "dead", "late:1"},
		{"dead", false, lost, "dead", "late:1"},
		{"pending", false, done, "pending", "late:1"},
	} {
		t.Run(c.status, func(t *testing.T) {
			on, n, s := settling(t)
			first := claimOne(t, n)
			release := `update samekey.outbox_queue set status = 'pending', leased_by = null, lease_until = null`
			if c.later {
				if _, err := on.Exec(t.Context(), release); err != nil {
					t.Fatal(err)
				}
				claimOne(t, n)
			}
			if _, err := on.Exec(t.Context(), `update samekey.outbox_queue set status = $1, leased_by = null, lease_until = null, last_sent_attempt = attempt`, c.status); err != nil {
				t.Fatal(err)
			}
			r := resultOf(first, c.outcome)
			settled := settle(t.Context(), s, []result{r})[0]
			settled = settled || settle(t.Context(), s, []result{r})[0] // a repetition changes nothing
			var status string
			if err := on.QueryRow(t.Context(), `select status from samekey.outbox_queue`).Scan(&status); err != nil {
				t.Fatal(err)
			}
			if status != c.want || settled || timeline(t, on) != c.history {
				t.Errorf("the intent is %s, its history %q; want %s, %q", status, timeline(t, on), c.want, c.history)
			}
		})
	}
}

// An answer that does not count is recorded beside the one that does, and Apply does not get it.
func TestApplyGetsTheAnswerThatCounts(t *testing.T) {
	on, n, s := settling(t)
	first := claimOne(t, n)
	if _, err := on.Exec(t.Context(), `update samekey.outbox_queue set status = 'pending', leased_by = null, lease_until = null`); err != nil {
		t.Fatal(err)
	}
	second := claimOne(t, n)
	second.action.apply = func(context.Context, pgx.Tx, Settled) error { return nil }
	settle(t.Context(), s, []result{resultOf(second, Delivered(Response{Code: "200"}))})
	settle(t.Context(), s, []result{resultOf(first, Refused(Response{Code: "402"}))})
	answer, err := n.q.OutboxHistoryAnswer(t.Context(), second.ID)
	if err != nil {
		t.Fatal(err)
	}
	if answer.Outcome != outcomeDelivered || answer.Code != "200" {
		t.Errorf("Apply would get %q with code %q, want the second attempt's answer", answer.Outcome, answer.Code)
	}
}

// A lookup gets the answer of the last attempt that was sent, even if it came late, and no earlier answer.
func TestLookupGetsTheLastSendsAnswer(t *testing.T) {
	on, n, s := settling(t)
	orphan := func(c *claim) {
		t.Helper()
		if _, err := on.Exec(t.Context(), `update samekey.outbox_queue set status = 'unknown', last_sent_attempt = $1, leased_by = null, lease_until = null`, c.Attempt); err != nil {
			t.Fatal(err)
		}
	}
	told := func(c *claim) string {
		t.Helper()
		answer, err := n.destinations.list[0].lastResponse(t.Context(), c)
		if err != nil {
			t.Fatal(err)
		}
		if answer == nil {
			return "nothing"
		}
		return answer.Code + " " + answer.ContentType + " " + string(answer.Body)
	}
	first := claimOne(t, n)
	orphan(first)
	if got := told(first); got != "nothing" {
		t.Errorf("gets %s before there is an answer", got)
	}
	second := claimOne(t, n)
	orphan(second)
	settle(t.Context(), s, []result{resultOf(first, Unknown(Response{Code: "500", Body: []byte("first")}))})
	if got := told(second); got != "nothing" {
		t.Errorf("gets %s from an attempt that was not the last", got)
	}
	settle(t.Context(), s, []result{resultOf(second, Unknown(Response{Code: "502", ContentType: "text/plain", Body: []byte("second")}))})
	if got := told(second); got != "502 text/plain second" || timeline(t, on) != "late:1 late:2" {
		t.Errorf("gets %s, after %s", got, timeline(t, on))
	}
}

// Without the last answer, a lookup might ask the wrong question. It is not made, and uses no attempt.
func TestLookupNeedsTheLastAnswer(t *testing.T) {
	_, n, _ := settling(t)
	n.destinations.list[0].actions[0].lookup = func(context.Context, *Call) (Outcome, error) {
		t.Error("the lookup was made")
		return Outcome{}, nil
	}
	c := claimOne(t, n)
	c.action.policy.Attempts = 1
	c.Status, c.asked, c.resting = statusUnknown, time.Now().Add(-time.Hour), nil // there is no time left to read it
	s := n.destinations.list[0].attempt(c)
	if s.event != "lookup" || s.status != statusUnknown || s.outcome != outcomeRetry || s.attemptsUsed != 0 || s.delay != time.Second {
		t.Errorf("the settlement is %+v", s)
	}
}

func TestClaimDuringAStopIsGivenBack(t *testing.T) {
	on, n, _ := settling(t)
	n.destinations.list[0].actions[0].send = func(context.Context, *Call) (Outcome, error) {
		t.Error("a call began after the stop")
		return Delivered(Response{}), nil
	}
	c := claimOne(t, n)
	close(n.stopping)
	deliver(t, n, c)
	n.open.Wait()
	if n.reports.summary().Retried != 1 || timeline(t, on) != "attempt:1" {
		t.Errorf("the sum is %+v, the history %q", n.reports.summary(), timeline(t, on))
	}
	var unsent bool
	err := on.QueryRow(t.Context(), `select status = 'pending' and first_sent_at is null and attempts_used = 0 and due_at <= clock_timestamp() from samekey.outbox_queue`).Scan(&unsent)
	if err != nil || !unsent {
		t.Errorf("it does not look unclaimed: %v", err)
	}
}

func TestRetakingTheLockEndsNoOtherSession(t *testing.T) {
	on, n, _ := settling(t)
	copied := *n.session
	other := &copied
	other.identity, other.name = &identity{}, "other"
	conn, err := other.open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	closeConn(conn) // lost
	looking, err := on.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer looking.Rollback(context.WithoutCancel(t.Context()))
	look := func() (gone bool) {
		if err := looking.QueryRow(t.Context(), `select pg_try_advisory_xact_lock_shared(samekey.worker_class(), $1)`, other.id()).Scan(&gone); err != nil {
			t.Fatalf("a session that tests the lock was ended: %v", err)
		}
		return gone
	}
	for deadline := time.Now().Add(10 * time.Second); !look() && time.Now().Before(deadline); {
	}
	again, err := n.session.connect(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer closeConn(again)
	if err := other.lock(t.Context(), again); err == nil {
		t.Error("the lock was taken while another session tests it")
	}
	look()
	if err := looking.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := other.lock(t.Context(), again); err != nil {
		t.Errorf("the lock is not taken a moment later: %v", err)
	}
}

// After an outage longer than its leases, a worker writes its outcomes before its own sweep releases them.
func TestUnwrittenOutcomesKeepLeasesAndStopClaims(t *testing.T) {
	on, n, _ := settling(t)
	claimOne(t, n)
	samekeytest.Elapse(t, on, time.Hour)
	s := newSweeper(n.core, n.destinations, n.settler, n.applier, n.attender)
	for _, behind := range []bool{true, false} {
		n.settler.behind.Store(behind)
		if n.destinations.list[0].mayClaim() == behind {
			t.Errorf("with unwritten outcomes: %v; may claim: %v", behind, n.destinations.list[0].mayClaim())
		}
		if err := s.sweep(t.Context()); err != nil {
			t.Fatal(err)
		}
		var leased bool
		if err := on.QueryRow(t.Context(), `select status = 'leased' from samekey.outbox_queue`).Scan(&leased); err != nil {
			t.Fatal(err)
		}
		if leased != behind {
			t.Errorf("with unwritten outcomes: %v; still leased: %v", behind, leased)
		}
	}
}

// The first claim of an irreversible action sends nothing. If its worker dies before that is written, the intent still
// waits for approval, and does not count as sent.
func TestOrphanedUnapprovedIntentWaitsForApproval(t *testing.T) {
	on, n, s := settling(t)
	a := n.destinations.list[0].actions[0]
	a.policy.Class, a.policy.KeyWindow = IrreversibleWrite, 0
	claimOne(t, n)
	rows, err := n.q.OutboxQueueRelease(t.Context(), db.OutboxQueueReleaseParams{Holder: n.session.id(), HolderGone: true, MaxCount: 10})
	if err != nil || len(rows) != 1 || rows[0].Status != statusPending {
		t.Fatalf("released %+v, %v", rows, err)
	}
	c := claimOne(t, n)
	decided, send := a.beforeSend(&c.OutboxQueueClaimRow)
	if send || decided.status != statusAwaiting {
		t.Errorf("the next claim: sent %v, %s; want it to wait for approval", send, decided.status)
	}
	settled := settle(t.Context(), s, []result{{claim: c, settlement: decided}})[0]
	var unsent bool
	err = on.QueryRow(t.Context(), `select status = 'awaiting_approval' and first_sent_at is null from samekey.outbox_queue`).Scan(&unsent)
	if err != nil || !settled || !unsent {
		t.Errorf("settled %v, waits unsent %v, %v", settled, unsent, err)
	}
}

// A lease that could not be marked as sent may belong to another worker by now. It is given back and not sent.
func TestUnmarkedClaimIsGivenBack(t *testing.T) {
	on, n, _ := settling(t)
	withPolicy(n)
	a := n.destinations.list[0].actions[0]
	a.policy.Class, a.policy.KeyWindow = NonIdempotentWrite, 0
	a.send = func(context.Context, *Call) (Outcome, error) {
		t.Error("it was sent")
		return Delivered(Response{}), nil
	}
	first := claimOne(t, n)
	n.destinations.list[0].markSending(t.Context(), a, []*claim{first})
	if first.unmarked {
		t.Error("a valid lease was not marked")
	}
	mustExec(t, on, `update samekey.outbox_queue set attempt = attempt + 1`) // taken over
	n.destinations.list[0].markSending(t.Context(), a, []*claim{first})
	if !first.unmarked {
		t.Error("a lease that was taken over was marked")
	}
	mustExec(t, on, `update samekey.outbox_queue set attempt = attempt - 1`)
	deliver(t, n, first)
	var unsent bool
	err := on.QueryRow(t.Context(), `select status = 'pending' and first_sent_at is null and attempts_used = 0 from samekey.outbox_queue`).Scan(&unsent)
	if err != nil || !unsent {
		t.Errorf("it does not look unclaimed: %v", err)
	}
}

// Claims stop as soon as outcomes cannot be written.
func TestOutageStopsClaims(t *testing.T) {
	_, n, s := settling(t)
	c := claimOne(t, n)
	away, err := pgxpool.New(t.Context(), "postgres://nobody@127.0.0.1:1/gone?connect_timeout=1")
	if err != nil {
		t.Fatal(err)
	}
	defer away.Close()
	back := s.q
	s.pool, s.q = away, db.New(away)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		s.persist(ctx, []result{resultOf(c, Delivered(Response{Code: "200"}))})
	}()
	for deadline := time.Now().Add(20 * time.Second); !n.settler.behind.Load(); {
		if time.Now().After(deadline) {
			t.Fatal("claims go on")
		}
		time.Sleep(time.Millisecond)
	}
	if n.destinations.list[0].mayClaim() {
		t.Error("the destination may claim")
	}
	cancel()
	<-ended
	if <-c.settled {
		t.Error("the outcome was reported as written")
	}
	s.pool, s.q = n.pool, back
	settled := settle(t.Context(), s, []result{resultOf(c, Delivered(Response{Code: "200"}))})[0]
	if !settled || n.settler.behind.Load() {
		t.Errorf("with the database: settled %v, claims stopped %v", settled, n.settler.behind.Load())
	}
}

// The transaction that finishes an ordered intent with its Apply makes the next intent of the key due.
func TestApplyPromotesTheNextHead(t *testing.T) {
	on, n, s := settling(t)
	withPolicy(n)
	mustExec(t, on, `delete from samekey.outbox_queue`)
	mustExec(t, on, `select samekey.enqueue('tenant/orders', 'ordered-' || g, 'charge_card', '{}', ordering_key => 'account') from generate_series(1, 2) g`)
	c := claimOne(t, n)
	c.action.apply = func(context.Context, pgx.Tx, Settled) error { return nil }
	settle(t.Context(), s, []result{resultOf(c, Delivered(Response{Code: "200"}))})
	outcome, err := n.applier.runner.applyOnce(t.Context(), c)
	if err != nil || outcome != outcomeDelivered {
		t.Fatalf("the Apply returned %q, %v", outcome, err)
	}
	var due bool
	if err := on.QueryRow(t.Context(), `select status = 'pending' and due_at <= clock_timestamp() from samekey.outbox_queue`).Scan(&due); err != nil || !due {
		t.Errorf("the next intent is due: %v, %v", due, err)
	}
}

// Only calls get the secrets of an endpoint.
func TestApplyGetsNoEndpoint(t *testing.T) {
	var told *Settled
	a := actionOf(IdempotentWrite, 5)
	a.apply = func(_ context.Context, _ pgx.Tx, o Settled) error { told = &o; return nil }
	c := &claim{action: a, endpoint: &storedEndpoint{Endpoint: Endpoint{Name: "shop", Secrets: Secrets{"s3cret"}}}}
	if err := (&applyRunner{}).callApply(t.Context(), &applyTx{}, c, db.OutboxHistoryAnswerRow{}); err != nil || told == nil || told.Endpoint != nil {
		t.Errorf("Apply got %+v, %v", told, err)
	}
}

func TestWriteAttemptSendsOneRequest(t *testing.T) {
	for _, class := range classes {
		for _, resend := range []bool{true, false} {
			a := actionOf(class, 5)
			a.policy.ResendAbsent = resend
			if may := a.requests(); may.Once != (class != Read) || may.Direct != resend {
				t.Errorf("%v, ResendAbsent %t: one request %t, no proxy %t", class, resend, may.Once, may.Direct)
			}
		}
	}
}

func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	dbtest.Until(t, what, condition)
}

// A settlement that waits for a lock keeps its lease and is counted, since too many of them stop the claims.
func TestDelayedOutcomeKeepsItsLease(t *testing.T) {
	for name, c := range map[string]struct{ ordering, lock string }{
		"by a lock on the history": {"", `lock table samekey.outbox_history in exclusive mode`},
		"by a writer of its order": {"account", `select pg_advisory_xact_lock(samekey.ordering_lock('account'))`},
	} {
		t.Run(name, func(t *testing.T) {
			on, n, s := settling(t)
			withPolicy(n)
			mustExec(t, on, `delete from samekey.outbox_queue`)
			mustExec(t, on, `select samekey.enqueue('tenant/orders', 'held', 'charge_card', '{}', ordering_key => nullif($1, ''))`, c.ordering)
			claimed := claimOne(t, n)
			mustExec(t, on, `update samekey.outbox_queue set lease_until = clock_timestamp() - interval '1 minute'`)
			tx, err := on.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer tx.Rollback(context.WithoutCancel(t.Context()))
			if _, err := tx.Exec(t.Context(), c.lock); err != nil {
				t.Fatal(err)
			}
			ended := make(chan struct{})
			go func() { defer close(ended); s.run(t.Context()) }()
			n.settler.take(resultOf(claimed, Delivered(Response{Code: "200"})))
			n.settler.stop()
			eventually(t, "it is counted as held up", func() bool { return n.settler.stuck.Load() == 1 })
			eventually(t, "its lease is renewed", func() bool {
				var renewed bool
				err := on.QueryRow(t.Context(), `select lease_until > clock_timestamp() from samekey.outbox_queue`).Scan(&renewed)
				return err == nil && renewed
			})
			if err := tx.Rollback(t.Context()); err != nil {
				t.Fatal(err)
			}
			<-ended
			if settled := <-claimed.settled; !settled || n.settler.stuck.Load() != 0 {
				t.Errorf("settled %v, %d waiting", settled, n.settler.stuck.Load())
			}
		})
	}
}

func TestTooManyDelayedOutcomesStopClaims(t *testing.T) {
	_, n, _ := settling(t)
	for held, may := range map[int64]bool{maxStuck - 1: true, maxStuck: false} {
		n.settler.stuck.Store(held)
		if n.destinations.list[0].mayClaim() != may {
			t.Errorf("with %d waiting outcomes it may claim: %v", held, !may)
		}
	}
}

// A byte that Postgres refuses must not lose the only proof that a vendor acted.
func TestLateAnswerIsKeptWithAnyText(t *testing.T) {
	const text = "a\x00b\xff"
	for name, s := range map[string]settlement{
		"code": {response: Response{Code: text}}, "type": {response: Response{ContentType: text}}, "error": {err: text},
	} {
		t.Run(name, func(t *testing.T) {
			on, n, settler := settling(t)
			c := claimOne(t, n)
			mustExec(t, on, `update samekey.outbox_queue set status = 'pending', leased_by = null, lease_until = null, attempt = attempt + 1`)
			s.event, s.status, s.outcome = "attempt", statusPending, outcomeRetry
			settle(t.Context(), settler, []result{{claim: c, settlement: s}})
			if got := timeline(t, on); got != "late:1" {
				t.Errorf("the history is %q", got)
			}
		})
	}
}

func TestBatchIsBoundedByBytes(t *testing.T) {
	half := result{claim: &claim{}, settlement: settlement{response: Response{Body: make([]byte, settleBytes/2)}}}
	if n := batchSize([]result{half, half, half}); n != 2 {
		t.Errorf("a batch has %d outcomes of half of the limit", n)
	}
	if n := batchSize(make([]result, settleBatch+1)); n != settleBatch {
		t.Errorf("a batch has %d outcomes", n)
	}
}

func TestLogHashesKeys(t *testing.T) {
	c := &claim{action: actionOf(Read, 5)}
	c.Scope, c.IdemKey, c.Payload = "tenant-4711/orders", "order-of-ann", []byte(`"4242424242424242"`)
	logged := fmt.Sprint(c.attrs()...)
	for _, secret := range []string{c.Scope, c.IdemKey, string(c.Payload)} {
		if strings.Contains(logged, secret) {
			t.Errorf("%q is in %s", secret, logged)
		}
	}
	if !strings.Contains(logged, c.call().Key.Hash()) {
		t.Errorf("no hash of the key is in %s", logged)
	}
}

// If the endpoint no longer exists, an unknown intent is parked after its last lookup.
func TestLookupWithoutEndpointIsParked(t *testing.T) {
	a := actionOf(NonIdempotentWrite, 3)
	a.lookup = func(context.Context, *Call) (Outcome, error) { t.Error("the lookup was made"); return Outcome{}, nil }
	d := &destination{core: &core{calls: t.Context(), log: slog.New(slog.DiscardHandler)}}
	for used, want := range map[int32]string{1: statusUnknown, 2: statusParked} {
		c := &claim{action: a, asked: time.Now(), endpointErr: errNoEndpoint}
		c.Status, c.AttemptsUsed = statusUnknown, used
		if s := d.attempt(c); s.status != want || s.attemptsUsed != int(used)+1 {
			t.Errorf("after %d lookups: %+v", used, s)
		}
	}
}
