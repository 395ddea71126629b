package dispatcher

import (
	"cmp"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// The files of this package from top to bottom. A file uses only what files below it declare: so the path of an intent,
// which doc_path.go describes, runs in one direction. What goes back up is a poke, as a func. There is no exception.
//
// Put a new file where it belongs. If a declaration is needed from above, move the declaration down, or pass a func.
var topToBottom = strings.Fields(`
	doc.go doc_path.go

	run.go rounds.go health.go river.go
	register.go dispatcher.go worker.go
	upkeep.go

	session.go sweep.go paused.go
	shift.go
	drain.go
	claim.go fair.go load.go
	admit.go
	deliver.go
	prepare.go render.go
	call.go
	decide.go
	observe.go stored.go alarm.go unsent.go
	destination.go turns.go slots.go loadbudget.go
	settle.go order.go settlewriter.go
	applier.go apply.go
	attender.go attention.go
	applytx.go
	postpone.go announce.go report.go pool.go uuid.go

	checkfunctions.go
	core.go identity.go deployment.go failing.go
	cause.go claimed.go
	check.go account.go
	delivery.go action.go
	function.go
	outcome.go settlement.go values.go
	configerror.go
	vendor.go limits.go config.go policy.go class.go
	repeats.go backoff.go guard.go text.go times.go
`)

func TestPathRunsInOneDirection(t *testing.T) {
	files, uses := usesBetweenFiles(t)
	for _, name := range files {
		if !slices.Contains(topToBottom, name) {
			t.Errorf("%s is not in topToBottom: put it where it belongs", name)
		}
	}
	for _, name := range topToBottom {
		if !slices.Contains(files, name) {
			t.Errorf("%s is in topToBottom and does not exist", name)
		}
	}
	for _, u := range uses {
		if slices.Index(topToBottom, u.from) > slices.Index(topToBottom, u.to) {
			t.Errorf("%s uses %s, which %s declares above it", u.at, u.name, u.to)
		}
	}
	if len(uses) < 1000 {
		t.Errorf("only %d uses were found", len(uses))
	}
}

// use is the use of a declaration of another file.
type use struct{ from, to, name, at string }

// usesBetweenFiles type-checks the package without its imports, which is fast. It does not see what is reached through
// a type of another package, such as the methods of what an atomic.Pointer holds.
func usesBetweenFiles(t *testing.T) (files []string, uses []use) {
	paths, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	set := token.NewFileSet()
	var parsed []*ast.File
	for _, path := range paths {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(set, path, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		files, parsed = append(files, path), append(parsed, file)
	}
	info := &types.Info{Uses: map[*ast.Ident]types.Object{}}
	config := types.Config{Importer: nothing{}, Error: func(error) {}}
	pkg, _ := config.Check("dispatcher", set, parsed, info) // without imports there are always errors
	for id, object := range info.Uses {
		if object.Pkg() != pkg {
			continue
		}
		at, declared := set.Position(id.Pos()), set.Position(object.Pos())
		if at.Filename != declared.Filename {
			uses = append(uses, use{at.Filename, declared.Filename, id.Name, fmt.Sprintf("%s:%d", at.Filename, at.Line)})
		}
	}
	slices.SortFunc(uses, func(a, b use) int { return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.name, b.name)) })
	return files, uses
}

// nothing imports packages that declare nothing.
type nothing struct{}

func (nothing) Import(path string) (*types.Package, error) {
	pkg := types.NewPackage(path, path[strings.LastIndex(path, "/")+1:])
	pkg.MarkComplete()
	return pkg, nil
}
