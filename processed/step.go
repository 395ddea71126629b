package processed

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/samekey/samekey/internal/sqlstate"
)

// Step does one step of an operation in a transaction: the rows that fn writes, the intents that it inserts and the
// step's result are committed together. If the step is done already, fn is not called, and Step returns the stored
// result.
//
// The rules of [Run] apply to the transaction and to the result: fn may be called several times until it commits,
// outbox.Insert needs no key, and the result must survive JSON and take at most 1 MiB. Vendors are called with [Call],
// or later by the worker with an intent.
//
// name is the step's name in the operation, in the form ^[a-z][a-z0-9_.-]{0,62}$. Each step has another.
//
// Errors:
//
//   - If fn returns an error, nothing of the step is stored, and Step returns the error with the step's name. Return it
//     from the function of [Steps]; the next call does the step again. Until it is done, no other step begins.
//   - An error of [Fail] is stored as the step's result, and what fn wrote is rolled back. Step returns it as a
//     [*Failure], now and whenever the operation is resumed. The function of Steps may go on, such as with a step that
//     undoes an earlier one.
//   - An intent with an action and a part that another step of the operation has inserted is an error: the key is the
//     operation's. Give each its own Part.
//   - [*StepsChangedError], if the operation has another step at this place.
func Step[T any](ctx context.Context, op *Operation, name string, fn func(ctx context.Context, tx pgx.Tx) (T, error)) (T, error) {
	var value, none T
	this, done, err := op.enter(name, false)
	if err != nil {
		return none, err
	}
	stored := false
	defer func() { op.leave(this, stored) }()
	if done == nil {
		m := *op.m
		m.step = &this
		ans, err := m.run(ctx, op.pool, func(ctx context.Context, tx pgx.Tx) (ans answer, err error) {
			if value, err = fn(ctx, tx); err != nil {
				return answer{}, err
			}
			ans, value, err = keepable(value)
			return ans, err
		})
		if sqlstate.Of(err) == sqlstate.OperationLost {
			err = m.takenOver()
		}
		if err != nil {
			return none, fmt.Errorf("step %q: %w", name, err)
		}
		done = &ans
	}
	res, err := outcome(*done, value)
	stored = err == nil || errors.As(err, new(*Failure))
	return res.Value, err
}
