package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/goleak"

	"github.com/samekey/samekey"
	"github.com/samekey/samekey/internal/dbtest"
	"github.com/samekey/samekey/outbox"
	"github.com/samekey/samekey/samekeytest"
)

// awaiting is a service that awaits its intents.
type awaiting struct {
	*testing.T
	on   *samekeytest.DB
	pool *pgxpool.Pool // of the service
	trap *trap
}

// setupAwait makes a service whose regular reads never come, so that a test sees only what it is about. It checks that
// nothing is left behind.
func setupAwait(t *testing.T, changes ...func(*pgxpool.Config)) *awaiting {
	t.Helper()
	return setupAwaitWith(t, time.Hour, changes...)
}

func setupAwaitWith(t *testing.T, every time.Duration, changes ...func(*pgxpool.Config)) *awaiting {
	t.Helper()
	outbox.SetPace(t, every, 0, 0)
	ignore := goleak.IgnoreCurrent()
	a := &awaiting{T: t, trap: &trap{}}
	t.Cleanup(func() { goleak.VerifyNone(t, ignore) })
	a.on = samekeytest.NewDB(t)
	changes = append(changes, func(c *pgxpool.Config) { c.ConnConfig.Tracer = a.trap })
	a.pool = dbtest.Pool(t, a.on.DSN, changes...)
	return a
}

// insert writes an intent under a key of its own.
func (a *awaiting) insert() (samekey.Key, uuid.UUID) {
	a.Helper()
	key := newKey(a, samekey.Mint())
	return key, insert(a, a.on, outbox.Intent{Key: key, Action: "charge_card", Payload: 1})
}

// ends puts an intent into a state, as a worker does that announces nothing.
func (a *awaiting) ends(id uuid.UUID, status outbox.Status) { force(a, a.on, id, status, true, true) }

// announces is what a worker does after the commit.
func (a *awaiting) announces(ids ...uuid.UUID) {
	a.Helper()
	payload := ""
	for _, id := range ids {
		payload += "," + id.String()
	}
	dbtest.Exec(a, a.on, "select pg_notify('samekey_ended', $1)", payload[1:])
}

// answer is what a call of Await returned.
type answer struct {
	outbox.Awaited
	err error
}

// await starts a call, and returns when the listener has it.
func (a *awaiting) await(ctx context.Context, key samekey.Key, id uuid.UUID) <-chan answer {
	a.Helper()
	before, _ := outbox.Waiters(a.pool)
	answers := a.start(ctx, key, id)
	a.joined(before + 1)
	return answers
}

func (a *awaiting) start(ctx context.Context, key samekey.Key, id uuid.UUID) <-chan answer {
	answers := make(chan answer, 1)
	go func() {
		got, err := outbox.Await(context.WithValue(ctx, callerKey{}, true), a.pool, key, id)
		answers <- answer{got, err}
	}()
	return answers
}

func (a *awaiting) joined(n int) {
	a.Helper()
	dbtest.Until(a, fmt.Sprintf("%d calls wait", n), func() bool { waiting, _ := outbox.Waiters(a.pool); return waiting == n })
}

// quiet waits until the listener has read all its waiters after it began to listen: what ends from then on is not found
// unless it is announced.
func (a *awaiting) quiet() {
	a.Helper()
	dbtest.Until(a, "the service listens, and has read its waiters", func() bool { _, quiet := outbox.Waiters(a.pool); return quiet })
}

func (a *awaiting) want(got <-chan answer, id uuid.UUID, status outbox.Status) {
	a.Helper()
	if r := dbtest.Receive(a, "the end of the wait", got); r.err != nil || r.ID != id || r.Status != status {
		a.Errorf("got %+v, want %s %s", r, id, status)
	}
}

// waits checks that a call has not returned.
func (a *awaiting) waits(got <-chan answer) {
	a.Helper()
	select {
	case r := <-got:
		a.Fatalf("returned %+v", r)
	default:
	}
}

type callerKey struct{}

// trap counts the statements of a pool, and calls its hooks. A caller's own read has the context of the call, which has
// a mark; the listener's reads have none.
type trap struct {
	ownRead  func()        // after a caller's own read
	read     func(n int64) // after the listener's n-th read, before it takes what it read
	onListen func()        // before LISTEN

	mu                    sync.Mutex // of the hooks, where a test changes one later
	reads, listens, hints atomic.Int64
	listening             atomic.Bool
}

type sqlKey struct{}

func (tr *trap) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	switch {
	case strings.HasPrefix(data.SQL, "listen "):
		tr.listens.Add(1)
		tr.listening.Store(true)
		if hook := tr.hooks().onListen; hook != nil {
			hook()
		}
	case strings.Contains(data.SQL, "pg_notify"):
		tr.hints.Add(1)
	}
	return context.WithValue(ctx, sqlKey{}, data.SQL)
}

