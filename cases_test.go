package samekey_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// docs/cases.md maps failures to tests: each test that it names is there, and no case is missing.
func TestTheCasesPageNamesTestsThatExist(t *testing.T) {
	page, err := os.ReadFile("docs/cases.md")
	if err != nil {
		t.Fatal(err)
	}
	have := map[string]bool{}
	declared := regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)\w+)\(`)
	err = filepath.WalkDir(".", func(path string, _ fs.DirEntry, err error) error {
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
}
