// Package exampletb gives runnable examples a testing.TB, which samekeytest.NewDB needs.
package exampletb

import (
	"fmt"
	"slices"
	"testing"
)

// New returns a testing.TB and a function to defer. A failure panics.
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