func (tr *trap) TraceQueryEnd(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryEndData) {
	sql, _ := ctx.Value(sqlKey{}).(string)
	switch {
	case strings.HasPrefix(sql, "unlisten "):
		tr.listening.Store(false)
	case !strings.Contains(sql, "intent_states"):
	case ctx.Value(callerKey{}) != nil:
		if hook := tr.hooks().ownRead; hook != nil {
			hook()
		}
	default:
		n := tr.reads.Add(1)
		if hook := tr.hooks().read; hook != nil {
			hook(n)
		}
	}
}

// hooks are the current ones.
func (tr *trap) hooks() (h struct {
	ownRead, onListen func()
	read              func(int64)
}) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	h.ownRead, h.onListen, h.read = tr.ownRead, tr.onListen, tr.read
	return h
}

func (tr *trap) set(change func()) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	change()
}

func TestAwaitReturnsAtOnceIfTheIntentHasEnded(t *testing.T) {
	a := setupAwait(t)
	for _, status := range outbox.Statuses() {
		key, id := a.insert()
		if status == outbox.StatusBlocked {
			continue // needs an ordering key; like pending
		}
		a.ends(id, status)
		ctx, cancel := context.WithCancel(t.Context())
		if !status.Finished() && status != outbox.StatusDead && status != outbox.StatusParked && status != outbox.StatusAwaitingApproval {
			got := a.await(ctx, key, id)
			cancel()
			if r := dbtest.Receive(t, "the cancelled wait", got); !errors.Is(r.err, context.Canceled) || r.Status != status || r.ID != id {
				t.Errorf("%s: got %+v, want the state and the end of the context", status, r)
			}
			continue
		}
		got, err := outbox.Await(ctx, a.pool, key, id)
		cancel()
		if code := map[bool]string{true: "200", false: "timeout"}[status.Finished()]; err != nil || got != (outbox.Awaited{ID: id, Status: status, Code: code}) {
			t.Errorf("%s: got %+v, %v", status, got, err)
		}
	}
}

