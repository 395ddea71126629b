// Package exampletb gives runnable examples what only tests get: a testing.TB, for samekeytest.NewDB.
package exampletb

import (
	"fmt"
	"slices"
	"testing"
)

// New returns one, and what to defer. A failure ends the example by a panic.
func New() (tb testing.TB, done func()) {
	t := &exampleTB{}
	return t, t.cleanUp
}

type exampleTB struct {
	testing.TB
	cleanups []func()
}

func (*exampleTB) Helper()                           {}
func (*exampleTB) Name() string                      { return "Example" }
func (t *exampleTB) Cleanup(f func())                { t.cleanups = append(t.cleanups, f) }
func (*exampleTB) Fatal(args ...any)                 { panic(fmt.Sprint(args...)) }
func (*exampleTB) Fatalf(format string, args ...any) { panic(fmt.Sprintf(format, args...)) }
func (*exampleTB) Errorf(format string, args ...any) { panic(fmt.Sprintf(format, args...)) }

func (t *exampleTB) cleanUp() {
	for _, f := range slices.Backward(t.cleanups) {
		f()
	}
}
