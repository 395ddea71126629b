package processed

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/samekey/samekey/internal/sqlstate"
)

// Find these errors with errors.Is.
var (
	// ErrConflict means that the key was used with another request. Nothing was done, and the same call fails again.
	// The caller has to use a new key for a new operation. An HTTP edge answers 422.
	ErrConflict = errors.New("processed: the key was used with another request: use a new key for a new operation")

	// ErrInFlight means that another first attempt with this key is running. Nothing was done. Call again in a moment,
	// with the same key, to get its answer. An HTTP edge answers 409 with Retry-After.
	ErrInFlight = errors.New("processed: a request with the same key is still running: try again in a moment")

	// ErrErased means that the request was done before, and that its answer was erased since (outbox.Erase). Nothing was
	// done again, and the same call fails again. Treat an event as handled. An HTTP edge answers 410.
	ErrErased = errors.New("processed: the request was done before, and its answer was erased: it is not done again")

	// ErrAmbiguous means that the connection was lost while Run committed, and that it was not possible within five
	// seconds to find out whether the commit happened. Call again with the same key and request until there is an
	// answer: that is safe, and the only way to know. Do not use another key for the operation meanwhile.
	ErrAmbiguous = errors.New("processed: the connection was lost during COMMIT, and the outcome is unknown: call again with the same key")

	// ErrInDoubt means that a step of an operation called a vendor, and the outcome is unknown: the vendor may have
	// acted. The operation stays in progress. Call again with the same key after [RetryAfter]: what happens then depends
	// on the call, see [VendorCall]. An HTTP edge answers 503 with Retry-After.
	ErrInDoubt = errors.New("processed: the outcome of a step's call is unknown: call again with the same key")

	// ErrParked means that the outcome of a step's call is unknown, and nothing can find it out: a person has to, and
	// records it with [ResolveStep]. Until then each call with the key gets this error.
	ErrParked = errors.New("processed: the outcome of a step's call is unknown, and a person has to find it out: see ResolveStep")

	// ErrAborted means that the function's transaction cannot be committed, although the function returned nil (or an
	// error after which Run would call it again): a statement failed, the function ended the transaction (and may have
	// begun another one), or a goroutine is still using it. No record was stored. What a statement of the function
	// committed by itself stays, with the intents inserted before it. Return the errors of statements. If a statement
	// is expected to fail, run it in a nested transaction (tx.Begin) and roll that back.
	ErrAborted = errors.New("processed: the function's transaction cannot be committed")

	// ErrNested means that the call was made inside the function of another call, where it could never succeed: Run or
	// Once on the same pool, or any call with the outer call's key. Run needs a second connection, which a busy pool
	// does not have, and its work would stay committed if the outer call is rolled back. Nothing was done, and the same
	// call fails again. Call [Do] with the outer transaction and another key, or make the call after the outer one has
	// returned. The outer call is found through the context passed to its function, so pass that context on.
	ErrNested = errors.New("processed: the call is nested in another one")

	// ErrAnswerUnstorable means that the answer cannot be stored so that a replay returns the same. Nothing was stored.
	// Either it takes more than 1 MiB as JSON: answer with a reference to the large part. Or it does not survive JSON:
	// a string that is not UTF-8, a type that cannot be decoded (an interface with methods), or a type that decodes to
	// another value than it encodes. Answer with a type that JSON preserves, or with json.RawMessage.
	ErrAnswerUnstorable = errors.New("processed: the answer cannot be stored")

	// ErrAnswerUnreadable means that the request was done before, and that its stored answer is not JSON of the type
	// asked for, such as after a deploy that changed the type. Nothing was done again. Read it with a type that accepts
	// both forms, or with json.RawMessage.
	ErrAnswerUnreadable = errors.New("processed: the stored answer does not fit the type asked for")
)

