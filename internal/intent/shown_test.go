package intent_test

import (
	"flag"
	"fmt"
	"go/ast"
	"go/constant"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/samekey/samekey/internal/intent"
)

var update = flag.Bool("update", false, "write the table into docs/design.md and outbox/doc.go")

// The design document shows the table. `go test ./internal/intent -update` writes it.
func TestDesignShowsTheTable(t *testing.T) {
	shows(t, "../../docs/design.md", "<!-- transitions: begin -->\n", markdown(), "<!-- transitions: end -->")
}

// The package comment of outbox shows it to users, by status. `go test ./internal/intent -update` writes it.
func TestOutboxShowsTheTable(t *testing.T) {
	shows(t, "../../outbox/doc.go", "What people do has the name of its function.\n//\n", comment(t), "package outbox\n")
}

// shows checks that the file has the text between two others.
func shows(t *testing.T, file, begin, want, end string) {
	t.Helper()
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(content), begin)
	shown, after, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatalf("%s has no place for the table", file)
	}
	if shown == want {
		return
	}
	if !*update {
		t.Fatalf("%s does not show the table of transitions: run go test ./internal/intent -run Shows -update", file)
	}
	if err := os.WriteFile(file, []byte(before+begin+want+end+after), 0o644); err != nil {
		t.Fatal(err)
	}
}

func markdown() string {
	var b strings.Builder
	b.WriteString("| status | event | next status | when |\n| --- | --- | --- | --- |\n")
	for _, step := range intent.Table {
		from := step.From
		if from == intent.New {
			from = "(none)"
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", from, step.Event, next(step, "**", "**"), step.Why)
	}
	return b.String()
}

// next lists the next statuses of a step, with marks around those that are final.
func next(step intent.Transition, before, after string) string {
	to := slices.Clone(step.To)
	for i := range to {
		if intent.IsFinished(to[i]) {
			to[i] = before + to[i] + after
		}
	}
	return strings.Join(to, ", ")
}

// happens has the words for the events in the package comment. People's acts have the name of a function of outbox.
var happens = map[string]string{
	intent.EventClaimed:   "claimed",
	intent.EventPostponed: "given back",
	intent.EventPromoted:  "its turn",
	intent.EventAttempt:   "attempt",
	intent.EventLookup:    "lookup",
	intent.EventApply:     "Apply",
	intent.EventOrphaned:  "worker lost",
	intent.EventLate:      "late answer",
	intent.EventRestored:  "row restored",
	intent.EventInserted:  "Insert",
	intent.EventApproved:  "Approve",
	intent.EventRejected:  "Reject",
	intent.EventRedriven:  "Redrive",
	intent.EventResolved:  "Resolve",
	intent.EventCancelled: "Cancel",
	intent.EventReplaced:  "Replace",
	intent.EventHeld:      "held",
}

// unseen are events that a reader of the package comment does not see if they keep the status: a worker takes the
// intent, gives it back or loses it, and the next worker does the same work.
var unseen = []string{intent.EventClaimed, intent.EventPostponed, intent.EventOrphaned}

func comment(t *testing.T) string {
	t.Helper()
	described := constants(t)
	var b strings.Builder
	b.WriteString("//\tno state: the intent is new, or its row in the queue was lost\n")
	writeSteps(t, &b, intent.New)
	for _, status := range intent.Unfinished {
		fmt.Fprintf(&b, "//\n//\t%s: %s\n", status, described[status].comment)
		writeSteps(t, &b, status)
	}
	b.WriteString("//\n")
	for _, status := range intent.Finished {
		fmt.Fprintf(&b, "//\t(%s): %s\n", status, described[status].comment)
	}
	return b.String()
}

// writeSteps writes a line for each step from the status. The lines of one event stand together.
func writeSteps(t *testing.T, b *strings.Builder, from string) {
	t.Helper()
	last := ""
	for _, step := range intent.Table {
		if step.From != from || slices.Contains(unseen, step.Event) && slices.Contains(step.To, from) {
			continue
		}
		event, ok := happens[step.Event]
		if !ok {
			t.Fatalf("there is no word for the event %q", step.Event)
		}
		shown := event
		if event == last {
			shown = ""
		}
		last = event
		b.WriteString(strings.TrimRight(fmt.Sprintf("//\t  %-12s -> %-22s  %s", shown, next(step, "(", ")"), step.Why), " ") + "\n")
	}
}

func TestActsOfPeopleAreFunctionsOfOutbox(t *testing.T) {
	files, err := filepath.Glob("../../outbox/*.go")
	if err != nil {
		t.Fatal(err)
	}
	functions := map[string]bool{}
	for _, file := range files {
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, decl := range parsed.Decls {
			if f, ok := decl.(*ast.FuncDecl); ok && f.Recv == nil {
				functions[f.Name.Name] = true
			}
		}
	}
	for _, event := range []string{intent.EventInserted, intent.EventApproved, intent.EventRejected, intent.EventRedriven,
		intent.EventResolved, intent.EventCancelled} {
		if !functions[happens[event]] {
			t.Errorf("%s: outbox has no function %s", event, happens[event])
		}
	}
}

func TestOutboxExportsEachStatus(t *testing.T) {
	exported := constants(t)
	for _, status := range statuses {
		var name strings.Builder
		for word := range strings.SplitSeq(status, "_") {
			name.WriteString(strings.ToUpper(word[:1]) + word[1:])
		}
		if got, want := exported[status].name, "Status"+name.String(); got != want {
			t.Errorf("%s is outbox.%s, want outbox.%s", status, got, want)
		}
	}
	for status, c := range exported {
		if !slices.Contains(statuses, status) {
			t.Errorf("outbox.%s is %q, which is no status", c.name, status)
		}
	}
}

type exported struct{ name, comment string }

// constants returns the constants of outbox/states.go, by value.
func constants(t *testing.T) map[string]exported {
	t.Helper()
	set := token.NewFileSet()
	file, err := parser.ParseFile(set, "../../outbox/states.go", nil, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	info := types.Info{Defs: map[*ast.Ident]types.Object{}}
	config := types.Config{Importer: importer.ForCompiler(set, "source", nil)}
	if _, err := config.Check("outbox", set, []*ast.File{file}, &info); err != nil {
		t.Fatal(err)
	}
	found := map[string]exported{}
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok {
			return true
		}
		for _, name := range spec.Names {
			if c, ok := info.Defs[name].(*types.Const); ok {
				status := constant.StringVal(c.Val())
				if twice := found[status]; twice.name != "" {
					t.Errorf("%q is outbox.%s and outbox.%s", status, twice.name, name.Name)
				}
				found[status] = exported{name.Name, strings.TrimSpace(spec.Comment.Text())}
			}
		}
		return true
	})
	return found
}
