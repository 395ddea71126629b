package samekey_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"
)

// The type of a problem is the address of a heading, which tells a person what to do.
func TestEachProblemCodeHasAHeading(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "processed/httpkey/problem.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	constants := map[string]string{}
	ast.Inspect(file, func(n ast.Node) bool {
		if spec, ok := n.(*ast.ValueSpec); ok && len(spec.Values) == 1 {
			if text, ok := spec.Values[0].(*ast.BasicLit); ok {
				constants[spec.Names[0].Name] = strings.Trim(text.Value, `"`)
			}
		}
		return true
	})
	if base := constants["defaultTypes"]; base != "https://github.com/samekey/samekey/blob/main/docs/callers.md#" {
		t.Fatalf("the types begin with %q", base)
	}
	have, codes := anchors(t, "docs/callers.md"), 0
	for name, code := range constants {
		if !strings.HasPrefix(name, "code") {
			continue
		}
		if codes++; !slices.Contains(have, code) {
			t.Errorf("docs/callers.md has no heading %s", code)
		}
	}
	if codes < 10 || constants["codeKeyMissing"] != "key-missing" {
		t.Fatalf("the codes are %q", constants)
	}
}

func TestLinksOfThePagesLeadSomewhere(t *testing.T) {
	link := regexp.MustCompile(`\[[^\]]*\]\(([^()\s]+)\)`)
	links := 0
	for _, page := range pages(t) {
		for _, match := range link.FindAllStringSubmatch(prose(t, page), -1) {
			if strings.Contains(match[1], "://") || strings.HasPrefix(match[1], "mailto:") {
				continue
			}
			links++
			path, anchor, _ := strings.Cut(match[1], "#")
			target := page
			if path != "" {
				target = filepath.Join(filepath.Dir(page), path)
			}
			if _, err := os.Stat(target); err != nil {
				t.Errorf("%s: %s: %v", page, match[1], err)
				continue
			}
			if anchor != "" && !slices.Contains(anchors(t, target), anchor) {
				t.Errorf("%s: %s: there is no such heading", page, match[1])
			}
		}
	}
	if links < 10 {
		t.Errorf("the pages have %d links", links)
	}
}

// What these pages show in Go is part of an example, which is compiled, and run where it has an output.
func TestGoCodeInCallersPageIsFromExamples(t *testing.T) {
	var examples strings.Builder // all test files, indentation removed
	err := filepath.WalkDir(".", func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		examples.WriteString(flush(string(text)))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	block := regexp.MustCompile("(?s)\n```go\n(.*?)\n```\n")
	for _, page := range []string{"docs/agents.md", "docs/callers.md", "docs/keys.md", "docs/natural-keys.md"} {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		blocks := block.FindAllStringSubmatch(string(text), -1)
		if len(blocks) == 0 {
			t.Errorf("%s has no Go", page)
		}
		for _, match := range blocks {
			for part := range strings.SplitSeq(match[1], "\n\n") {
				shown := flush(part)
				if !strings.Contains(examples.String(), shown) {
					t.Errorf("%s: no test file has this:\n%s", page, part)
				}
			}
		}
	}
}

func TestAnchorsAreGitHubs(t *testing.T) {
	page := filepath.Join(t.TempDir(), "page.md")
	text := "# Keys: `Run`, `key_window` and [what](is) left\n\n## in-flight\n\n```sh\n# no heading\n```\n\n### In-Flight\n\n#no heading\n"
	if err := os.WriteFile(page, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	want := []string{"keys-run-key_window-and-what-left", "in-flight", "in-flight-1"}
	if have := anchors(t, page); !slices.Equal(have, want) {
		t.Errorf("anchors %q, want %q", have, want)
	}
}

// pages are the README and everything in docs.
func pages(t *testing.T) []string {
	t.Helper()
	found, err := filepath.Glob("docs/*.md")
	if err != nil || len(found) < 5 {
		t.Fatal(found, err)
	}
	return append(found, "README.md")
}

// prose is a page without its code.
func prose(t *testing.T, page string) string {
	t.Helper()
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	return code.ReplaceAllString("\n"+string(text), "\n")
}

var (
	code    = regexp.MustCompile("(?s)\n```.*?\n```")
	heading = regexp.MustCompile(`(?m)^#{1,6} +(.+?) *$`)
	linked  = regexp.MustCompile(`\[([^\]]*)\]\([^)]*\)`)
)

// anchors are the names that GitHub gives to a page's headings.
func anchors(t *testing.T, page string) (names []string) {
	t.Helper()
	seen := map[string]int{}
	for _, match := range heading.FindAllStringSubmatch(prose(t, page), -1) {
		text := linked.ReplaceAllString(match[1], "$1")
		name := strings.Map(func(r rune) rune {
			switch {
			case r == ' ':
				return '-'
			case r == '-', r == '_', unicode.IsLetter(r), unicode.IsDigit(r):
				return unicode.ToLower(r)
			}
			return -1
		}, text)
		if n := seen[name]; n > 0 {
			names = append(names, fmt.Sprintf("%s-%d", name, n))
		} else {
			names = append(names, name)
		}
		seen[name]++
	}
	return names
}

// flush removes each line's indentation.
func flush(text string) string {
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		lines[i] = strings.TrimSpace(line)
	}
	return strings.Join(lines, "\n")
}

// What the pages call by a package's name is exported by that package.
func TestPagesNameWhatExists(t *testing.T) {
	exported := map[string]map[string]bool{}
	err := filepath.WalkDir(".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() && (strings.HasPrefix(entry.Name(), ".") && path != "." || entry.Name() == "internal" || entry.Name() == "testdata") {
			if err == nil {
				err = filepath.SkipDir
			}
			return err
		}
		if !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		names := exported[file.Name.Name]
		if names == nil {
			names = map[string]bool{}
			exported[file.Name.Name] = names
		}
		ast.Inspect(file, func(node ast.Node) bool {
			switch n := node.(type) {
			case *ast.FuncDecl:
				names[n.Name.Name] = true
				return false
			case *ast.TypeSpec:
				names[n.Name.Name] = true
			case *ast.ValueSpec:
				for _, name := range n.Names {
					names[name.Name] = true
				}
			}
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	pages, err := filepath.Glob("docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	vendors, err := filepath.Glob("docs/vendors/*.md")
	if err != nil {
		t.Fatal(err)
	}
	called := regexp.MustCompile(`\b([a-z]+)\.([A-Z]\w*)`)
	found := 0
	for _, page := range append(append(pages, vendors...), "README.md", "CONTRIBUTING.md") {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range called.FindAllSubmatch(text, -1) {
			names := exported[string(m[1])]
			if names == nil || string(m[1]) == "main" {
				continue // another's package, or a variable
			}
			if found++; !names[string(m[2])] {
				t.Errorf("%s names %s, which does not exist", page, m[0])
			}
		}
	}
	if found < 100 {
		t.Errorf("the test is void: %d names were found", found)
	}
}
