package main

import (
	"os"
	"testing"

	"github.com/samekey/samekey/internal/localpg"
)

func TestMain(m *testing.M) {
	localpg.Main()
	os.Exit(m.Run())
}

func TestExitCodeIsTheCommands(t *testing.T) {
	for _, c := range []struct {
		name, script string
		want         int
	}{
		{"success, with a server named", `test -n "$SAMEKEY_TEST_DATABASE_URL"`, 0},
		{"an exit code", `exit 7`, 7},
		{"a signal", `kill -KILL $$`, 128 + 9},
		// The command gets the signal that this process gets.
		{"a signal passed on", `trap 'exit 9' TERM; kill -TERM $PPID; for i in $(seq 1000); do sleep 0.01; done; exit 1`, 9},
	} {
		t.Run(c.name, func(t *testing.T) {
			code, err := run([]string{"sh", "-c", c.script})
			if code != c.want || err != nil {
				t.Errorf("got %d, %v; want %d", code, err, c.want)
			}
		})
	}
}

func TestCommandThatCannotStartIsAnError(t *testing.T) {
	if code, err := run([]string{"/no/such/command"}); code == 0 || err == nil {
		t.Errorf("got %d, %v", code, err)
	}
}
