package dbtest_test

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/samekey/samekey/internal/dbtest"
)

func TestLogWaitsForWholeLines(t *testing.T) {
	var log dbtest.Log
	found := make(chan string, 1)
	waits := func() { dbtest.Until(t, "the test waits", func() bool { return log.Waiting() || len(found) > 0 }) }
	fmt.Fprint(&log, "a job began\nthe job is r")
	go func() { found <- log.Wait(t, "the job") }()
	waits()
	fmt.Fprint(&log, "eady")
	waits()
	fmt.Fprint(&log, " now\nmore")
	if line := dbtest.Receive(t, "the line is found", found); line != "the job is ready now" {
		t.Errorf("found %q", line)
	}
	if line := log.Line("job"); line != "a job began\n" {
		t.Errorf("the first line is %q", line)
	}
}

// ending is a test that notes that it failed.
type ending struct {
	testing.TB
	text string
}

func (e *ending) Helper() {}

func (e *ending) Fatalf(format string, args ...any) {
	e.text = fmt.Sprintf(format, args...)
	runtime.Goexit()
}

func TestClosedLogEndsItsWaits(t *testing.T) {
	var log dbtest.Log
	fmt.Fprintln(&log, "cannot start")
	waiting := &ending{TB: t}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		log.Wait(waiting, "running")
	}()
	dbtest.Until(t, "the test waits", log.Waiting)
	log.Close()
	dbtest.Receive(t, "the wait ends", ended)
	if !strings.Contains(waiting.text, `"running"`) || !strings.Contains(waiting.text, "cannot start") {
		t.Errorf("the test fails with %q", waiting.text)
	}
}
