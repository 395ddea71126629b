package samekeytest_test

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/goleak"
	"golang.org/x/sync/errgroup"

	"github.com/samekey/samekey"
	"github.com/samekey/samekey/processed"
	"github.com/samekey/samekey/samekeytest"
)

// refusal is an answer that is none: 409 to try again, 422 for another payload.
type refusal int

func (r refusal) Error() string { return fmt.Sprintf("refused with %d", int(r)) }

const (
	busy     = refusal(409)
	conflict = refusal(422)
)

// subject does what a body asks for, once per key, on a pool of its own.
type subject interface {
	do(ctx context.Context, key, body string) (answer string, err error)
}

// tables are those of all subjects: what they do, and what the hand-written ones
// remember.
func tables(t testing.TB, db *samekeytest.DB) {
	t.Helper()
	_, err := db.Exec(t.Context(), `
		create table effects (id bigint generated always as identity, body text);
		create table records (key text primary key, hash text, answer text, leased_until timestamptz,
			made timestamptz not null default clock_timestamp(), made_epoch bigint not null default extract(epoch from clock_timestamp()))`)
	if err != nil {
		t.Fatal(err)
	}
}

func effects(t testing.TB, db *samekeytest.DB) (n int) {
	t.Helper()
	if err := db.QueryRow(t.Context(), "select count(*) from effects").Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

func open(t testing.TB, dsn string) *pgxpool.Pool {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

// service is the subject behind HTTP.
func service(of func(*pgxpool.Pool) subject) samekeytest.Service {
	return samekeytest.Service{
		Prepare: tables,
		Start: func(t testing.TB, dsn string) string {
			s := of(open(t, dsn))
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				body, _ := io.ReadAll(r.Body)
				answer, err := s.do(r.Context(), r.Header.Get("Idempotency-Key"), string(body))
				status := http.StatusCreated
				if err != nil {
					status, answer = http.StatusServiceUnavailable, "no answer"
				}
				if refused := refusal(0); errors.As(err, &refused) {
					status = int(refused)
				}
				w.WriteHeader(status)
				_, _ = io.WriteString(w, answer)
			}))
			t.Cleanup(server.Close)
			return server.URL
		},
		Request: func(url, key string, n int) *http.Request {
			req, _ := http.NewRequest(http.MethodPost, url+"/orders", strings.NewReader(fmt.Sprintf(`{"quantity":%d}`, n)))
			req.Header.Set("Idempotency-Key", key)
			return req
		},
		Effects: effects,
	}
}

func tool(of func(*pgxpool.Pool) subject) samekeytest.Tool {
	return samekeytest.Tool{
		Prepare: tables,
		Start: func(t testing.TB, dsn string) func(context.Context, string, int) (string, error) {
			s := of(open(t, dsn))
			return func(ctx context.Context, key string, n int) (string, error) {
				return s.do(ctx, key, fmt.Sprintf(`{"quantity":%d}`, n))
			}
		},
		Effects: effects,
	}
}

// onRun does it as this library says.
type onRun struct{ pool *pgxpool.Pool }

func newOnRun(pool *pgxpool.Pool) subject { return onRun{pool} }

func (s onRun) do(ctx context.Context, value, body string) (string, error) {
	key, err := samekey.NewKey(value, "acme", "orders.create")
	if err != nil {
		return "", err
	}
	res, err := processed.Run(ctx, s.pool, processed.Request{Key: key, Payload: []byte(body)}, func(ctx context.Context, tx pgx.Tx) (string, error) {
		return effect(ctx, tx, body)
	})
	switch {
	case errors.Is(err, processed.ErrInFlight):
		err = busy
	case errors.Is(err, processed.ErrConflict):
		err = conflict
	}
	return res.Value, err
}

// effect is the work, and the answer to it.
func effect(ctx context.Context, tx samekey.Tx, body string) (answer string, err error) {
	err = tx.QueryRow(ctx, "insert into effects (body) values ($1) returning 'order ' || id", body).Scan(&answer)
	return answer, err
}

func hash(body string) string {
	sum := sha256.Sum256([]byte(body))
	return hex.EncodeToString(sum[:])
}

// byHand is a handler without this library, and what may be wrong with one.
type byHand struct {
	pool *pgxpool.Pool
	flaw string
	mu   sync.Mutex
	done map[string]string
}

