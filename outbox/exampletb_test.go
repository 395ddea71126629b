package outbox_test

import (
	"log"
	"slices"
	"testing"
)

// exampleTB lets an example have a database of its own, which NewDB gives to
// tests: a failure ends the program, and clean-ups run when the example is done.
type exampleTB struct {
	testing.TB
	cleanups []func()
}

func (*exampleTB) Helper()                           {}
func (*exampleTB) Name() string                      { return "Example" }
func (t *exampleTB) Cleanup(f func())                { t.cleanups = append(t.cleanups, f) }
func (*exampleTB) Fatal(args ...any)                 { log.Fatal(args...) }
func (*exampleTB) Fatalf(format string, args ...any) { log.Fatalf(format, args...) }
func (*exampleTB) Errorf(format string, args ...any) { log.Fatalf(format, args...) }

func (t *exampleTB) cleanUp() {
	for _, f := range slices.Backward(t.cleanups) {
		f()
	}
}
