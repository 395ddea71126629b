package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// The rules and lookups that the vendors' pages show are valid beside the page's preset.
func TestRulesOnPagesAreValid(t *testing.T) {
	pages, err := filepath.Glob("../../docs/vendors/*.md")
	if err != nil {
		t.Fatal(err)
	}
	shown := regexp.MustCompile("`(\\{(?:status|request): .*\\})`")
	preset := regexp.MustCompile("`preset: ([a-z]+)`")
	found := 0
	for _, path := range pages {
		page, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(page)) {
			for _, match := range shown.FindAllStringSubmatch(line, -1) {
				found++
				name := preset.FindSubmatch(page)
				if name == nil {
					t.Fatalf("%s names no preset", path)
				}
				value := "rules: [" + match[1] + "]"
				if strings.HasPrefix(match[1], "{request") {
					value = "lookup: " + match[1]
				}
				text := fmt.Sprintf(`
destinations:
  a: {preset: %s, url: "https://a.example"}
actions:
  one:
    destination: a
    request: POST /
    class: idempotent_write
    key_window: 1h
    %s
`, name[1], value)
				if _, err := loadText(t, text, nil); err != nil {
					t.Errorf("%s: %s: %v", path, match[1], err)
				}
			}
		}
	}
	if found < 5 {
		t.Errorf("the pages show %d rules and lookups", found)
	}
}
