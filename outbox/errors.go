package outbox

import (
	"errors"
	"fmt"

	"github.com/google/uuid"
)

// IntentError is the error for an Intent that breaks the rules. Nothing was sent to the database, and the transaction
// is still usable. The error quotes no value. If the key itself is invalid, it also wraps a *samekey.KeyError. One
// error may join several.
type IntentError struct {
	Field string // of Intent
	Err   error  // what is wrong and what to do
}

func (e *IntentError) Error() string { return e.Err.Error() }

// Unwrap returns Err.
func (e *IntentError) Unwrap() error { return e.Err }

// invalid returns nil for a nil err.
func invalid(field string, err error) error {
	if err == nil {
		return nil
	}
	return &IntentError{field, err}
}

// ErrNotFound means that no intent has this id: its transaction did not commit, or it was pruned after its retention.
var ErrNotFound = errors.New("outbox: no such intent")

// ConflictError means that an intent with the same key, action and part but another payload exists. The transaction is
// aborted: roll it back. The existing intent is unchanged. If you need two effects of one action, give each its own
// Part. If the payload changed between two attempts of one request, the later payload is the mistake.
//
// Its text leaves out Part, which may contain more than belongs in a log.
type ConflictError struct {
	Action, Part string
	KeyHash      string // samekey.Key.Hash
	Err          error  // of the database, SQLSTATE SK001; nil if one processed.Run inserted both
}

func (e *ConflictError) Error() string {
	return fmt.Sprintf("outbox: insert %q intent: key:%s already has an intent with the same Part and another payload: "+
		"roll this transaction back; a second effect of one action under one key needs another Part",
		e.Action, e.KeyHash)
}

// Unwrap returns Err.
func (e *ConflictError) Unwrap() error { return e.Err }

// StateError means that the present state of an intent does not allow this decision. Nothing was changed.
type StateError struct {
	ID     uuid.UUID
	Verb   string // "redrive"
	Status Status // the present state; empty if the intent lost its row in the queue, which reconcile restores
	Do     string // what is possible
}

func (e *StateError) Error() string {
	return fmt.Sprintf("outbox: %s intent %s: not possible while it is %s: %s", e.Verb, e.ID, e.Status, e.Do)
}
