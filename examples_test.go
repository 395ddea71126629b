package samekey_test

import (
	"go/doc"
	"go/parser"
	"go/token"
	"strings"
	"testing"
)

// An example without an output comment is compiled and never run, so it can stop working unnoticed.
func TestEveryExampleRuns(t *testing.T) {
	examples := 0
	for _, path := range texts(t) {
		if !strings.HasSuffix(path, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		for _, example := range doc.Examples(file) {
			if examples++; example.Output == "" && !example.EmptyOutput {
				t.Errorf("%s: Example%s has no output comment", path, example.Name)
			}
		}
	}
	if examples < 30 {
		t.Errorf("found %d examples", examples)
	}
}
