package outbox

import (
	"errors"
	"fmt"

	"github.com/google/uuid"
)

// ErrInvalidIntent is matched (errors.Is) by every error about an Intent that
// breaks the rules. Nothing was sent to the database, and the transaction is still
// usable. [*IntentError] names the field.
var ErrInvalidIntent = errors.New("outbox: invalid intent")

// IntentError says which field of an Intent breaks the rules, and holds nothing of
// what was in it. It matches [ErrInvalidIntent]; one about Key is also a
// *samekey.KeyError where the key itself is invalid. An error may hold several.
type IntentError struct {
	Field string // as in Intent
	Err   error  // what is wrong and what to do
}

func (e *IntentError) Error() string { return e.Err.Error() }

// Is makes every IntentError match ErrInvalidIntent.
func (e *IntentError) Is(target error) bool { return target == ErrInvalidIntent }

// Unwrap returns Err.
func (e *IntentError) Unwrap() error { return e.Err }

// invalid is nil for nil.
func invalid(field string, err error) error {
	if err == nil {
		return nil
	}
	return &IntentError{field, err}
}

// ErrNotFound says that there is no intent with this id: it was never
// committed, or is past retention and pruned.
var ErrNotFound = errors.New("outbox: no such intent")

// ConflictError says that an intent with the same key, action and part and with
// another payload exists. The database's error (SQLSTATE SK001) aborted the
// transaction: roll it back. The intent that exists is untouched. Where two
// effects of one action are meant, give each its own Part; where the payload
// merely changed between two attempts, the later one is the mistake.
//
// Its text leaves out Part, which may say more than belongs in a log.
type ConflictError struct {
	Action, Part string
	KeyHash      string // samekey.Key.Hash
	Err          error  // the database's, SQLSTATE SK001; nil where both were inserted in one processed.Run
}

func (e *ConflictError) Error() string {
	return fmt.Sprintf("outbox: insert %q intent: key:%s has one of the same Part with another payload: "+
		"this transaction is aborted and must be rolled back; a second effect of one action under one key needs another Part",
		e.Action, e.KeyHash)
}

// Unwrap returns Err.
func (e *ConflictError) Unwrap() error { return e.Err }

// StateError says that an intent's present state does not allow what a person
// asked for, or not yet. Nothing was changed.
type StateError struct {
	ID     uuid.UUID
	Verb   string // "redrive"
	Status Status // the present state; empty where reconcile has to restore its queue row first
	Do     string // what is possible
}

func (e *StateError) Error() string {
	return fmt.Sprintf("outbox: %s intent %s: not while it is %s: %s", e.Verb, e.ID, e.Status, e.Do)
}

// advice says what a person can do about an intent in this state.
func advice(s Status) string {
	switch s {
	case StatusPending:
		return "it will be sent when it is due; Cancel takes it back if it was never sent"
	case StatusBlocked:
		return "it waits for those before it with the same ordering key; Cancel takes it out"
	case StatusLeased:
		return "a worker is sending it right now: look again after the attempt"
	case StatusUnknown:
		return "the vendor may or may not have acted: wait for the look-up, or find out and Resolve it"
	case StatusAnswered:
		return "the vendor has answered and a worker applies the answer: it will be finished"
	case StatusAwaitingApproval:
		return "Approve or Reject it"
	case StatusParked, StatusDead:
		return "Redrive or Resolve it; Cancel it if it was never sent, or was resolved as not sent"
	case StatusDelivered, StatusRefused, StatusCancelled:
		return "it is finished; insert a new intent under another key or part if another effect is meant"
	}
	return "it lost its row in the queue: reconcile, in a worker, gives it back"
}