func hand(flaw string) func(*pgxpool.Pool) subject {
	return func(pool *pgxpool.Pool) subject { return &byHand{pool: pool, flaw: flaw, done: map[string]string{}} }
}

func (s *byHand) do(ctx context.Context, key, body string) (answer string, err error) {
	switch s.flaw {
	case "ignores_keys":
		return effect(ctx, s.pool, body)
	case "one_for_all":
		return s.keyFirst(ctx, "one", body)
	case "in_memory":
		return s.inMemory(ctx, key, body)
	case "record_after_effect", "record_before_effect":
		return s.inTwo(ctx, key, body)
	case "insert_after_work":
		return s.insertAfterWork(ctx, key, body)
	case "started_row":
		return s.startedRow(ctx, key, body)
	case "cut_key":
		return s.keyFirst(ctx, key[:min(len(key), 32)], body)
	case "lower_key":
		return s.keyFirst(ctx, strings.ToLower(key), body)
	case "lease_without_fence":
		return s.leased(ctx, key, body, 300*time.Millisecond)
	case "long_lease_without_fence":
		return s.leased(ctx, key, body, time.Minute)
	case "forgets_soon":
		return s.forgetful(ctx, key, body, "made_epoch < extract(epoch from clock_timestamp()) - 3")
	case "forgets_in_an_hour":
		return s.forgetful(ctx, key, body, "made < clock_timestamp() - interval '1 hour'")
	case "gone_doubles":
		if answer, err = s.keyFirst(ctx, key, body); ctx.Err() != nil {
			_, _ = effect(context.WithoutCancel(ctx), s.pool, body) // "what was begun is finished"
		}
		return answer, err
	case "gone_loses":
		if answer, err = s.keyFirst(ctx, key, body); ctx.Err() != nil {
			_, _ = s.pool.Exec(context.WithoutCancel(ctx), "insert into records (key, hash, answer) values ($1, $2, 'an order') on conflict do nothing", key, hash(body))
		}
		return answer, err
	case "ignores_commit":
		return s.ignoresCommit(ctx, key, body)
	case "retries_blindly":
		for try := 0; ; try++ {
			answer, err = s.keyFirst(ctx, key, body)
			refused := refusal(0)
			if err == nil || errors.As(err, &refused) || try == 100 {
				return answer, err
			}
			time.Sleep(20 * time.Millisecond)
			if answer, err = effect(context.WithoutCancel(ctx), s.pool, body); err == nil {
				return answer, nil
			}
		}
	}
	return s.keyFirst(ctx, key, body)
}

// keyFirst inserts the record first, on which others with the key wait.
func (s *byHand) keyFirst(ctx context.Context, key, body string) (answer string, err error) {
	err = pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, "insert into records (key, hash) values ($1, $2) on conflict do nothing", key, hash(body))
		if err != nil {
			return err
		}
		if tag.RowsAffected() == 0 {
			answer, err = s.find(ctx, tx, key, body)
			if s.flaw == "rebuilt_answer" {
				answer += " (again)"
			}
			return err
		}
		if answer, err = effect(ctx, tx, body); err != nil {
			return err
		}
		_, err = tx.Exec(ctx, "update records set answer = $2 where key = $1", key, answer)
		return err
	})
	return answer, err
}

// forgetful forgets the key when its record is old.
func (s *byHand) forgetful(ctx context.Context, key, body, old string) (string, error) {
	if _, err := s.pool.Exec(ctx, "delete from records where key = $1 and "+old, key); err != nil {
		return "", err
	}
	return s.keyFirst(ctx, key, body)
}

// leased takes a lease and commits it. Who finds one that is over takes it; the
// first owner does not notice.
func (s *byHand) leased(ctx context.Context, key, body string, lease time.Duration) (answer string, err error) {
	tag, err := s.pool.Exec(ctx, `
		insert into records (key, hash, leased_until) values ($1, $2, clock_timestamp() + $3::interval)
		on conflict (key) do update set leased_until = excluded.leased_until
		where records.answer is null and records.hash = excluded.hash and records.leased_until < clock_timestamp()`, key, hash(body), lease)
	if err != nil {
		return "", err
	}
	if tag.RowsAffected() == 0 {
		if answer, err = s.find(ctx, s.pool, key, body); err == nil && answer == "" {
			err = busy
		}
		return answer, err
	}
	err = pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) (err error) {
		if answer, err = effect(ctx, tx, body); err != nil {
			return err
		}
		_, err = tx.Exec(ctx, "update records set answer = $2 where key = $1", key, answer)
		return err
	})
	return answer, err
}

