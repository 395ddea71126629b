package processed_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	osexec "os/exec"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/samekey/samekey"
	"github.com/samekey/samekey/internal/dbtest"
	"github.com/samekey/samekey/processed"
)

// The test binary also runs as a process that does an operation, so that a test can kill it.
const crashEnv = "SAMEKEY_TEST_STEPS"

// crash is an operation in such a process. It reserves, charges at a vendor and confirms.
type crash struct {
	DSN, URL, Key string
	Class         string // "keys": the vendor honors keys; "lookup": it can be asked; "none": neither
	At            int    // SIGKILL at this boundary, counted from 1; 0 for never
	Archive       string // the process prunes with this function instead
}

func crashMain() int {
	var c crash
	if err := json.Unmarshal([]byte(os.Getenv(crashEnv)), &c); err != nil {
		panic(err)
	}
	config, err := pgxpool.ParseConfig(c.DSN)
	if err != nil {
		panic(err)
	}
	k := &killer{at: c.At}
	config.ConnConfig.Tracer = k
	config.ConnConfig.RuntimeParams["application_name"] = crashEnv
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		panic(err)
	}
	defer pool.Close()
	if c.Archive != "" {
		_, err = processed.Prune(context.Background(), pool, processed.Pruning{ArchiveFunction: c.Archive})
	} else {
		_, err = c.run(context.Background(), pool, k.boundary)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// killer kills its process at the n-th boundary: before and after each statement of the database and each call.
type killer struct {
	at, seen int
}

func (k *killer) boundary() {
	if k.seen++; k.seen == k.at {
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {}
	}
}

func (k *killer) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	k.boundary()
	return ctx
}
func (k *killer) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) { k.boundary() }
func (k *killer) TraceBatchStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchStartData) context.Context {
	k.boundary()
	return ctx
}
func (k *killer) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) { k.boundary() }
func (k *killer) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData)     { k.boundary() }

// run does the operation. boundary is called before and after each request to the vendor.
func (c crash) run(ctx context.Context, pool *pgxpool.Pool, boundary func()) (processed.Result[string], error) {
	key, err := samekey.NewKey(c.Key, "acme", "orders.create")
	if err != nil {
		panic(err)
	}
	ask := func(method string) func(context.Context, uuid.UUID) (string, error) {
		return func(ctx context.Context, key uuid.UUID) (string, error) {
			boundary()
			defer boundary()
			return askVendor(ctx, method, c.URL, key)
		}
	}
	charge := processed.VendorCall[string]{Send: ask(http.MethodPost)}
	switch c.Class {
	case "keys":
		charge.KeyWindow = processed.Forever
	case "lookup":
		charge.Lookup, charge.ResendAbsent = ask(http.MethodGet), true
	}
	return processed.Steps(ctx, pool, processed.Request{Key: key, Payload: []byte(`1`)}, func(ctx context.Context, op *processed.Operation) (string, error) {
		_, err := processed.Step(ctx, op, "reserve", func(ctx context.Context, tx pgx.Tx) (int, error) {
			return 1, orderRow("reserved "+c.Key)(ctx, tx)
		})
		if err != nil {
			return "", err
		}
		charged, err := processed.Call(ctx, op, "charge", charge)
		if err != nil {
			return "", err
		}
		_, err = processed.Step(ctx, op, "confirm", func(ctx context.Context, tx pgx.Tx) (int, error) {
			return 1, place(ctx, tx, order{"confirmed " + c.Key, 7})
		})
		return charged, err
	})
}

func askVendor(ctx context.Context, method, url string, key uuid.UUID) (string, error) {
	req, err := http.NewRequestWithContext(ctx, method, url, http.NoBody)
	if err != nil {
		return "", err
	}
	req.Header.Set("Key", key.String())
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer func() { _ = res.Body.Close() }()
	body, err := io.ReadAll(res.Body)
	switch {
	case err != nil:
		return "", err
	case res.StatusCode == http.StatusNotFound:
		return "", processed.ErrAbsent
	}
	return string(body), nil
}

// crashVendor acts once per request, or once per key if it honors keys.
type crashVendor struct {
	*httptest.Server
	mu      sync.Mutex
	honors  bool
	effects map[string]int
	acted   func() // called before the answer to a POST
}

func newCrashVendor(t *testing.T, honors bool, acted func()) *crashVendor {
	v := &crashVendor{honors: honors, effects: map[string]int{}, acted: acted}
	v.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		key := r.Header.Get("Key")
		v.mu.Lock()
		if r.Method == http.MethodPost && (v.effects[key] == 0 || !v.honors) {
			v.effects[key]++
		}
		found := v.effects[key] > 0
		v.mu.Unlock()
		if !found {
			w.WriteHeader(http.StatusNotFound)
		}
		if r.Method == http.MethodPost && v.acted != nil {
			v.acted()
		}
		_, _ = io.WriteString(w, "charge of "+key)
	}))
	t.Cleanup(v.Close)
	return v
}

func (v *crashVendor) count(key uuid.UUID) int {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.effects[key.String()]
}

