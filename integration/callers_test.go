package integration

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/samekey/samekey/processed/httpkey"
)

// The test runs the loops that docs/callers.md shows in other languages, against a real service. They retry the 409 of
// a first attempt that is still running, and accept the service's own 409 as the answer. If the language is not
// installed on this machine, its loop is skipped.
func TestCallersLoopsTellTheTwo409sApart(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../docs/callers.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ language, program, file, call string }{
		{"python", "python3", "post.py", "import sys\nprint(json.dumps(post(sys.argv[1], sys.argv[2], sys.argv[3].encode(), 't')[0]))\n"},
		{"ts", "node", "post.mjs", "post(...process.argv.slice(2), 't').then((got) => console.log(got.status));\n"},
	} {
		t.Run(c.language, func(t *testing.T) {
			block := regexp.MustCompile("(?s)\n```" + c.language + "\n(.*?)\n```\n").FindSubmatch(page)
			if block == nil {
				t.Fatalf("docs/callers.md has no %s code", c.language)
			}
			program, err := exec.LookPath(c.program)
			if err != nil {
				t.Skipf("%s is not installed: its loop was not run", c.program)
			}
			text := string(block[1])
			if c.language == "ts" { // node runs it without the types
				text = strings.NewReplacer(": string | null", "", ": string", "").Replace(text)
			}
			file := filepath.Join(t.TempDir(), c.file)
			if err := os.WriteFile(file, []byte(text+"\n\n"+c.call), 0o600); err != nil {
				t.Fatal(err)
			}
			s := newSeats(t)
			run := func(key, seat string) string {
				out, err := exec.CommandContext(t.Context(), program, file, s.url, key, fmt.Sprintf(`{"item":%q}`, seat)).CombinedOutput()
				if err != nil {
					t.Fatalf("%v: %s", err, out)
				}
				return strings.TrimSpace(string(out))
			}

			if got := run("k1", "taken"); got != "409" || s.requests.Load() != 1 {
				t.Errorf("a taken seat: %s after %d requests, want 409 after one", got, s.requests.Load())
			}
			first := make(chan received, 1)
			go func() {
				got, err := send(t.Context(), &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}, "POST", s.url, "k2", `{"item":"slow"}`)
				if err != nil {
					t.Error(err)
				}
				first <- got
			}()
			<-s.running
			if got := run("k2", "slow"); got != "201" {
				t.Errorf("while the first attempt runs: %s, want its 201", got)
			}
			if got := <-first; got.status != 201 || s.conflicts.Load() != 1 {
				t.Errorf("the first attempt got %d, want 201; the second got %d conflicts, want 1", got.status, s.conflicts.Load())
			}
			if got := run("k3", "lost"); got != "201" {
				t.Errorf("after a 503: %s, want 201", got)
			}
			s.count(2, "orders")
		})
	}
}

// seats is a service with all the answers that a loop must distinguish.
type seats struct {
	*bundle
	url                 string
	requests, conflicts atomic.Int64
	running             chan struct{}
}

func newSeats(t *testing.T) *seats {
	s := &seats{bundle: setup(t, nil), running: make(chan struct{})}
	told := make(chan struct{}) // closed when a request has got the 409 that reports the running first attempt
	var lost atomic.Bool
	keyed := s.keyed(s.appDSN, httpkey.Options{Scope: func(*http.Request) []string { return []string{"acme", "seats.take"} }})
	next := keyed.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx := r.Context()
		var asked order
		if err := json.NewDecoder(r.Body).Decode(&asked); err != nil {
			t.Error(err)
		}
		_, err := httpkey.Tx(ctx).Exec(ctx, "insert into orders (operation, tenant, item, amount) values ('create', 'acme', $1, 1)", asked.Item)
		switch {
		case err != nil:
			httpkey.Abort(ctx, err)
			return
		case asked.Item == "taken":
			w.WriteHeader(http.StatusConflict)
			return
		case asked.Item == "slow":
			close(s.running)
			<-told
		case asked.Item == "lost" && !lost.Swap(true):
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		w.WriteHeader(http.StatusCreated)
	}))
	s.url = serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.requests.Add(1)
		next.ServeHTTP(w, r)
		if w.Header().Get("Retry-After") != "" && s.conflicts.Add(1) == 1 {
			close(told)
		}
	}))
	return s
}