// ignoresCommit says "ok", whatever COMMIT said.
func (s *byHand) ignoresCommit(ctx context.Context, key, body string) (answer string, err error) {
	tx, err := s.pool.Begin(ctx)
	if err != nil {
		return "", err
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()
	tag, err := tx.Exec(ctx, "insert into records (key, hash, answer) values ($1, $2, 'ok') on conflict do nothing", key, hash(body))
	if err == nil && tag.RowsAffected() == 0 {
		return s.find(ctx, tx, key, body)
	}
	if err == nil {
		_, err = effect(ctx, tx, body)
	}
	if err != nil {
		return "", err
	}
	_ = tx.Commit(ctx)
	return "ok", nil
}

// find returns pgx.ErrNoRows for a new key.
func (s *byHand) find(ctx context.Context, tx samekey.Tx, key, body string) (answer string, err error) {
	var stored string
	err = tx.QueryRow(ctx, "select hash, coalesce(answer, '') from records where key = $1", key).Scan(&stored, &answer)
	if err == nil && stored != hash(body) && s.flaw != "no_hash" {
		err = conflict
	}
	return answer, err
}

func (s *byHand) inMemory(ctx context.Context, key, body string) (answer string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if answer, ok := s.done[key]; ok {
		stored, answer, _ := strings.Cut(answer, " ")
		if stored != hash(body) {
			return "", conflict
		}
		return answer, nil
	}
	if answer, err = effect(ctx, s.pool, body); err == nil {
		s.done[key] = hash(body) + " " + answer
	}
	return answer, err
}

// inTwo is serialized by a lock, and commits the effect and the record apart.
func (s *byHand) inTwo(ctx context.Context, key, body string) (answer string, err error) {
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return "", err
	}
	defer conn.Release()
	if _, err := conn.Exec(ctx, "select pg_advisory_lock(hashtext($1))", key); err != nil {
		return "", err
	}
	defer func() { _, _ = conn.Exec(context.WithoutCancel(ctx), "select pg_advisory_unlock_all()") }()
	answer, err = s.find(ctx, conn, key, body)
	if !errors.Is(err, pgx.ErrNoRows) {
		return answer, err
	}
	record := func() error {
		_, err := conn.Exec(ctx, "insert into records (key, hash, answer) values ($1, $2, $3)", key, hash(body), answer)
		return err
	}
	if s.flaw == "record_before_effect" {
		answer = "an order"
		if err := record(); err != nil {
			return "", err
		}
		_, err = effect(ctx, conn, body)
		return answer, err
	}
	if answer, err = effect(ctx, conn, body); err != nil {
		return "", err
	}
	return answer, record()
}

// insertAfterWork looks up, works, and inserts the record at last.
func (s *byHand) insertAfterWork(ctx context.Context, key, body string) (answer string, err error) {
	err = pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) (err error) {
		if answer, err = s.find(ctx, tx, key, body); !errors.Is(err, pgx.ErrNoRows) {
			return err
		}
		if answer, err = effect(ctx, tx, body); err != nil {
			return err
		}
		_, err = tx.Exec(ctx, "insert into records (key, hash, answer) values ($1, $2, $3) on conflict do nothing", key, hash(body), answer)
		return err
	})
	return answer, err
}

// startedRow commits that it has begun.
func (s *byHand) startedRow(ctx context.Context, key, body string) (answer string, err error) {
	tag, err := s.pool.Exec(ctx, "insert into records (key, hash) values ($1, $2) on conflict do nothing", key, hash(body))
	if err != nil {
		return "", err
	}
	if tag.RowsAffected() == 0 {
		if answer, err = s.find(ctx, s.pool, key, body); err == nil && answer == "" {
			err = busy
		}
		return answer, err
	}
	err = pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) (err error) {
		if answer, err = effect(ctx, tx, body); err != nil {
			return err
		}
		_, err = tx.Exec(ctx, "update records set answer = $2 where key = $1", key, answer)
		return err
	})
	return answer, err
}

