package dispatcher_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/samekey/samekey/dispatcher"
)

// workerEnv holds the settings of a worker in its own process: this test binary, started again.
const workerEnv = "SAMEKEY_TEST_WORKER"

type workerSettings struct {
	DSN, URL string
	Class    dispatcher.Class
	Timeout  time.Duration
	Apply    bool // register an Apply that never ends

	Attention bool // register an Attention function
	StopAt    string
}

// workerMain delivers charge_card until it is killed or its parent ends.
func workerMain() {
	var s workerSettings
	if err := json.Unmarshal([]byte(os.Getenv(workerEnv)), &s); err != nil {
		panic(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	go func() { // the parent holds the other end
		_, _ = bufio.NewReader(os.Stdin).ReadByte()
		cancel()
		os.Exit(1)
	}()
	pool, err := pgxpool.New(ctx, s.DSN)
	if err != nil {
		panic(err)
	}
	d := dispatcher.New(pool, &dispatcher.Config{SweepInterval: 50 * time.Millisecond, Logger: slog.New(slog.DiscardHandler)})
	p := policyOf(s.Class)
	p.Timeout = s.Timeout
	d.Destination("vendor", dispatcher.Limits{})
	var options []option
	if s.Apply {
		options = append(options, withApply(func(context.Context, pgx.Tx, []byte, dispatcher.Settled) error { select {} }))
	}
	if s.Attention {
		options = append(options, attend(s.StopAt), func(dl *delivery) { dl.Policy.Attempts = 1 })
	}
	handle(d, "charge_card", p, postTo(&http.Client{}, s.URL), options...)
	fmt.Fprintln(os.Stderr, d.Run(ctx))
}

// process is a worker that can be killed.
type process struct {
	b   *bundle
	cmd *exec.Cmd
}

// startWorker starts a process that delivers charge_card.
func (b *bundle) startWorker(s workerSettings) *process {
	b.Helper()
	if s.DSN == "" {
		s.DSN = b.db.DSN
	}
	s.URL = b.vendor.URL
	settings, err := json.Marshal(s)
	if err != nil {
		b.Fatal(err)
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), workerEnv+"="+string(settings))
	cmd.Stderr = os.Stderr
	if _, err := cmd.StdinPipe(); err != nil {
		b.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	p := &process{b: b, cmd: cmd}
	b.Cleanup(p.kill)
	return p
}

// kill sends SIGKILL and waits until the process has ended.
func (p *process) kill() {
	if p.cmd.ProcessState == nil {
		_ = p.cmd.Process.Kill()
		_ = p.cmd.Wait()
	}
}