// SafeToRetry reports whether nothing was stored and the same call may succeed when it is made again:
//
//   - another attempt is in flight ([ErrInFlight]);
//   - the connection was lost, or the server ended the session, before the commit;
//   - the database rolled back for a reason that may go away: SQLSTATE 40001 and 40P01 (after Run's own attempts),
//     55P03, 57014, 26000, 42P05, 25006, 25P03, 25P04, 57P01 to 57P05, and the classes 08 and 53.
//
// This also holds if the function returned the database's error. Pause between attempts. For [Do], roll back and run
// the whole transaction again.
//
// For [Steps], what finished steps stored stays, and the same call resumes behind them.
//
// It is false for the function's own errors (nothing was stored, but nothing is known about the cause), for
// [ErrAmbiguous], [ErrAborted] and [ErrNested], and after the caller's context has ended, because the same call under
// that context would fail again. It does not cover what the function committed by itself, past the transaction it was
// given (through tx.Conn() or its own connection).
func SafeToRetry(err error) bool {
	unstored := (*unstoredError)(nil)
	if errors.Is(err, ErrAmbiguous) || errors.Is(err, ErrNested) || errors.Is(err, ErrAborted) {
		return false
	}
	return errors.Is(err, ErrInFlight) || errors.As(err, &unstored)
}

// RequestError says which field of a Request is invalid. Nothing was sent to the database, and the same call fails
// again. Err is a *samekey.KeyError for an invalid key and a *samekey.FingerprintError for a payload without a single
// meaning: these are usually the client's mistake (400). Any other Err is a mistake in the program. The error holds
// nothing of the field's content.
type RequestError struct {
	Field string // "Key", "Payload", "Retain" or "Isolation"
	Err   error  // what is wrong and what to do
}

func (e *RequestError) Error() string { return "processed: Request." + e.Field + ": " + e.Err.Error() }

// Unwrap returns Err.
func (e *RequestError) Unwrap() error { return e.Err }

// unstoredError is an error after which nothing is stored and another attempt makes sense.
type unstoredError struct{ err error }

func (e *unstoredError) Error() string { return e.err.Error() }
func (e *unstoredError) Unwrap() error { return e.err }

func unstored(format string, args ...any) error {
	return &unstoredError{fmt.Errorf(format, args...)}
}

// againError makes run try again.
type againError struct {
	cause     error
	immediate bool // write intents at once: one of them already exists
	wait      bool // pause first: another transaction is in the way
}

func (e *againError) Error() string { return e.cause.Error() }
func (e *againError) Unwrap() error { return e.cause }

// lostError means that the connection was lost during COMMIT.
type lostError struct {
	cause   error
	actions []string // to wake if the commit happened
}

func (e *lostError) Error() string { return e.cause.Error() }
func (e *lostError) Unwrap() error { return e.cause }

// again returns an againError for an error after which the transaction is run again, else nil.
func again(err error) error {
	switch state := sqlstate.Of(err); {
	case err == nil:
		return nil
	case lostRace(err):
		return &againError{cause: err}
	case state == sqlstate.IntentExists:
		return &againError{cause: err, immediate: true}
	case state == sqlstate.Serialization, state == sqlstate.Deadlock:
		return &againError{cause: err, wait: true}
	}
	return nil
}

// retryable marks err as safe to retry if it is the connection's or a transient error of the database.
func retryable(conn *pgx.Conn, err error) error {
	if err != nil && (conn != nil && conn.IsClosed() || sqlstate.Transient(sqlstate.Of(err))) {
		return &unstoredError{err}
	}
	return err
}

// advice says what to do about a database without samekey's schema.
func advice(err error) string {
	if sqlstate.MissingSchema(sqlstate.Of(err)) {
		return " (this database lacks samekey's schema: run schema.Migrate)"
	}
	return ""
}

// ended returns an error if the caller's context has ended.
func ended(ctx context.Context) error {
	if ctx.Err() == nil {
		return nil
	}
	return fmt.Errorf("processed: nothing was stored: %w", ctx.Err())
}

func (m *memory) endedError() error {
	return fmt.Errorf("%w: a statement of the function ended it (key:%s)", ErrAborted, m.key.Hash())
}

func (m *memory) replacedError() error {
	return fmt.Errorf("%w: a statement of the function ended it and began another, such as \"..; rollback; begin\" or \"commit and chain\" (key:%s)", ErrAborted, m.key.Hash())
}

func (m *memory) leftBehindError() error {
	return fmt.Errorf("%w: a goroutine is still in a statement of its transaction: wait for it before you return (key:%s)", ErrAborted, m.key.Hash())
}

// named adds the key, in the form that may be printed.
func (m *memory) named(err error) error { return fmt.Errorf("%w (key:%s)", err, m.key.Hash()) }
