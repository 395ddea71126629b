package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/samekey/samekey/dispatcher"
	"github.com/samekey/samekey/internal/dbtest"
	"github.com/samekey/samekey/outbox"
	"github.com/samekey/samekey/samekeytest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func options(env map[string]string) (Options, *dbtest.Log) {
	out := &dbtest.Log{}
	return Options{
		Stderr:    out,
		LookupEnv: func(name string) (string, bool) { value, ok := env[name]; return value, ok },
		Register: func(d *dispatcher.Dispatcher) error {
			dispatcher.Handle(d, outbox.NewAction[[]byte]("look"), dispatcher.Delivery[[]byte]{
				Policy: dispatcher.Policy{Class: dispatcher.Read},
				Send: func(context.Context, *dispatcher.Call, []byte) (dispatcher.Outcome, error) {
					return dispatcher.Delivered(dispatcher.Response{}), nil
				},
			})
			return nil
		},
	}, out
}

func TestMistakesAreConfigErrors(t *testing.T) {
	o, _ := options(map[string]string{"LOG_LEVEL": "loud", "LOG_FORMAT": "json", "DATABASE_URL": "postgres://u:s3cret@h:port/x"})
	o.Register = func(*dispatcher.Dispatcher) error { return errors.New("worker.yaml:7: no") }
	err := Run(t.Context(), o)
	var config *ConfigError
	if !errors.As(err, &config) {
		t.Fatalf("%v is not a ConfigError", err)
	}
	for _, want := range []string{"LOG_LEVEL", "DATABASE_URL", "worker.yaml:7: no"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not in %v", want, err)
		}
	}
	if strings.Contains(err.Error(), "s3cret") {
		t.Error(err)
	}

	o, _ = options(map[string]string{"DATABASE_URL": "postgres://127.0.0.1:1/x"})
	o.Register = func(d *dispatcher.Dispatcher) error { return nil } // no action
	if err := Run(t.Context(), o); !errors.As(err, &config) || !strings.Contains(err.Error(), "no action") {
		t.Errorf("%v", err)
	}
	o.Register = nil
	if err := Run(t.Context(), o); !errors.As(err, &config) {
		t.Errorf("%v", err)
	}
}

func TestPortInUse(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	o, _ := options(map[string]string{"DATABASE_URL": "postgres://127.0.0.1:1/x", "LISTEN_ADDR": listener.Addr().String()})
	if err := Run(t.Context(), o); err == nil || !strings.Contains(err.Error(), "LISTEN_ADDR") {
		t.Errorf("%v", err)
	}
}

func TestUnavailableDatabaseIsNotReady(t *testing.T) {
	o, out := options(map[string]string{"DATABASE_URL": "postgres://u:s3cret@127.0.0.1:1/x", "LISTEN_ADDR": "127.0.0.1:0"})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- Run(ctx, o) }()
	line := out.Wait(t, "probes listen")
	out.Wait(t, "waits for the database")
	if status, _ := get(t, line, "/healthz"); status != 200 {
		t.Errorf("/healthz is %d", status)
	}
	if status, body := get(t, line, "/readyz"); status != 503 || !strings.Contains(body, "database") {
		t.Errorf("/readyz is %d %q", status, body)
	}
	if status, _ := get(t, line, "/other"); status != 404 {
		t.Errorf("/other is %d", status)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if strings.Contains(out.String(), "s3cret") {
		t.Errorf("the password is in %s", out)
	}
}

func TestRunWithoutProbes(t *testing.T) {
	db := samekeytest.NewDB(t)
	for _, address := range []string{"off", ""} {
		o, out := options(map[string]string{"DATABASE_URL": db.DSN, "LISTEN_ADDR": address, "LOG_FORMAT": "text"})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- Run(ctx, o) }()
		out.Wait(t, "dispatcher: running")
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if strings.Contains(out.String(), "probes listen") {
			t.Errorf("LISTEN_ADDR %q: there are probes", address)
		}
	}
}

// The deployment of the environment is that of the dispatcher. Without one, nothing is started on a database that has
// none either.
func TestDeploymentComesFromTheEnvironment(t *testing.T) {
	on := samekeytest.NewDB(t)
	if _, err := on.Exec(t.Context(), `select samekey.adopt('production')`); err != nil {
		t.Fatal(err)
	}
	env := map[string]string{"DATABASE_URL": on.DSN, "LISTEN_ADDR": "off"}
	o, _ := options(env)
	var config *ConfigError
	if err := Run(t.Context(), o); !errors.As(err, &config) || !strings.Contains(err.Error(), "Deployment: missing") {
		t.Errorf("without DEPLOYMENT, Run returned %v", err)
	}
	env["DEPLOYMENT"] = "production"
	o, out := options(env)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- Run(ctx, o) }()
	out.Wait(t, "dispatcher: running")
	cancel()
	if err := <-done; err != nil {
		t.Errorf("Run returned %v", err)
	}
}

func TestVendorsBytesStayOutOfTheLog(t *testing.T) {
	o, out := options(nil)
	logger, err := newLogger(o)
	if err != nil {
		t.Fatal(err)
	}
	slog.NewLogLogger(logger.Handler(), slog.LevelInfo).Printf("Unsolicited response received on idle HTTP channel starting with %q; err=%v", "card 4242", nil)
	if text := out.String(); strings.Contains(text, "4242") || !strings.Contains(text, "a vendor sent data") {
		t.Error(text)
	}
}

func get(t *testing.T, line, path string) (int, string) {
	t.Helper()
	var said struct{ Address string }
	if err := json.Unmarshal([]byte(line), &said); err != nil {
		t.Fatal(err)
	}
	client := http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Get("http://" + said.Address + path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}
