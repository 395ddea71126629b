package processed

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5/pgconn"
)

// Invalid keys and payloads match samekey.ErrInvalidKey and
// samekey.ErrInvalidPayload. The errors here are found with errors.Is.
var (
	// ErrConflict: the key was used before with another request. Nothing was
	// done; the same call will fail again. The caller has to use a new key for
	// what is a new operation. An HTTP edge answers 422.
	ErrConflict = errors.New("processed: the key was used with another request: use a new key for a new operation")

	// ErrInFlight: another first attempt with this key is running. Nothing was
	// done; call again in a moment, with the same key, for its answer. An HTTP
	// edge answers 409 with Retry-After.
	ErrInFlight = errors.New("processed: a request with the same key is still running: try again in a moment")

	// ErrAmbiguous: the connection was lost as Run committed, and within five
	// seconds it could not be found out whether the commit happened. Call again
	// with the same key and request, until it gives an answer: that is safe, and
	// the only way to know. Nothing may be done under another key meanwhile.
	ErrAmbiguous = errors.New("processed: the connection was lost during COMMIT and it is not known whether it happened: call again with the same key")

	// ErrAborted: the function returned nil, and the transaction cannot be
	// committed, since a statement in it failed or the function ended it. No
	// record and no queued intent was stored; what a statement of the function
	// committed by itself stays. Return the errors of statements; where one is
	// expected, run it in a nested transaction (tx.Begin), which can be rolled
	// back by itself.
	ErrAborted = errors.New("processed: the function returned nil, but its transaction cannot be committed")

	// ErrAnswerTooLarge: the answer takes more than 1 MiB as JSON. Nothing was
	// stored. Answer with a reference to what is large.
	ErrAnswerTooLarge = errors.New("processed: the answer is larger than 1 MiB: keep a reference in it instead")

	// ErrAnswerUnreadable: the request was done before, and its stored answer is
	// not JSON that fits the type asked for, as after a deploy that changed the
	// type. Nothing was done again. Read it with a type that takes both forms, or
	// with json.RawMessage.
	ErrAnswerUnreadable = errors.New("processed: the stored answer does not fit the type asked for")
)

// SafeToRetry reports whether err says that nothing was stored, and that the
// same call may succeed when it is made again: another attempt is in flight,
// the connection was lost before the commit, or transactions got into each
// other's way more often than Run was willing to try. For [Do] it is the whole
// transaction that has to be rolled back and run again.
//
// It is false for an error of the function's own, about which nothing is known
// here (nothing was stored then either), and for [ErrAmbiguous].
func SafeToRetry(err error) bool {
	unstored := (*unstoredError)(nil)
	return errors.Is(err, ErrInFlight) || errors.As(err, &unstored)
}

// unstoredError is an error after which nothing is stored and a repetition
// makes sense.
type unstoredError struct{ err error }

func (e *unstoredError) Error() string { return e.err.Error() }
func (e *unstoredError) Unwrap() error { return e.err }

func unstored(format string, args ...any) error {
	return &unstoredError{fmt.Errorf(format, args...)}
}

// againError makes run try once more.
type againError struct {
	cause     error
	immediate bool // write intents at once: one of them exists already
	wait      bool // give the other transaction a moment
}

func (e *againError) Error() string { return e.cause.Error() }
func (e *againError) Unwrap() error { return e.cause }

// lostError: the connection was lost during COMMIT.
type lostError struct {
	cause   error
	actions []string // to be woken if it did happen
}

func (e *lostError) Error() string { return e.cause.Error() }
func (e *lostError) Unwrap() error { return e.cause }

const (
	stateUniqueViolation = "23505"
	stateAborted         = "25P02"
	stateSerialization   = "40001"
	stateDeadlock        = "40P01"
	stateLockTimeout     = "55P03"
	stateCancelled       = "57014" // by a statement timeout, for example
	stateIntentExists    = "SK002"

	recordSchema = "samekey"
	primaryKey   = "processed_events_pkey"
)

func sqlState(err error) string {
	if refused := (*pgconn.PgError)(nil); errors.As(err, &refused) {
		return refused.Code
	}
	return ""
}

// lostRace reports whether err is that of the record's primary key: the
// application has unique violations of its own, and may have a table of the same
// name in another schema.
func lostRace(err error) bool {
	refused := (*pgconn.PgError)(nil)
	return errors.As(err, &refused) && refused.Code == stateUniqueViolation && refused.SchemaName == recordSchema && refused.ConstraintName == primaryKey
}

// again classifies what makes a transaction worth another try; nil for the rest.
func again(err error) error {
	switch state := sqlState(err); {
	case err == nil:
		return nil
	case lostRace(err):
		return &againError{cause: err}
	case state == stateIntentExists:
		return &againError{cause: err, immediate: true}
	case state == stateSerialization, state == stateDeadlock:
		return &againError{cause: err, wait: true}
	}
	return nil
}

// advice says what to do about a database that was not prepared.
func advice(err error) string {
	switch sqlState(err) {
	case "42883", "42P01", "3F000":
		return " (this database lacks samekey's schema: run schema.Migrate)"
	}
	return ""
}

// ended reports whether the caller's context is the reason to stop.
func ended(ctx context.Context) error {
	if ctx.Err() == nil {
		return nil
	}
	return fmt.Errorf("processed: nothing was stored: %w", ctx.Err())
}