func TestAwaitRefusesWhatIsNotCommitted(t *testing.T) {
	a := setupAwait(t)
	key := newKey(t, "order-1")
	tx, err := a.on.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	id, err := outbox.Insert(t.Context(), tx, outbox.Intent{Key: key, Action: "charge_card", Payload: 1})
	if err != nil {
		t.Fatal(err)
	}
	_, err = outbox.Await(t.Context(), a.pool, key, id)
	if !errors.Is(err, outbox.ErrNotFound) || !strings.Contains(err.Error(), "call Await after the commit") || strings.Contains(err.Error(), "order-1") {
		t.Errorf("before the commit: %v", err)
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	for what, other := range map[string]samekey.Key{"another value": newKey(t, "order-2"), "another scope": newKey(t, "order-1", "other", "operation")} {
		if _, err := outbox.Await(t.Context(), a.pool, other, id); !errors.Is(err, outbox.ErrNotFound) {
			t.Errorf("with %s: %v", what, err)
		}
	}
	_, err = outbox.Await(t.Context(), a.pool, samekey.Key{}, id)
	if _, invalid := errors.AsType[*samekey.KeyError](err); !invalid {
		t.Errorf("without a key: %v", err)
	}
	a.ends(id, outbox.StatusDelivered)
	if got, err := outbox.Await(t.Context(), a.pool, key, id); err != nil || got.Status != outbox.StatusDelivered {
		t.Errorf("after the commit: %+v, %v", got, err)
	}
}

func TestAwaitNeedsOnlyTheRightsOfTheApplication(t *testing.T) {
	a := setupAwait(t)
	_, appDSN, workerDSN := dbtest.Logins(t, a.on)
	key, id := a.insert()
	a.ends(id, outbox.StatusRefused)
	got, err := outbox.Await(t.Context(), dbtest.Pool(t, appDSN), key, id)
	if err != nil || got.Status != outbox.StatusRefused {
		t.Errorf("the application's role: %+v, %v", got, err)
	}
	denied := (*pgconn.PgError)(nil)
	if _, err := outbox.Await(t.Context(), dbtest.Pool(t, workerDSN), key, id); !errors.As(err, &denied) || denied.Code != "42501" {
		t.Errorf("another role: %v", err)
	}
	if _, err := outbox.Await(t.Context(), as(t, a.on, "other-service"), key, id); !errors.Is(err, samekey.ErrOtherService) {
		t.Errorf("another service: %v", err)
	}
}

func TestAnnouncedEndEndsTheWait(t *testing.T) {
	a := setupAwait(t)
	key, id := a.insert()
	_, other := a.insert()
	got, twin := a.await(t.Context(), key, id), a.await(t.Context(), key, id)
	a.quiet()
	a.announces(other) // not awaited
	a.announces(id)    // not true: the state counts
	dbtest.Exec(t, a.on, "select pg_notify('samekey_ended', 'no id')")
	a.ends(id, outbox.StatusDelivered)
	a.announces(other, id)
	a.want(got, id, outbox.StatusDelivered)
	a.want(twin, id, outbox.StatusDelivered)
}

func TestEndBeforeTheWaiterJoinsIsFound(t *testing.T) {
	a := setupAwait(t)
	key, id := a.insert()
	a.trap.ownRead = sync.OnceFunc(func() { // before a connection listens
		a.ends(id, outbox.StatusDelivered)
		a.announces(id)
	})
	a.trap.onListen = func() { // LISTEN's own read does not help
		dbtest.Until(t, "the wait is over", func() bool { waiting, _ := outbox.Waiters(a.pool); return waiting == 0 })
	}
	a.want(a.start(t.Context(), key, id), id, outbox.StatusDelivered)
}

func TestEndBeforeListenIsFound(t *testing.T) {
	a := setupAwait(t)
	key, id := a.insert()
	a.trap.onListen = sync.OnceFunc(func() {
		dbtest.Until(t, "the new waiter is read", func() bool { return a.trap.reads.Load() > 0 })
		a.ends(id, outbox.StatusDelivered)
		a.announces(id)
	})
	a.want(a.start(t.Context(), key, id), id, outbox.StatusDelivered)
}

func TestEndDuringAReadIsReadAgain(t *testing.T) {
	a := setupAwait(t)
	key, id := a.insert()
	first := a.await(t.Context(), key, id)
	a.quiet()
	last := a.trap.reads.Load()
	a.trap.set(func() {
		a.trap.read = func(n int64) {
			if n != last+1 {
				return
			}
			a.ends(id, outbox.StatusDelivered) // the read has seen it pending
			a.announces(id)
			dbtest.Until(t, "the announcement is heard", func() bool { return outbox.Due(a.pool) })
		}
	})
	a.announces(id) // has it read
	a.want(first, id, outbox.StatusDelivered)
	if n := a.trap.reads.Load(); n != last+2 {
		t.Errorf("%d more reads, want 2", n-last)
	}
}

func TestUnannouncedEndIsFoundByTheRegularRead(t *testing.T) {
	a := setupAwaitWith(t, 20*time.Millisecond)
	key, id := a.insert()
	got := a.await(t.Context(), key, id)
	a.quiet()
	if err := outbox.Cancel(t.Context(), a.on, id, ada); err != nil {
		t.Fatal(err)
	}
	a.want(got, id, outbox.StatusCancelled)
}

func TestAwaitFollowsAReplacedIntent(t *testing.T) {
	a := setupAwait(t)
	key, id := a.insert()
	got := a.await(t.Context(), key, id)
	a.quiet()
	last := id
	for range 2 { // before the wait sees that it is dead
		force(t, a.on, last, outbox.StatusDead, false, true)
		next, err := outbox.Replace(t.Context(), a.on, last, outbox.Replacement{}, ada)
		if err != nil {
			t.Fatal(err)
		}
		last = next
	}
	before := a.trap.reads.Load()
	a.announces(id)
	dbtest.Until(t, "the successor is read", func() bool { return a.trap.reads.Load() > before })
	a.quiet()
	a.waits(got)
	a.ends(last, outbox.StatusDelivered)
	a.announces(last)
	a.want(got, last, outbox.StatusDelivered)
	if again, err := outbox.Await(t.Context(), a.pool, key, id); err != nil || again.ID != last {
		t.Errorf("after the end: %+v, %v", again, err)
	}
}

func TestCancelledWaitLeavesNothing(t *testing.T) {
	a := setupAwait(t)
	key, id := a.insert()
	ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
	got := a.await(ctx, key, id)
	stays := a.await(t.Context(), key, id)
	a.quiet()
	cancel()
	if r := dbtest.Receive(t, "the cancelled wait", got); !errors.Is(r.err, context.Canceled) || r.Status != outbox.StatusPending || !strings.Contains(r.err.Error(), "still pending") {
		t.Errorf("got %+v", r)
	}
	a.joined(1)
	a.ends(id, outbox.StatusDead)
	a.announces(id)
	a.want(stays, id, outbox.StatusDead)
	a.joined(0)
	dbtest.Until(t, "the connection is given back, and does not listen", func() bool {
		return a.pool.Stat().AcquiredConns() == 0 && !a.trap.listening.Load()
	})
	expired, cancel := context.WithTimeout(t.Context(), time.Nanosecond)
	defer cancel()
	if _, err := outbox.Await(expired, a.pool, key, id); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("with an expired context: %v", err)
	}
}