func TestServiceOnRunConforms(t *testing.T) {
	before := goleak.IgnoreCurrent()
	t.Run("suite", func(t *testing.T) { samekeytest.Conform(t, service(newOnRun)) })
	goleak.VerifyNone(t, before)
}

func TestToolOnRunConforms(t *testing.T) { samekeytest.ConformTool(t, tool(newOnRun)) }

// flawVariable makes this test binary run the suite on one of the handlers.
const flawVariable = "SAMEKEY_TEST_FLAW"

func TestOfAFlaw(t *testing.T) {
	name := os.Getenv(flawVariable)
	flaw, isTool := strings.CutPrefix(name, "tool_")
	switch {
	case name == "":
		t.Skip("a child of TestConformFindsEachFlaw")
	case name == "process":
		s := service(nil)
		s.Start = startProcess
		samekeytest.Conform(t, s)
	case isTool:
		samekeytest.ConformTool(t, tool(hand(flaw)))
	default:
		s := service(hand(name))
		if name == "started_row" { // which is never answered
			s.Within = time.Second
		}
		samekeytest.Conform(t, s)
	}
}

// flawed is a handler, and what the suite says of it.
type flawed struct {
	flaw  string
	runs  string   // of the suite's subtests; "." for all
	fails []string // these and no others
	says  []string
}

func TestConformFindsEachFlaw(t *testing.T) {
	cases := []flawed{
		{"record_after_effect", ".", []string{"client_gone", "crash", "lost_connection"}, []string{
			"2 effects of one key, want 1",
			"where: the service crashed after the database did round trip 3 (insert into effects (body) values ($1) returning 'order ' || id)",
			"where: the service crashed before round trip 4 (insert into records (key, hash, answer) values ($1, $2, $3)) reached",
			"usual cause: the record of the key is written after the effect, in another transaction",
		}},
		{"insert_after_work", ".", []string{"duplicated", "mismatch", "overlapping", "suspended"}, []string{
			"3 effects of one key, want 1", "one key, two answers",
			"usual cause: the key is looked up before the work, and its record is inserted only after it",
		}},
		{"no_hash", "identical|mismatch|overlapping|lost_answer", []string{"mismatch"}, []string{
			"it was not refused, but got 201", "usual cause: the record has no hash of the payload",
		}},
		{"ignores_keys", "identical|another_key|lost_answer|duplicated", []string{"duplicated", "identical", "lost_answer"}, []string{
			"a key that had its effect has 1 more", "usual cause: the key is not looked up",
		}},
		{"rebuilt_answer", "identical|another_key|lost_answer", []string{"identical", "lost_answer"}, []string{
			"one key, two answers", "usual cause: the answer is rebuilt",
		}},
		{"record_before_effect", "identical|crash", []string{"crash"}, []string{
			"0 effects of an answered request", "usual cause: the record of the key commits before the effect",
		}},
		{"in_memory", "identical|duplicated", []string{"identical"}, []string{
			"usual cause: the key is remembered in memory",
			"of 2 requests at once, 0 were answered, and 1 reached no round trip within 5s: Conform let them continue", // the second waits for a mutex
		}},
		{"one_for_all", "identical|another_key", []string{"another_key"}, []string{"a new key is a new operation"}},
		{"started_row", "identical|overlapping|crash", []string{"crash", "overlapping"}, []string{
			"no answer within 1s, the last attempt got 409", "no other attempt takes over",
		}},
		{"retries_blindly", "identical|lost_connection|crash", []string{"crash", "lost_connection"}, []string{
			"a key that had its effect has 1 more", "then the first one woke up", "without reading the record",
		}},
		{"ignores_commit", "identical|lost_connection", []string{"lost_connection"}, []string{
			"0 effects of an answered request", "usual cause: the answer is sent before COMMIT",
		}},
		{"tool_record_after_effect", "identical|crash", []string{"crash"}, []string{"the tool crashed after the database did round trip 3"}},
		{"waiters_block", "mismatch|overlapping|duplicated|crash", nil, []string{"failed before and after each of 5 round trips"}},
		{"cut_key", "identical|another_key|like_keys", []string{"like_keys"}, []string{
			"keys of 36 characters that differ in the last one only", "keys of 255 characters", "0 effects of key 2, want 1", "usual cause: the key is changed before it is looked up",
		}},
		{"lower_key", "identical|another_key|like_keys", []string{"like_keys"}, []string{"keys that differ in case only", "0 effects of key 2, want 1"}},
		{"lease_without_fence", "identical|crash|suspended", []string{"suspended"}, []string{
			"2 effects of one key, want 1", "an instance froze before round trip 3", "check in the effect's transaction that the lease is held (a fence)",
		}},
		{"long_lease_without_fence", "identical|suspended", []string{"suspended"}, []string{"an instance froze before round trip 3"}},
		{"forgets_soon", "identical|remembered", []string{"remembered"}, []string{"the same request 4s later", "usual cause: the key is forgotten too early"}},
		{"forgets_in_an_hour", "identical|remembered", []string{"remembered"}, []string{"moved back by 23h59m0s", "usual cause: the key is forgotten too early"}},
		{"gone_doubles", "identical|lost_connection|client_gone", []string{"client_gone"}, []string{
			"the client went away before round trip", "2 effects of one key, want 1", "the request's context ends when the client goes away",
		}},
		{"gone_loses", "identical|lost_connection|client_gone", []string{"client_gone"}, []string{
			"the client went away before round trip", "0 effects of an answered request", "the request's context ends when the client goes away",
		}},
		{"process", "crash", nil, []string{"failed before and after each of 3 round trips"}},
	}
	said := children(t, cases)
	for _, c := range cases {
		t.Run(c.flaw, func(t *testing.T) {
			said := said[c.flaw]
			var failed []string
			for _, m := range regexp.MustCompile(`(?m)^    --- FAIL: TestOfAFlaw/(\w+) `).FindAllStringSubmatch(said, -1) {
				failed = append(failed, m[1])
			}
			slices.Sort(failed)
			if !slices.Equal(failed, c.fails) {
				t.Errorf("failed: %v, want %v\n%s", failed, c.fails, said)
			}
			for _, want := range c.says {
				if !strings.Contains(said, want) {
					t.Errorf("it does not say %q:\n%s", want, said)
				}
			}
			if c.flaw != "in_memory" && strings.Contains(said, "let them continue") {
				t.Errorf("the requests did not stay in step:\n%s", said)
			}
		})
	}
}

