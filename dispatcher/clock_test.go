package dispatcher

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// A wall clock that is set back must not make a held lock look new, or a worker takes over nothing for as long. The wall
// clock cannot be moved in a test, so this holds by construction: the time that is kept has a monotonic reading.
func TestLockHeldTimeIsMonotonic(t *testing.T) {
	_, n, _ := settling(t)
	since := n.session.held.Load()
	if since == nil || !strings.Contains(since.String(), " m=") {
		t.Errorf("the lock is held since %v, without a monotonic reading", since)
	}
	time.Sleep(time.Millisecond)
	if n.session.heldFor() <= 0 {
		t.Errorf("held for %v", n.session.heldFor())
	}
}

// What strips the monotonic reading of a time that is waited for or compared has no place where work is claimed and sent.
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
				if strips.MatchString(line) && !strings.Contains(line, "stamp :=") { // what a webhook is signed with is wall time
					t.Errorf("%s:%d measures by the wall clock: %s", file, i+1, strings.TrimSpace(line))
				}
			}
		}
	}
}