// start runs the operation in a process of its own.
func (c crash) start(t *testing.T) (*osexec.Cmd, *bytes.Buffer) {
	t.Helper()
	settings, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	cmd := osexec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), crashEnv+"="+string(settings))
	var output bytes.Buffer
	cmd.Stderr = &output
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return cmd, &output
}

// resume does the operation until it has an answer. Time passes on demand, and a person finds out what happened.
func (c crash) resume(t *testing.T, b *bundle, vendor *crashVendor) string {
	t.Helper()
	key := key(t, c.Key)
	delivery := samekey.DeliveryKey(key, "step:charge", "")
	for limit := time.Now().Add(dbtest.Patience); ; {
		res, err := c.run(t.Context(), b.db.Pool, func() {})
		switch {
		case err == nil:
			return res.Value
		case time.Now().After(limit):
			t.Fatal(err)
		case errors.Is(err, processed.ErrInFlight): // until the lease expires, and the server has noticed the end of the process
			b.expire()
		case errors.Is(err, processed.ErrInDoubt):
			b.exec(`update samekey.operation_steps set sent_at = sent_at - interval '10 seconds',
				ended_at = ended_at - interval '10 seconds', absent_at = absent_at - interval '10 seconds'`)
		case errors.Is(err, processed.ErrParked):
			what := processed.StepResolution{NotSent: true}
			if vendor.count(delivery) > 0 {
				what = processed.StepResolution{Result: json.RawMessage(`"charge of ` + delivery.String() + `"`)}
			}
			if err := processed.ResolveStep(t.Context(), b.db.Pool, key, "charge", what, processed.By{Actor: "ann", Reason: "asked the vendor"}); err != nil {
				t.Fatal(err)
			}
		default:
			t.Fatal(err)
		}
	}
}

// check fails unless everything exists once.
func (c crash) check(t *testing.T, b *bundle, vendor *crashVendor) {
	t.Helper()
	key := key(t, c.Key)
	delivery := samekey.DeliveryKey(key, "step:charge", "")
	if got, want := c.resume(t, b, vendor), "charge of "+delivery.String(); got != want {
		t.Errorf("answer %q, want %q", got, want)
	}
	if n := vendor.count(delivery); n != 1 {
		t.Errorf("%d effects at the vendor", n)
	}
	for table, want := range map[string]int{
		"orders where id like '% " + c.Key + "'":                                                 2,
		"samekey.outbox where idem_key = '" + c.Key + "'":                                        1,
		"samekey.operation_steps where status = 'done' and idem_key = '" + c.Key + "'":           3,
		"samekey.processed_events where completed_at is not null and idem_key = '" + c.Key + "'": 1,
		"samekey.operations where idem_key = '" + c.Key + "'":                                    0,
	} {
		if n := b.count(table); n != want {
			t.Errorf("%s: %d rows, want %d", table, n, want)
		}
	}
}

// Whatever the boundary at which the process is killed, the operation is resumed, and each effect exists once.
func TestOperationSurvivesSIGKILLAtEachBoundary(t *testing.T) {
	for _, class := range []string{"keys", "lookup", "none"} {
		t.Run(class, func(t *testing.T) {
			b := setup(t)
			vendor := newCrashVendor(t, class == "keys", nil)
			// The boundaries of a connection that prepares its statements are the same at each run: a new process.
			for at := 1; ; at += dbtest.Size(1, 3) {
				c := crash{DSN: b.db.DSN, URL: vendor.URL, Key: fmt.Sprint(class, at), Class: class, At: at}
				cmd, output := c.start(t)
				err := cmd.Wait()
				killed := cmd.ProcessState.Sys().(syscall.WaitStatus).Signaled() //nolint:errcheck,forcetypeassert // on Unix
				if err != nil && !killed {
					t.Fatalf("boundary %d: %v\n%s", at, err, output)
				}
				c.check(t, b, vendor)
				if t.Failed() {
					t.Fatalf("killed at boundary %d", at)
				}
				if !killed {
					if at < 40 {
						t.Errorf("only %d boundaries", at)
					}
					return
				}
			}
		})
	}
}

// The vendor has acted, and its answer reaches no one.
func TestOperationSurvivesSIGKILLDuringTheCall(t *testing.T) {
	for _, class := range []string{"keys", "lookup", "none"} {
		t.Run(class, func(t *testing.T) {
			b := setup(t)
			acted, dead := make(chan struct{}), make(chan struct{})
			vendor := newCrashVendor(t, class == "keys", sync.OnceFunc(func() { close(acted); <-dead }))
			c := crash{DSN: b.db.DSN, URL: vendor.URL, Key: "k", Class: class}
			cmd, _ := c.start(t)
			dbtest.Receive(t, "the vendor has acted", acted)
			if _, err := c.run(t.Context(), b.db.Pool, func() {}); !errors.Is(err, processed.ErrInFlight) {
				t.Errorf("while the call runs: %v", err)
			}
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
			close(dead)
			c.check(t, b, vendor)
		})
	}
}