// children run the suite on each handler in a process of its own, and return
// what those said.
func children(t *testing.T, cases []flawed) map[string]string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	var mu sync.Mutex
	said := map[string]string{}
	var running errgroup.Group
	running.SetLimit(5)
	for _, c := range cases {
		running.Go(func() error {
			cmd := exec.CommandContext(ctx, os.Args[0], "-test.run=^TestOfAFlaw$/^("+c.runs+")", "-test.v", "-test.timeout=100s")
			cmd.Env = append(os.Environ(), flawVariable+"="+c.flaw)
			out, _ := cmd.CombinedOutput()
			if code := cmd.ProcessState.ExitCode(); code != min(len(c.fails), 1) {
				t.Errorf("%s: the child ended with status %d\n%s", c.flaw, code, out)
			}
			mu.Lock()
			defer mu.Unlock()
			said[c.flaw] = string(out)
			return nil
		})
	}
	_ = running.Wait()
	return said
}

// serveVariable makes this test binary serve a database, until it is killed or
// its standard input is closed.
const serveVariable = "SAMEKEY_TEST_SERVE"

func TestServe(t *testing.T) {
	dsn := os.Getenv(serveVariable)
	if dsn == "" {
		t.Skip("a process of the child \"process\"")
	}
	fmt.Printf("\nserves %s\n", service(newOnRun).Start(t, dsn))
	_, _ = io.Copy(io.Discard, os.Stdin)
}

// startProcess starts the service in a process of its own, and kills it when the
// instance ends.
func startProcess(t testing.TB, dsn string) string {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^TestServe$")
	cmd.Env = append(os.Environ(), serveVariable+"="+dsn)
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		_ = stdin.Close()
	})
	for lines := bufio.NewScanner(stdout); lines.Scan(); {
		if url, ok := strings.CutPrefix(lines.Text(), "serves "); ok {
			return url
		}
	}
	t.Fatal("the process did not say where it serves")
	return ""
}
