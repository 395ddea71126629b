package dbtest

import (
	"strings"
	"sync"
	"testing"
	"time"
)

// Log keeps what loggers and processes write. Goroutines may write and read at the same time. The zero value is ready
// for use.
type Log struct {
	mu      sync.Mutex
	text    strings.Builder
	closed  bool
	changed chan struct{} // closed by the next Write or Close; nil if no test waits
}

// Write implements io.Writer.
func (l *Log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	defer l.signal()
	return l.text.Write(p)
}

// Close ends the waits for lines that did not come, such as when a process has ended.
func (l *Log) Close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	defer l.signal()
	l.closed = true
}

func (l *Log) signal() {
	if l.changed != nil {
		close(l.changed)
		l.changed = nil
	}
}

// String returns what was written so far.
func (l *Log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// Line returns the first line that contains the text, or "" if there is none.
func (l *Log) Line(text string) string {
	for line := range strings.Lines(l.String()) {
		if strings.Contains(line, text) {
			return line
		}
	}
	return ""
}

// Wait waits for a line that contains the text, and returns the first one.
func (l *Log) Wait(t testing.TB, text string) string {
	t.Helper()
	limit := time.After(Patience)
	for {
		line, ended, changed := l.find(text)
		switch {
		case line != "":
			return line
		case ended:
			t.Fatalf("the log ended without a line with %q:\n%s", text, l.Tail())
		}
		select {
		case <-changed:
		case <-limit:
			t.Fatalf("timed out after %v waiting for a line with %q:\n%s", Patience, text, l.Tail())
		}
	}
}

// find returns the first whole line that contains the text, and a channel that is closed when there is more to look at.
func (l *Log) find(text string) (line string, ended bool, changed <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for line := range strings.Lines(l.text.String()) {
		if strings.Contains(line, text) && (l.closed || strings.HasSuffix(line, "\n")) {
			return strings.TrimSuffix(line, "\n"), l.closed, nil
		}
	}
	if l.changed == nil {
		l.changed = make(chan struct{})
	}
	return "", l.closed, l.changed
}

// tail is how many lines a test that failed shows.
const tail = 40

// Tail returns the last lines, for a test that failed.
func (l *Log) Tail() string {
	lines := strings.SplitAfter(l.String(), "\n")
	return strings.Join(lines[max(0, len(lines)-tail):], "")
}
