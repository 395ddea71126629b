// Package exampletb gives runnable examples a testing.TB, which samekeytest.NewDB needs.
package exampletb

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/samekey/samekey/samekeytest"
)

// DB creates a database with samekey's schema and runs the statements in it. Defer done.
func DB(statements ...string) (db *samekeytest.DB, done func()) {
	t, done := New()
	db = samekeytest.NewDB(t)
	for _, sql := range statements {
		if _, err := db.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	return db, done
}

// New returns a testing.TB, whose failures panic. Defer done.
func New() (tb testing.TB, done func()) {
	t := &exampleTB{}
	return t, t.cleanUp
}

type exampleTB struct {
	testing.TB
	cleanups []func()
}

func (*exampleTB) Helper()                           {}
func (*exampleTB) Context() context.Context          { return context.Background() }
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
