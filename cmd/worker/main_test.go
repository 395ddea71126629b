package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/samekey/samekey/internal/dbtest"
	"github.com/samekey/samekey/outbox"
	"github.com/samekey/samekey/samekeytest"
)

// binary is the worker as it is deployed.
var binary string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "samekey-worker-")
	if err != nil {
		panic(err)
	}
	binary = filepath.Join(dir, "worker")
	build := exec.Command("go", "build", "-o", binary, ".")
	build.Stderr = os.Stderr
	if err := build.Run(); err != nil {
		panic(err)
	}
	code := m.Run()
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

const patience = 2 * time.Minute

// process is a worker under test.
type process struct {
	cmd    *exec.Cmd
	log    dbtest.Log
	exited chan struct{}
}

// start starts the worker with no environment but env.
func start(t *testing.T, env []string, args ...string) *process {
	t.Helper()
	return startCommand(t, env, exec.Command(binary, args...))
}

func startCommand(t *testing.T, env []string, cmd *exec.Cmd) *process {
	t.Helper()
	p := &process{cmd: cmd, exited: make(chan struct{})}
	p.cmd.Env = env
	p.cmd.Stdout, p.cmd.Stderr = &p.log, &p.log
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = p.cmd.Wait()
		p.log.Close()
		close(p.exited)
	}()
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		<-p.exited
		if t.Failed() {
			t.Logf("the worker said:\n%s", p.log.String())
		}
	})
	return p
}

func (p *process) signal(t *testing.T) { t.Helper(); p.send(t, syscall.SIGTERM) }

func (p *process) send(t *testing.T, signal os.Signal) {
	t.Helper()
	if err := p.cmd.Process.Signal(signal); err != nil {
		t.Fatal(err)
	}
}

// exit waits for the end and returns the code.
func (p *process) exit(t *testing.T) int {
	t.Helper()
	select {
	case <-p.exited:
	case <-time.After(patience):
		t.Fatal("the worker does not end")
	}
	return p.cmd.ProcessState.ExitCode()
}

// probe asks the worker's own port.
func (p *process) probe(t *testing.T, path string) (int, string) {
	t.Helper()
	var line struct{ Address string }
	if err := json.Unmarshal([]byte(p.log.Wait(t, "probes listen")), &line); err != nil {
		t.Fatal(err)
	}
	client := http.Client{Timeout: patience, Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Get("http://" + line.Address + path)
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

// waitReady asks /readyz until it is what a test waits for.
func (p *process) waitReady(t *testing.T, want int) string {
	t.Helper()
	deadline := time.After(patience)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		status, body := p.probe(t, "/readyz")
		if status == want {
			return body
		}
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("/readyz is %d %q, not %d", status, body, want)
		}
	}
}

func writeFile(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// call runs a command in this process.
func call(env map[string]string, args ...string) (code int, stdout, stderr string) {
	var out, errOut bytes.Buffer
	m := &worker{stdout: &out, stderr: &errOut, lookupEnv: inEnvironment(env)}
	code = m.main(args)
	return code, out.String(), errOut.String()
}

func TestUnknownCommandsPrintTheUsage(t *testing.T) {
	for _, tc := range []struct {
		args string
		code int
		says string
	}{
		{"", 2, "usage"}, {"help", 0, "usage"}, {"-h", 0, "usage"}, {"start", 2, `unknown command "start"`}, {"config", 2, "usage"}, {"config chek", 2, `unknown command "config chek"`},
		{"config show", 2, "usage"}, {"run -x", 2, "flag provided but not defined"}, {"run now", 2, `unexpected argument "now"`},
		{"run -h", 0, "LISTEN_ADDR"}, {"migrate -h", 0, "app-role"}, {"config check -h", 0, "usage"}, {"version", 0, "worker"},
	} {
		code, stdout, stderr := call(nil, strings.Fields(tc.args)...)
		if code != tc.code || !strings.Contains(stdout+stderr, tc.says) {
			t.Errorf("worker %s: %d, %s", tc.args, code, fmt.Sprint(stdout, stderr))
		}
	}
}

func TestPauseAndResumeFromTheCommandLine(t *testing.T) {
	on := samekeytest.NewDB(t)
	run := func(args ...string) (code int, out, errs string) {
		var stdout, stderr strings.Builder
		m := &worker{stdout: &stdout, stderr: &stderr, lookupEnv: func(name string) (string, bool) { return on.DSN, name == "DATABASE_URL" }}
		code = m.main(args)
		return code, stdout.String(), stderr.String()
	}
	for _, c := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{"pause", "-destination", "stripe", "-actor", "ann", "-reason", "incident", "-for", "1h"}, 0, `paused destination "stripe"`},
		{[]string{"pause", "-destination", "stripe", "-actor", "bob", "-reason", "incident"}, failed, "already paused"},
		{[]string{"pause", "-destination", "stripe", "-actor", "bob"}, failed, "Reason"},
		{[]string{"resume", "-destination", "stripe", "-actor", "bob", "-reason", "over"}, 0, `resumed destination "stripe"`},
		{[]string{"resume", "-destination", "stripe", "-actor", "bob", "-reason", "over"}, failed, "not paused"},
		{[]string{"resume", "stripe"}, mistaken, "unexpected argument"},
	} {
		code, out, errs := run(c.args...)
		if code != c.code || !strings.Contains(out+errs, c.says) {
			t.Errorf("%v: %d, %s%s", c.args, code, out, errs)
		}
	}
	records, err := outbox.Pauses(t.Context(), on, "stripe", 0)
	if err != nil || len(records) != 1 || records[0].By.Actor != "ann" || records[0].Until.IsZero() || records[0].Ended.Actor != "bob" {
		t.Errorf("%+v, %v", records, err)
	}
}

func TestAdoptFromTheCommandLine(t *testing.T) {
	on := samekeytest.NewDB(t)
	insert(t, on, "charge_card", 2)
	env := map[string]string{"DATABASE_URL": on.DSN}
	for _, c := range []struct {
		args string
		code int
		says string
	}{
		{"adopt", mistaken, "-deployment must be 1 to 56 of"},
		{"adopt -deployment Production", mistaken, "-deployment must be 1 to 56 of"},
		{"adopt -deployment production", 0, "the database belongs to production; it has 2 unfinished intents\n"},
		{"adopt -deployment production", 0, "the database belongs to production; it has 2 unfinished intents\n"},
	} {
		code, out, errs := call(env, strings.Fields(c.args)...)
		if code != c.code || !strings.Contains(out+errs, c.says) {
			t.Errorf("%s: %d, %s%s", c.args, code, out, errs)
		}
	}
	if code, _, errs := call(nil, "adopt", "-deployment", "production"); code != mistaken || !strings.Contains(errs, "DATABASE_URL") {
		t.Errorf("without a database: %d, %s", code, errs)
	}
}
