package samekey_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// docs/cases.md maps failures to tests and files: all of them exist, no case is missing, and no row is there twice.
func TestTheCasesPageNamesTestsThatExist(t *testing.T) {
	page, err := os.ReadFile("docs/cases.md")
	if err != nil {
		t.Fatal(err)
	}
	have := map[string]bool{}
	var files []string
	declared := regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)\w+)\(`)
	err = filepath.WalkDir(".", func(path string, _ fs.DirEntry, err error) error {
		files = append(files, "/"+filepath.ToSlash(path))
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		for _, match := range declared.FindAllSubmatch(text, -1) {
			have[string(match[1])] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	named := regexp.MustCompile("`((?:Test|Fuzz)\\w+)`").FindAllSubmatch(page, -1)
	if len(named) < 50 {
		t.Errorf("the page names %d tests", len(named))
	}
	for _, match := range named {
		if !have[string(match[1])] {
			t.Errorf("docs/cases.md names %s, which does not exist", match[1])
		}
	}
	for _, number := range strings.Fields("1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25") {
		if !strings.Contains(string(page), "\n| "+number+" |") {
			t.Errorf("case %s is not on the page", number)
		}
	}
	for _, match := range regexp.MustCompile("`([\\w/.-]+\\.(?:go|sql|yaml|md))`").FindAllSubmatch(page, -1) {
		if !slices.ContainsFunc(files, func(file string) bool { return strings.HasSuffix(file, "/"+string(match[1])) }) {
			t.Errorf("docs/cases.md names the file %s, which does not exist", match[1])
		}
	}
	rows := map[string]bool{}
	for line := range strings.Lines(string(page)) {
		cells := strings.Split(line, " | ")
		if len(cells) < 4 || cells[1] == "---" || cells[1] == "what happened" {
			continue
		}
		if row := cells[0] + cells[1]; rows[row] {
			t.Errorf("docs/cases.md has this row twice: %s | %s", cells[0], cells[1])
		} else {
			rows[row] = true
		}
	}
}
