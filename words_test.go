package samekey_test

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode"
)

// unwanted lists words that make a reader stop, and what to write instead. A space in a pattern also matches a line
// break, with the comment sign of the next line. Case does not matter.
var unwanted = []struct{ pattern, better string }{
	{`for ever`, "forever"},
	{`anew`, "again"},
	{`mend(s|ed|ing)?`, "fix, correct"},
	{`(who|whom)ever`, "name the subject: the caller, any worker"},
	{`whatever (becomes|became|comes|came) (of|to)`, "whatever the result is"},
	{`none (is|was)`, "there is no .., or: if no .. exists"},
	{`(is|was|are|were) said( twice)?`, "name who reports it: the log, the error, Check"},
	{`says that`, "reports that, states that"},
	{`(some|any|no|every)body('s)? (else )?[a-z]+`, "name the subject: the caller, an operator, no worker"},
	{`how-?manieth`, "position, number"},
	{`look-ups?`, "lookup"},
	{`looks-up`, "lookup"},
	{`what (is|was|came|comes) due`, "due intents"},
	{`what (came|comes|came out|has come) (to|of)`, "the result of"},
	{`of the moment`, "current"},
	{`there (is|are) no [a-z]+ of (ours|its own|theirs)`, "it has no .."},
	{`beside (it|them) stands?`, "next to it is"},
	{`%q is no [a-z]+`, `unknown .. %q`},
	{`has no meaning for no`, "state the valid range"},
	{`is to be had`, "is available"},
	{`(can|could|cannot) be had`, "is available, can be downloaded"},
	{`gone through`, "finished, processed"},
	{`sees to it`, "ensures"},
	{`leads? a person`, "tells the reader"},
}

// longestName is the number of characters that fit a list of tests beside the time and the package.
const longestName = 60

func TestPlainWords(t *testing.T) {
	for _, path := range texts(t) {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, finding := range unwantedWords(path, text) {
			t.Error(finding)
		}
	}
}

func TestNamesOfTestsAreShort(t *testing.T) {
	for _, path := range texts(t) {
		if !strings.HasSuffix(path, "_test.go") {
			continue
		}
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, finding := range longNames(t, path, text) {
			t.Error(finding)
		}
	}
}

// The checks find what they are for, and little else.
func TestUnwantedWordsAreFound(t *testing.T) {
	for text, want := range map[string]string{
		"// It waits for ever.":               `x.go:1: "for ever": write forever`,
		"// It waits for\n\t// ever.":         `x.go:1: "for ever": write forever`,
		"-- a look-up":                        `x.go:1: "look-up": write lookup`,
		"a\nb\nMended.":                       `x.go:3: "Mended": write fix, correct`,
		"Nobody knows":                        `x.go:1: "Nobody knows": write name the subject: the caller, an operator, no worker`,
		"func TestItIsMadeAnew(":              `x.go:1: "anew": write again`,
		"func TestNoneIsLost(":                `x.go:1: "none is": write there is no .., or: if no .. exists`,
		"Forever, recommend, amended, comma":  "",
		"postgres://nobody@host, user nobody": "",
		"somebody.":                           "",
		"look up, a lookup, a look at it":     "",
	} {
		if got := strings.Join(unwantedWords("x.go", []byte(text)), "; "); got != want {
			t.Errorf("%q: got %s, want %s", text, got, want)
		}
	}
	name := strings.Repeat("a", longestName-4)
	source := "package x\nfunc Test" + name + "() {}\nfunc Test" + name + "b() {}\nfunc Help" + name + "bc() {}\n"
	if got := longNames(t, "x_test.go", []byte(source)); len(got) != 1 || !strings.HasPrefix(got[0], "x_test.go:3: ") {
		t.Errorf("long names: %q", got)
	}
}

// wordPattern finds a phrase. Each text that it matches contains must, which is quick to look for.
type wordPattern struct {
	*regexp.Regexp
	must []byte
}

