package processed

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"

	"github.com/samekey/samekey/internal/db"
	"github.com/samekey/samekey/internal/jsonvalue"
	"github.com/samekey/samekey/internal/reply"
)

// Failure is a business error that is stored under the key and replayed like any answer, such as "the card was
// declined" or "the seat is taken". Make one with [Fail]. [Run] and [Do] return it as their error, the first time and
// at each replay. Find it with errors.As.
//
// After [Do], commit nevertheless: the caller's commit stores the failure, and everything else that the function wrote
// is already undone. If the caller rolls back, nothing is stored and the next attempt does the request again.
//
// A function that returns the Failure of a nested request (Do inside it) fails with that Failure itself: everything it
// wrote is rolled back, including the nested request, and the failure is stored under its own key.
type Failure struct {
	Code int             // as passed to Fail
	Body json.RawMessage // as passed to Fail, as JSON
}

// Error names the code, but not the body.
func (f *Failure) Error() string {
	return fmt.Sprintf("processed: the answer is failure %d", f.Code)
}

// Decode decodes the body into v with json.Unmarshal.
func (f *Failure) Decode(v any) error { return json.Unmarshal(f.Body, v) }

// Fail returns the error with which a function says "the answer is no". Everything that the function wrote is rolled
// back, queued intents included, and the failure is stored under the key. [Run] and [Do] return it as a [*Failure], the
// first time and at each replay, so a caller that ignores it sees an error and never a success.
//
// code is yours, such as an HTTP status. body is encoded as JSON and takes at most 1 MiB; a []byte or json.RawMessage
// is JSON text, stored unchanged. Use Fail for what would be the same if the request were made again. A failed
// validation or authentication, a timeout, a rate limit or a bug is an ordinary error: it stores nothing, and the key
// can be used again.
//
// The error may be wrapped. If code does not fit 32 bits or body cannot be encoded, Fail returns an ordinary error.
func Fail(code int, body any) error {
	if code < math.MinInt32 || code > math.MaxInt32 {
		return fmt.Errorf("processed: Fail: code %d does not fit 32 bits", code)
	}
	text, err := failureBody(body)
	if err != nil {
		return fmt.Errorf("processed: Fail: %w", err)
	}
	return &Failure{Code: code, Body: text}
}

func failureBody(body any) (text []byte, err error) {
	text, ok := jsonvalue.Bytes(body)
	if !ok {
		if text, err = json.Marshal(body); err != nil {
			return nil, unencodable("body", body, err)
		}
		if jsonvalue.Replaced(body, text) != nil {
			return nil, fmt.Errorf("the body, a %T, has a string that is not valid UTF-8", body)
		}
		return text, nil
	}
	if !utf8.Valid(text) || !json.Valid(text) {
		return nil, fmt.Errorf("the body is a %T that is not JSON in valid UTF-8: give a value to be encoded, or JSON text", body)
	}
	return text, nil
}

// failureOf returns the answer in err if it is a failure and this call stores failures, else nil.
func (m *memory) failureOf(err error) *answer {
	failure, rolledBack := (*Failure)(nil), (*reply.Reply)(nil)
	switch {
	case !m.answers:
		return nil
	case errors.As(err, &failure):
		code := int32(failure.Code)
		return &answer{code: &code, body: failure.Body, failed: true}
	case errors.As(err, &rolledBack):
		ans := replied(rolledBack)
		ans.failed = true
		return &ans
	}
	return nil
}

// storeFailure rolls back what the function did and stores the failure, in one round trip. Between the rollback and the
// insert another first attempt may begin and even commit: then its answer counts.
func (m *memory) storeFailure(ctx context.Context, conn *pgx.Conn, began time.Time, failure answer) (answer, error) {
	if err := failure.checkSize(); err != nil {
		return answer{}, err
	}
	batch := &pgx.Batch{}
	if conn.PgConn().TxStatus() == 'E' {
		// A round trip of its own: pgx prepares new statements before the batch runs, and a failed transaction refuses
		// that (25P02).
		rollback(ctx, conn)
	} else {
		queueChecked(batch, db.ProcessedEventsCheckTransaction, began)
		batch.Queue("rollback")
	}
	batch.Queue("begin isolation level read committed")
	inserted := int64(0)
	sql, args := m.insertFailure(failure)
	batch.Queue(sql, args...).Fn = func(results pgx.BatchResults) error {
		tag, err := results.Exec()
		inserted = tag.RowsAffected()
		return err
	}
	var found *db.ProcessedEventsFindRow
	m.queueFind(batch, &found)
	batch.Queue("commit")
	within, cancel := grace(ctx)
	defer cancel()
	err := conn.SendBatch(within, batch).Close()
	switch {
	case err != nil && conn.IsClosed():
		// Safe in both cases: a stored failure replays, and otherwise the function runs again. Nothing else was
		// written.
		return answer{}, unstored("processed: the connection was lost while failure %d was stored, and nothing else was stored: call again with the same key: %w", failure.statusCode(), err)
	case replaced(err):
		return answer{}, m.replacedError()
	case err != nil:
		dropStatements(ctx, conn, err)
		return answer{}, retryable(conn, fmt.Errorf("processed: store failure %d of key:%s: %w", failure.statusCode(), m.key.Hash(), err))
	case inserted == 1:
		return failure, nil
	case found == nil: // pruned at the same moment
		return answer{}, &againError{cause: fmt.Errorf("processed: the record of key:%s was pruned meanwhile", m.key.Hash())}
	}
	return m.replay(found)
}
