package dispatcher

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// ConfigError is one mistake in a configuration: what is configured, which of its fields is wrong, and why.
type ConfigError struct {
	// Item is what is configured, such as `action "charge_card"`, `destination "stripe"` or "dispatcher.Config".
	Item string

	// Field is the path of the Go field, such as "KeyWindow" or "Lookup.Rules[2].Status". Elements are counted from 1.
	// It is empty for a mistake in the item as a whole.
	Field string

	// Reason says what is wrong and how to correct it, in the names that Go uses.
	Reason string

	format string // makes Reason of args
	args   []any
}

// Error returns "samekey: item: field: reason".
func (e *ConfigError) Error() string {
	if e.Field == "" {
		return fmt.Sprintf("samekey: %s: %s", e.Item, e.Reason)
	}
	return fmt.Sprintf("samekey: %s: %s: %s", e.Item, e.Field, e.Reason)
}

// ReasonIn returns the reason with other names for fields and constants, such as those of a configuration file. It
// calls name for each Go name in the reason.
func (e *ConfigError) ReasonIn(name func(goName string) string) string {
	args := make([]any, len(e.args))
	for i, arg := range e.args {
		args[i] = inWords(arg, name)
	}
	return fmt.Sprintf(e.format, args...)
}

// inWords returns an argument of a reason as it is printed.
func inWords(arg any, name func(string) string) any {
	switch v := arg.(type) {
	case GoName:
		return name(string(v))
	case Class:
		return name(v.goName())
	case time.Duration:
		if v == Forever {
			return name("Forever")
		}
		return short(v)
	}
	return arg
}

// short is a duration without the parts that are zero: "2h" and not "2h0m0s".
func short(d time.Duration) string {
	text := d.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}

// GoName is the name of a field or of a constant within a reason. [ConfigError.ReasonIn] can replace it.
type GoName string

// ConfigErrors are all mistakes in a configuration, the first one to correct first. [Dispatcher.Check] and the packages
// of vendors return them: get them from an error with errors.As.
type ConfigErrors []*ConfigError

// Add adds a mistake, whose reason is made as by fmt.Sprintf. Arguments of type [GoName], [Class] and time.Duration are
// printed in the words of the place where the error is read.
//
// A mistake that only follows from an earlier one is left out: the item has a mistake already in the same field, or in
// a field that the reason names. So add the mistakes of the fields first that others depend on.
func (e *ConfigErrors) Add(item, field, format string, args ...any) {
	one := &ConfigError{Item: item, Field: field, format: format, args: args}
	follows := e.has(item, field)
	one.Reason = one.ReasonIn(func(goName string) string {
		follows = follows || e.has(item, goName)
		return goName
	})
	if !follows && !slices.ContainsFunc(*e, func(old *ConfigError) bool { return old.Error() == one.Error() }) {
		*e = append(*e, one)
	}
}

// Join adds the mistakes in an error that a Check or a constructor has returned.
func (e *ConfigErrors) Join(err error) {
	var more ConfigErrors
	if errors.As(err, &more) {
		e.joinFor("", more)
	}
}

// joinFor adds mistakes; those without an item get this one.
func (e *ConfigErrors) joinFor(item string, more ConfigErrors) {
	for _, one := range more {
		e.Add(or(one.Item, item), one.Field, one.format, one.args...)
	}
}

// has reports whether an item has a mistake in a field, in a part of it, or in what it is a part of.
func (e ConfigErrors) has(item, field string) bool {
	for _, one := range e {
		if one.Item == item && (within(one.Field, field) || within(field, one.Field)) {
			return true
		}
	}
	return false
}

// within reports whether a path names a field or a part of it.
func within(path, field string) bool {
	rest, ok := strings.CutPrefix(path, field)
	return ok && field != "" && (rest == "" || rest[0] == '.' || rest[0] == '[')
}

// Err returns the mistakes as an error, or nil where there is none.
func (e ConfigErrors) Err() error {
	if len(e) == 0 {
		return nil
	}
	return e
}

// Error has one mistake on each line.
func (e ConfigErrors) Error() string {
	lines := make([]string, len(e))
	for i, one := range e {
		lines[i] = one.Error()
	}
	return strings.Join(lines, "\n")
}

// Unwrap returns each mistake.
func (e ConfigErrors) Unwrap() []error {
	out := make([]error, len(e))
	for i, one := range e {
		out[i] = one
	}
	return out
}

func itemAction(name string) string { return fmt.Sprintf("action %q", name) }

func itemDestination(name string) string { return fmt.Sprintf("destination %q", name) }

const itemConfig = "dispatcher.Config"