var wordPatterns = func() (patterns []wordPattern) {
	optional := regexp.MustCompile(`\([^)]*\)\??|\[[^\]]*\]\+|.\?`)
	letters := regexp.MustCompile(`[a-z]+`)
	for _, word := range unwanted {
		must := ""
		for _, part := range letters.FindAllString(optional.ReplaceAllString(word.pattern, "."), -1) {
			if len(part) > len(must) {
				must = part
			}
		}
		gap := `(?:[ \t]+|[ \t]*\n[ \t]*(?:(?://|--|#|>|\*)[ \t]*)?)`
		pattern := regexp.MustCompile(`(?i)\b` + strings.ReplaceAll(word.pattern, " ", gap) + `\b`)
		patterns = append(patterns, wordPattern{pattern, []byte(must)})
	}
	return patterns
}()

var (
	testName = regexp.MustCompile(`\bTest([A-Z]\w*)\(`)
	gaps     = regexp.MustCompile(`\s+((//|--|#|>|\*)\s*)?`)
)

// unwantedWords returns a line for each finding. It also reads the names of tests, as the words that they consist of.
func unwantedWords(path string, text []byte) (found []string) {
	report := func(line, word int, match []byte) {
		found = append(found, fmt.Sprintf("%s:%d: %q: write %s", path, line, gaps.ReplaceAllString(string(match), " "), unwanted[word].better))
	}
	lower := bytes.ToLower(text)
	for i, pattern := range wordPatterns {
		if !bytes.Contains(lower, pattern.must) {
			continue
		}
		for _, at := range pattern.FindAllIndex(text, -1) {
			report(lineOf(text, at[0]), i, text[at[0]:at[1]])
		}
	}
	for _, at := range testName.FindAllSubmatchIndex(text, -1) {
		name := words(string(text[at[2]:at[3]]))
		for i, pattern := range wordPatterns {
			if match := pattern.Find([]byte(name)); match != nil {
				report(lineOf(text, at[0]), i, match)
			}
		}
	}
	return found
}

func lineOf(text []byte, offset int) int { return 1 + bytes.Count(text[:offset], []byte("\n")) }

// words splits a name such as NoneIsLost.
func words(name string) string {
	var split strings.Builder
	for i, r := range name {
		if i > 0 && unicode.IsUpper(r) {
			split.WriteByte(' ')
		}
		split.WriteRune(unicode.ToLower(r))
	}
	return split.String()
}

func longNames(t *testing.T, path string, text []byte) (found []string) {
	t.Helper()
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, path, text, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	for _, decl := range file.Decls {
		f, ok := decl.(*ast.FuncDecl)
		if !ok || f.Recv != nil || len(f.Name.Name) <= longestName {
			continue
		}
		for _, kind := range []string{"Test", "Benchmark", "Fuzz", "Example"} {
			if strings.HasPrefix(f.Name.Name, kind) {
				found = append(found, fmt.Sprintf("%s:%d: %s has %d characters, more than %d",
					path, files.Position(f.Pos()).Line, f.Name.Name, len(f.Name.Name), longestName))
			}
		}
	}
	return found
}

var textFile = regexp.MustCompile(`\.(go|md|sql|sh|ya?ml)$|^(Makefile|Dockerfile|run)$`)

// texts are the files of the repository that people read: not what a tool generated, and not this list of words.
func texts(t *testing.T) (paths []string) {
	t.Helper()
	err := filepath.WalkDir(".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() {
			if path == "bin" || path == ".git" {
				return filepath.SkipDir
			}
			return nil
		}
		if !entry.Type().IsRegular() || !textFile.MatchString(entry.Name()) || path == "words_test.go" {
			return nil
		}
		text, err := os.ReadFile(path)
		if err == nil && !bytes.HasPrefix(text, []byte("// Code generated")) {
			paths = append(paths, filepath.ToSlash(path))
		}
		return err
	})
	if err != nil || len(paths) < 100 {
		t.Fatalf("found %d files, %v", len(paths), err)
	}
	return paths
}
