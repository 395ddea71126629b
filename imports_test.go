package samekey_test

import (
	"os/exec"
	"strings"
	"testing"
)

// dependency is a package that another reaches, and its module ("" for the standard library).
type dependency struct{ path, module string }

func TestWritersImportPgxAndLittleElse(t *testing.T) {
	allowed := map[string]bool{
		"":                                   true, // the standard library
		"github.com/samekey/samekey":         true,
		"github.com/jackc/pgx/v5":            true,
		"github.com/jackc/pgpassfile":        true,
		"github.com/jackc/pgservicefile":     true,
		"github.com/jackc/puddle/v2":         true,
		"github.com/google/uuid":             true,
		"github.com/go-json-experiment/json": true,
		"golang.org/x/sync":                  true,
		"golang.org/x/text":                  true,
		"golang.org/x/crypto":                true,
	}
	for _, pkg := range []string{".", "./outbox", "./outbox/endpoints", "./processed", "./processed/httpkey", "./processed/httpkey/keyclient"} {
		if strings.HasPrefix(pkg, "./processed/httpkey") {
			allowed["github.com/dunglas/httpsfv"] = true // the key's header as a structured field
		}
		for _, dep := range dependencies(t, pkg) {
			if !allowed[dep.module] {
				t.Errorf("%s reaches %s", pkg, dep.path)
			}
			if strings.HasPrefix(dep.path, "github.com/samekey/samekey/dispatcher") {
				t.Errorf("%s reaches the worker's side: %s", pkg, dep.path)
			}
		}
	}
}

func TestOutboxAndProcessedDoNotImportEachOther(t *testing.T) {
	for pkg, other := range map[string]string{"./outbox": "processed", "./processed": "outbox"} {
		for _, dep := range dependencies(t, pkg) {
			if dep.path == "github.com/samekey/samekey/"+other {
				t.Errorf("%s reaches %s", pkg, dep.path)
			}
		}
	}
}

func TestKeyclientImportsNoServerCode(t *testing.T) {
	for _, dep := range dependencies(t, "./processed/httpkey/keyclient") {
		for _, server := range []string{"samekey/processed", "samekey/outbox", "samekey/internal/db", "pgx/v5/pgxpool"} {
			if strings.HasSuffix(dep.path, server) {
				t.Errorf("keyclient reaches %s", dep.path)
			}
		}
	}
}

func TestWorkerCannotStartADatabase(t *testing.T) {
	for _, dep := range dependencies(t, "./cmd/worker") {
		for _, banned := range []string{"fergusstrange", "embedded-postgres", "testcontainers", "docker", "samekey/samekey/samekeytest"} {
			if strings.Contains(dep.path, banned) {
				t.Errorf("./cmd/worker reaches %s", dep.path)
			}
		}
	}
}

// dependencies returns what the package reaches, tests not counted, and fails if it does not exist.
func dependencies(t *testing.T, pkg string) []dependency {
	t.Helper()
	cmd := exec.Command("go", "list", "-deps", "-f", "{{.ImportPath}} {{with .Module}}{{.Path}}{{end}}", pkg)
	var problem strings.Builder
	cmd.Stderr = &problem
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list %s: %v: %s", pkg, err, problem.String())
	}
	var deps []dependency
	for line := range strings.Lines(string(out)) {
		path, module, _ := strings.Cut(strings.TrimSpace(line), " ")
		deps = append(deps, dependency{path, module})
	}
	if len(deps) < 10 || !strings.HasPrefix(deps[len(deps)-1].path, "github.com/samekey/samekey") {
		t.Fatalf("go list %s: got %v", pkg, deps)
	}
	return deps
}
