package processed

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/samekey/samekey/internal/sqlstate"
)

// The errors here are found with errors.Is.
var (
	// ErrInvalidRequest: the Request breaks the rules. Nothing was sent to the
	// database; the same call will fail again. [*RequestError] names the field. An
	// invalid key also matches samekey.ErrInvalidKey, a payload without one meaning
	// samekey.ErrInvalidPayload: those two are usually the client's mistake (400),
	// the rest is the program's.
	ErrInvalidRequest = errors.New("processed: invalid request")

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

	// ErrAborted: the function returned nil, or an error after which it would be
	// called again, and its transaction is in no state for that: a statement in it
	// failed, the function ended it (and may have begun another), or a goroutine is
	// still in it. No record was stored; what a
	// statement of the function committed by itself stays, with the intents
	// inserted before it. Return the errors of statements; where one is expected,
	// run it in a nested transaction (tx.Begin), which can be rolled back by itself.
	ErrAborted = errors.New("processed: the function's transaction cannot be committed")

	// ErrNested: the call was made inside the function of another that is still
	// running, and could never succeed there: Run or Once on the same pool, whose
	// second connection a busy pool does not have, and which would stay committed
	// where the outer one is rolled back; or the key of the outer one. Nothing was
	// done, and the same call will fail again. Call [Do] with the outer transaction
	// and a key of its own, or make the call after the outer one has returned. The
	// outer call is found through the context that it gives to its function, so
	// pass that one on.
	ErrNested = errors.New("processed: the call is nested in another one")

	// ErrAnswerInexact: the answer does not survive JSON, so a replay would give
	// another one: a string that is not UTF-8, a type that cannot be decoded (an
	// interface with methods) or that decodes to something else than it encodes.
	// Nothing was stored. Answer with a type that JSON keeps, or with
	// json.RawMessage.
	ErrAnswerInexact = errors.New("processed: the answer would not be the same when it is replayed")

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
// same call may succeed when it is made again:
//
//   - another attempt is in flight ([ErrInFlight]);
//   - the connection was lost, or the server ended the session, before the commit,
//     also where the function returned that error;
//   - the database said that the transaction was in the way of others, waited for
//     too long, or was not to blame: SQLSTATE 40001 and 40P01 (more often than Run
//     was willing to try), 55P03, 57014, 26000, 42P05, 25006, 25P03, 25P04, 57P01
//     to 57P05, and the classes 08 and 53, also where the function returned it.
//
// Pause between the attempts. For [Do] it is the whole transaction that has to be
// rolled back and run again.
//
// It is false for an error of the function's own, about which nothing is known
// here (nothing was stored then either), for [ErrAmbiguous], [ErrAborted] and
// [ErrNested], and where the caller's context has ended: nothing was stored, and the same call
// under that context would fail again. Of what the function committed by itself, past
// the transaction that it was given (tx.Conn(), or a connection of its own), it knows
// nothing once the connection is lost.
func SafeToRetry(err error) bool {
	unstored := (*unstoredError)(nil)
	if errors.Is(err, ErrAmbiguous) || errors.Is(err, ErrNested) || errors.Is(err, ErrAborted) {
		return false
	}
	return errors.Is(err, ErrInFlight) || errors.As(err, &unstored)
}

// RequestError says which field of a Request breaks the rules, and holds nothing
// of what was in it. It matches [ErrInvalidRequest].
type RequestError struct {
	Field string // "Key", "Payload", "Retain" or "Isolation"
	Err   error  // what is wrong and what to do
}

func (e *RequestError) Error() string { return "processed: Request." + e.Field + ": " + e.Err.Error() }

// Is makes every RequestError match ErrInvalidRequest.
func (e *RequestError) Is(target error) bool { return target == ErrInvalidRequest }

// Unwrap returns Err.
func (e *RequestError) Unwrap() error { return e.Err }

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

// The record's primary key is the only constraint that its INSERT can violate:
// any 23505 of that statement means that another attempt won. By the constraint's
// name it could not be told, since not every driver has it.
type recordError struct{ err error }

func (e *recordError) Error() string { return e.err.Error() }
func (e *recordError) Unwrap() error { return e.err }

func ofRecord(err error) error {
	if err == nil {
		return nil
	}
	return &recordError{err}
}

// insertRecord adds the record to a batch.
func (m *memory) insertRecord(batch *pgx.Batch, sql string, args []any) {
	batch.Queue(sql, args...).Fn = func(results pgx.BatchResults) error {
		_, err := results.Exec()
		return ofRecord(err)
	}
}

// lostRace reports whether err says that another attempt's record is there.
func lostRace(err error) bool {
	record := (*recordError)(nil)
	return errors.As(err, &record) && sqlstate.Of(err) == sqlstate.UniqueViolation
}

// replaced reports whether err says that the transaction is not the one in which
// the request began.
func replaced(err error) bool {
	record := (*recordError)(nil)
	return errors.As(err, &record) && sqlstate.Of(err) == sqlstate.NoSuchTime
}

// again classifies what makes a transaction worth another try; nil for the rest.
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

// retryable marks an error after which nothing was stored as one that may not
// come again, where it is.
func retryable(conn *pgx.Conn, err error) error {
	if err != nil && (conn != nil && conn.IsClosed() || sqlstate.Transient(sqlstate.Of(err))) {
		return &unstoredError{err}
	}
	return err
}

// advice says what to do about a database that was not prepared.
func advice(err error) string {
	if sqlstate.MissingSchema(sqlstate.Of(err)) {
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

func (m *memory) endedError() error {
	return fmt.Errorf("%w: a statement of the function ended it (key:%s)", ErrAborted, m.key.Hash())
}

func (m *memory) replacedError() error {
	return fmt.Errorf("%w: a statement of the function ended it and began another, such as \"..; rollback; begin\" or \"commit and chain\" (key:%s)", ErrAborted, m.key.Hash())
}

func (m *memory) leftBehindError() error {
	return fmt.Errorf("%w: a goroutine is still in a statement of its transaction: wait for it before you return (key:%s)", ErrAborted, m.key.Hash())
}
