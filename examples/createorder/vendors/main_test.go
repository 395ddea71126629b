package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/samekey/samekey/samekeytest"
)

// TestMain runs the vendor if the environment asks for it, so that tests can start, kill and restart the real process.
func TestMain(m *testing.M) {
	if os.Getenv("SAMEKEY_TEST_BE_VENDOR") == "1" {
		main()
	}
	os.Exit(m.Run())
}

type process struct {
	t   *testing.T
	cmd *exec.Cmd
	url string
}

func start(t *testing.T, args ...string) *process {
	t.Helper()
	cmd := exec.Command(os.Args[0], args...)
	cmd.Env = append(os.Environ(), "SAMEKEY_TEST_BE_VENDOR=1")
	cmd.Stderr = os.Stderr
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p := &process{t: t, cmd: cmd}
	t.Cleanup(func() { p.end(syscall.SIGKILL) })
	line, err := bufio.NewReader(stdout).ReadBytes('\n')
	if err != nil {
		t.Fatal(err)
	}
	var hello struct{ Kind, Addr, URL string }
	if err := json.Unmarshal(line, &hello); err != nil || hello.URL != "http://"+hello.Addr {
		t.Fatalf("first line %q: %v", line, err)
	}
	p.url = hello.URL
	return p
}

// end signals the process and returns its exit code, -1 if it was killed.
func (p *process) end(signal syscall.Signal) int {
	if p.cmd.ProcessState == nil {
		_ = p.cmd.Process.Signal(signal)
		_ = p.cmd.Wait()
	}
	return p.cmd.ProcessState.ExitCode()
}

// call returns status 0 if there was no answer.
func (p *process) call(method, path, key, body string) (int, string) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, p.url+path, strings.NewReader(body))
	if err != nil {
		p.t.Fatal(err)
	}
	req.GetBody = nil
	if key != "" {
		req.Header.Set("Idempotency-Key", key)
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	res, err := client.Do(req)
	if err != nil {
		return 0, err.Error()
	}
	defer res.Body.Close()
	data, err := io.ReadAll(res.Body)
	if err != nil {
		return 0, err.Error()
	}
	return res.StatusCode, string(data)
}

func (p *process) want(status int, method, path, key, body string) string {
	p.t.Helper()
	got, answer := p.call(method, path, key, body)
	if got != status {
		p.t.Fatalf("%s %s: got %d %s, want %d", method, path, got, answer, status)
	}
	return answer
}

func TestKilledVendorChargesOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "payment.ledger")
	p := start(t, "-ledger", path)
	first := p.want(201, "POST", "/v1/charges", "k1", `{"order_id":"o1","amount":5}`)
	p.want(402, "POST", "/v1/charges", "k2", `{"order_id":"o2","card":{"declined":true}}`)
	p.want(402, "POST", "/v1/charges", "k3", `{"order_id":"o3","card":"tok_1","declined":true}`)
	p.want(400, "POST", "/v1/charges", "", `{"order_id":"o4"}`)

	// Killed after it acted and before it answered.
	p.want(200, "POST", "/_control/hold?answers=true", "", "")
	answer := make(chan int, 1)
	go func() {
		status, _ := p.call("POST", "/v1/charges", "k4", `{"order_id":"o4"}`)
		answer <- status
	}()
	counts := p.want(200, "GET", "/_control/open?at_least=1&effects=2&within=20s", "", "")
	if !strings.Contains(counts, `"open":1`) || !strings.Contains(counts, `"effects":2`) {
		t.Fatalf("counts: %s", counts)
	}
	if code := p.end(syscall.SIGKILL); code != -1 {
		t.Fatalf("exit code %d after SIGKILL", code)
	}
	if status := <-answer; status != 0 {
		t.Fatalf("the killed vendor answered %d", status)
	}

	p = start(t, "-ledger", path)
	if again := p.want(201, "POST", "/v1/charges", "k1", `{"order_id":"o1","amount":5}`); again != first {
		t.Errorf("after the restart %s, before it %s", again, first)
	}
	p.want(201, "POST", "/v1/charges", "k4", `{"order_id":"o4"}`)
	p.want(402, "POST", "/v1/charges", "k2", `{"order_id":"o2","card":{"declined":true}}`)
	p.want(200, "GET", "/lookup?key=k4", "", "")

	var ledger samekeytest.Ledger
	if err := json.Unmarshal([]byte(p.want(200, "GET", "/_control/ledger", "", "")), &ledger); err != nil {
		t.Fatal(err)
	}
	if len(ledger.Effects) != 2 || len(ledger.Doubles()) != 0 || ledger.Counts.Declined != 2 || ledger.Counts.Calls != 8 {
		t.Errorf("ledger: %+v", ledger.Counts)
	}
	if code := p.end(syscall.SIGTERM); code != 0 {
		t.Errorf("exit code %d after SIGTERM", code)
	}
	onDisk, err := samekeytest.ReadLedger(path)
	if err != nil || onDisk.Counts.Effects != 2 || onDisk.Counts.Open != 0 {
		t.Errorf("on disk: %+v, %v", onDisk.Counts, err)
	}
}

