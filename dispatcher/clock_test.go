package dispatcher

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// If the wall clock is set back, a held lock must not look new; otherwise the worker takes over nothing for that long.
// A test cannot set the wall clock, so it checks that the stored time has a monotonic reading.
func TestLockHeldTimeIsMonotonic(t *testing.T) {
	_, n, _ := settling(t)
	since := n.session.held.Load()
	if since == nil || !strings.Contains(since.String(), " m=") {
		t.Errorf("the lock has been held since %v, which has no monotonic reading", since)
	}
	time.Sleep(time.Millisecond)
	if n.session.heldFor() <= 0 {
		t.Errorf("held for %v", n.session.heldFor())
	}
}

// Code that claims or sends must not strip the monotonic reading of a time that it waits for or compares.
func TestWaitsAreMonotonic(t *testing.T) {
	strips := regexp.MustCompile(`time\.Unix|\.Unix(Nano|Milli|Micro)?\(\)|\.Round\(0\)|\.Truncate\(`)
	for _, pattern := range []string{"*.go", "../internal/wake/*.go", "../internal/wire/*.go", "httpvendor/*.go"} {
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) == 0 {
			t.Fatal(pattern, err)
		}
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			for i, line := range strings.Split(string(text), "\n") {
				if strips.MatchString(line) && !strings.Contains(line, "stamp :=") { // a webhook signature has wall time
					t.Errorf("%s:%d measures by the wall clock: %s", file, i+1, strings.TrimSpace(line))
				}
			}
		}
	}
}
