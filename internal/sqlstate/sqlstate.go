// Package sqlstate classifies what Postgres says went wrong, whichever driver hands on the error.
package sqlstate

import (
	"errors"
	"slices"
	"strings"
)

// The states that samekey tells apart. Those that begin with SK are its own.
const (
	UniqueViolation = "23505"
	NoSuchTime      = "22007" // the record was to be written in another transaction
	Aborted         = "25P02"
	NoTransaction   = "25P01"
	NoSavepoint     = "3B001"
	Serialization   = "40001"
	Deadlock        = "40P01"
	Denied          = "42501" // the role lacks a privilege
	LockTimeout     = "55P03"
	Cancelled       = "57014" // by a statement timeout, or by an administrator
	ReadOnly        = "25006" // a standby, or a server that was demoted under the connection
	NoStatement     = "26000" // a prepared statement that the connection does not have (any more)
	IntentConflict  = "SK001"
	IntentExists    = "SK002"
	OtherService    = "SK003" // the scope is of another service
	NotFound        = "SK010" // an act: there is no such intent
	StateRefuses    = "SK011" // an act: the present state does not allow it
	SecondPerson    = "SK012" // an act: another login has to approve
	OperationLost   = "SK020" // another call has taken the operation over
)

// Of returns the SQLSTATE of err, or "" where the error is not the database's. pgx and lib/pq both have the method.
func Of(err error) string {
	var said interface{ SQLState() string }
	if errors.As(err, &said) {
		return said.SQLState()
	}
	return ""
}

// MissingSchema reports whether a statement of samekey's met a database without its tables and functions.
func MissingSchema(code string) bool {
	return code == "42883" || code == "42P01" || code == "3F000"
}

// Transient reports whether the same transaction may succeed when it is run again: nothing is wrong with what it asked
// for. It does not say whether the failed transaction was committed.
func Transient(code string) bool {
	switch code {
	case Serialization, Deadlock, LockTimeout, Cancelled, NoStatement,
		"42P05", // a prepared statement of that name exists: another client's, behind a pooler
		ReadOnly,
		"25P03", "25P04", "57P05", // the server ended a session or transaction that was idle or took long
		"57P01", "57P02", "57P03": // the server stops, crashed or starts
		return true
	}
	return strings.HasPrefix(code, "08") || // the connection
		strings.HasPrefix(code, "53") // connections, memory or disk ran out
}

// Lost reports whether the session that executed the statement may have ended, so that nothing is known of it: the
// connection broke, the server ended it, or a pooler's own error (class 58).
func Lost(code string) bool {
	return strings.HasPrefix(code, "08") || strings.HasPrefix(code, "57P") || strings.HasPrefix(code, "58")
}

// BadValue reports whether the server refused the values of a statement (classes 22 and 23): another try does not help.
func BadValue(err error) bool {
	code := Of(err)
	return strings.HasPrefix(code, "22") || strings.HasPrefix(code, "23")
}

// Refuses reports whether the server is there and takes writes from nobody: it shuts down (57P), is short of space,
// memory or connections (53), is read-only (25006), or cannot read its files (58, XX).
func Refuses(err error) bool {
	code := Of(err)
	return code == ReadOnly || slices.ContainsFunc([]string{"57P", "53", "58", "XX"}, func(class string) bool { return strings.HasPrefix(code, class) })
}