func TestFreshKeysPerAttemptShowAsDoubles(t *testing.T) {
	p := start(t, "-faults", "lose_answer", "-kind", "mail")
	for _, key := range []string{"a", "b"} {
		if status, _ := p.call("POST", "/v1/messages", key, `{"order_id":"o1"}`); status != 0 {
			t.Fatalf("got %d, want a lost answer", status)
		}
	}
	p.want(200, "PUT", "/_control/faults", "", `{}`)
	if body := p.want(202, "POST", "/v1/messages", "b", `{"order_id":"o1"}`); !strings.Contains(body, `"queued"`) {
		t.Errorf("answer: %s", body)
	}
	if counts := p.want(200, "GET", "/_control/open", "", ""); !strings.Contains(counts, `"doubles":1`) || !strings.Contains(counts, `"lose_answer":2`) {
		t.Errorf("counts: %s", counts)
	}
}

func TestBodyWithoutIdentityIsForgotten(t *testing.T) {
	p := start(t, "-identity", "ref")
	if body := p.want(400, "POST", "/v1/charges", "k", `{"order_id":"o1"}`); !strings.Contains(body, "missing_ref") {
		t.Errorf("answer: %s", body)
	}
	p.want(201, "POST", "/v1/charges", "k", `{"ref":7}`)
}

func TestSigtermEndsHeldCalls(t *testing.T) {
	p := start(t, "-faults", "hang")
	answer := make(chan int, 1)
	go func() {
		status, _ := p.call("POST", "/v1/charges", "k", `{"order_id":"o1"}`)
		answer <- status
	}()
	p.want(200, "GET", "/_control/open?at_least=1&within=20s", "", "")
	if code := p.end(syscall.SIGTERM); code != 0 {
		t.Errorf("exit code %d", code)
	}
	if status := <-answer; status != 0 {
		t.Errorf("answered %d", status)
	}
}

func TestInvalidCommandLineIsRefused(t *testing.T) {
	for _, args := range [][]string{{"-kind", "fax"}, {"-faults", "lose"}, {"-no-such-flag"}, {"extra"}, {"-seed", "x"}} {
		var stderr bytes.Buffer
		if code := run(t.Context(), args, io.Discard, &stderr); code != 2 || stderr.Len() == 0 {
			t.Errorf("%v: exit code %d, stderr %q, want code 2", args, code, stderr.String())
		}
	}
	for _, args := range [][]string{{"-listen", "256.0.0.1:0"}, {"-ledger", t.TempDir()}, {"-fault-every", "-1"}} {
		var stderr bytes.Buffer
		if code := run(t.Context(), args, io.Discard, &stderr); code != 1 || stderr.Len() == 0 {
			t.Errorf("%v: exit code %d, stderr %q, want code 1", args, code, stderr.String())
		}
	}
	if code := run(t.Context(), []string{"-help"}, io.Discard, io.Discard); code != 0 {
		t.Errorf("-help: exit code %d", code)
	}
}
