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
func TestEachProblemTypeHasAHeading(t *testing.T) {
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

func TestLinksOnPagesResolve(t *testing.T) {
	spans := regexp.MustCompile("`[^`\n]*`")
	link := regexp.MustCompile(`\[[^\]]*\]\(([^()\s]+)\)`)
	links := 0
	for _, page := range pages(t) {
		for _, match := range link.FindAllStringSubmatch(spans.ReplaceAllString(prose(t, page), ""), -1) {
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
				t.Errorf("%s: %s: the page has no such heading", page, match[1])
			}
		}
	}
	if links < 10 {
		t.Errorf("the pages have %d links", links)
	}
}

// Go code on a page is part of a test file, so it compiles, and most of it runs.
func TestGoOnPagesIsFromTests(t *testing.T) {
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
	blocks := 0
	for _, page := range pages(t) {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, match := range block.FindAllStringSubmatch(string(text), -1) {
			blocks++
			for part := range strings.SplitSeq(match[1], "\n\n") {
				shown := flush(part)
				if !strings.Contains(examples.String(), shown) {
					t.Errorf("%s: no test file has this:\n%s", page, part)
				}
			}
		}
	}
	if blocks < 15 {
		t.Errorf("the pages have %d blocks of Go", blocks)
	}
}

// A log line that a page quotes, such as WARN `calls fail`, is a text in the code.
func TestLogLinesOnPagesExist(t *testing.T) {
	var source strings.Builder
	err := filepath.WalkDir(".", func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		source.Write(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	quoted := regexp.MustCompile("\\b(?:INFO|WARN|ERROR) `([^`]+)`")
	lines := 0
	for _, page := range pages(t) {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, match := range quoted.FindAllStringSubmatch(string(text), -1) {
			if lines++; !strings.Contains(source.String(), match[1]) {
				t.Errorf("%s: no program logs %q", page, match[1])
			}
		}
	}
	if lines < 8 {
		t.Errorf("the pages quote %d log lines", lines)
	}
}

// The README names the licence of each module that go.mod requires.
func TestReadmeNamesLicences(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, licences, _ := strings.Cut(string(readme), "## Licences")
	mod, err := os.ReadFile("go.mod")
	if err != nil {
		t.Fatal(err)
	}
	required := regexp.MustCompile(`(?m)^\t(\S+) v\S+`).FindAllSubmatch(mod, -1)
	for _, match := range required {
		path := string(match[1])
		if path == "go.uber.org/goleak" { // for tests
			continue
		}
		name := strings.TrimPrefix(path, "github.com/")
		if strings.HasPrefix(name, "riverqueue/river/") {
			name = "riverqueue/river"
		}
		name = regexp.MustCompile(`/v\d+$`).ReplaceAllString(name, "")
		if !strings.Contains(licences, name) && !strings.Contains(licences, filepath.Base(name)) {
			t.Errorf("README.md does not name the licence of %s", path)
		}
	}
	if len(required) < 10 {
		t.Errorf("go.mod requires %d modules", len(required))
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

// pages are what people read beside the code.
func pages(t *testing.T) (found []string) {
	t.Helper()
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/vendors/*.md", "examples/*/README.md"} {
		some, err := filepath.Glob(pattern)
		if err != nil || len(some) == 0 {
			t.Fatal(pattern, some, err)
		}
		found = append(found, some...)
	}
	return found
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
	called := regexp.MustCompile(`\b([a-z]+)\.([A-Z]\w*)`)
	found := 0
	for _, page := range pages(t) {
		if page == "CHANGELOG.md" || page == "docs/decisions.md" {
			continue // they name what existed at the time
		}
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
		t.Errorf("found only %d names: does the test still read the pages?", found)
	}
}

// A merge of two lists of decisions can repeat a row.
func TestEachDecisionIsListedOnce(t *testing.T) {
	page, err := os.ReadFile("docs/decisions.md")
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for line := range strings.Lines(string(page)) {
		decision, _, row := strings.Cut(line, " | ")
		if row && seen[decision] {
			t.Errorf("docs/decisions.md lists this twice: %s", decision)
		}
		seen[decision] = true
	}
	if len(seen) < 100 {
		t.Errorf("the page lists %d decisions", len(seen))
	}
}