func TestThousandWaitersShareTheReads(t *testing.T) {
	const waiters = 1000
	a := setupAwait(t)
	hold := make(chan struct{})
	a.trap.read = func(n int64) {
		if n == 1 {
			<-hold
		}
	}
	began := time.Now()
	var ids []uuid.UUID
	var answers []<-chan answer
	for range waiters {
		key, id := a.insert()
		ids, answers = append(ids, id), append(answers, a.start(t.Context(), key, id))
	}
	a.joined(waiters)
	close(hold)
	a.quiet()
	before := a.trap.reads.Load()
	dbtest.Exec(t, a.on, `with gone as (delete from samekey.outbox_queue returning id)
		insert into samekey.outbox_history (intent_id, event, outcome, final_status) select id, 'attempt', 'delivered', 'delivered' from gone`)
	for start := 0; start < waiters; start += 200 {
		a.announces(ids[start : start+200]...)
	}
	for i, got := range answers {
		a.want(got, ids[i], outbox.StatusDelivered)
	}
	t.Logf("the listener read %d times until all waited, and %d times for their ends", before, a.trap.reads.Load()-before)
	if n := a.trap.reads.Load(); n > 15 {
		t.Errorf("the listener read %d times", n)
	}
	most := 1 + int64(time.Since(began)/(5*time.Second)) // a busy machine may lose a connection
	if n := a.trap.hints.Load(); n < 1 || n > most {
		t.Errorf("the workers got %d hints, want 1 to %d", n, most)
	}
	if n := a.trap.listens.Load(); n < 1 || n > most {
		t.Errorf("%d connections listened, want 1 to %d", n, most)
	}
}

func TestWaitersAreBounded(t *testing.T) {
	a := setupAwait(t)
	outbox.SetPace(t, time.Hour, 0, 1)
	key, id := a.insert()
	got := a.await(t.Context(), key, id)
	if r, err := outbox.Await(t.Context(), a.pool, key, id); !errors.Is(err, outbox.ErrTooManyWaiters) || r.Status != outbox.StatusPending {
		t.Errorf("one too many: %+v, %v", r, err)
	}
	a.quiet()
	a.ends(id, outbox.StatusDelivered)
	if r, err := outbox.Await(t.Context(), a.pool, key, id); err != nil || r.Status != outbox.StatusDelivered {
		t.Errorf("an end needs no place: %+v, %v", r, err)
	}
	a.announces(id)
	a.want(got, id, outbox.StatusDelivered)
}

func TestKilledListeningConnectionComesBack(t *testing.T) {
	a := setupAwait(t)
	key, id := a.insert()
	got := a.await(t.Context(), key, id)
	a.quiet()
	a.trap.set(func() {
		a.trap.onListen = sync.OnceFunc(func() { // while no connection listens
			a.ends(id, outbox.StatusDelivered)
			a.announces(id)
		})
	})
	killed := dbtest.Value[int](t, a.on, `select count(pg_terminate_backend(pid)) from pg_stat_activity
		where datname = current_database() and query like 'listen %'`)
	if killed != 1 {
		t.Fatalf("%d connections listened", killed)
	}
	a.want(got, id, outbox.StatusDelivered)
	if n := a.trap.listens.Load(); n != 2 {
		t.Errorf("%d connections listened, want 2", n)
	}
}

func TestAwaitWithoutAListeningConnection(t *testing.T) {
	for name, change := range map[string]func(*pgxpool.Config){
		"a pool of one connection": func(c *pgxpool.Config) { c.MaxConns = 1 },
		"notifications go elsewhere": func(c *pgxpool.Config) {
			c.ConnConfig.OnNotification = func(*pgconn.PgConn, *pgconn.Notification) {}
		},
	} {
		t.Run(name, func(t *testing.T) {
			a := setupAwaitWith(t, 20*time.Millisecond, change)
			key, id := a.insert()
			got := a.await(t.Context(), key, id)
			dbtest.Until(t, "some reads", func() bool { return a.trap.reads.Load() > 3 })
			a.waits(got)
			a.ends(id, outbox.StatusDelivered)
			a.want(got, id, outbox.StatusDelivered)
			if n := a.trap.listens.Load(); n != 0 {
				t.Errorf("%d connections listened", n)
			}
		})
	}
}

// A pool that is closed under its waiters stands for a database that is away.
func TestWaitersAreToldThatStatesCannotBeRead(t *testing.T) {
	a := setupAwaitWith(t, 20*time.Millisecond)
	outbox.SetPace(t, 20*time.Millisecond, 100*time.Millisecond, 0)
	key, id := a.insert()
	got := a.await(t.Context(), key, id)
	a.quiet()
	a.pool.Close() // waits for the listener
	if r := dbtest.Receive(t, "the end of the wait", got); r.err == nil || r.Status != outbox.StatusPending || !strings.Contains(r.err.Error(), "closed pool") {
		t.Errorf("got %+v", r)
	}
}
