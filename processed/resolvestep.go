package processed

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/samekey/samekey"
	"github.com/samekey/samekey/internal/db"
)

// By names who decided, and why. Both are required and stay with the operation: a name in at most 255 bytes, and a
// sentence in at most 4096. The database adds the login of the session (session_user).
type By struct {
	Actor  string
	Reason string
}

// StepResolution is what really happened to a step's call. Set exactly one field.
type StepResolution struct {
	// Result is the vendor's answer as JSON: what Send would have returned. The vendor acted.
	Result json.RawMessage

	// Failure means that the vendor refused: what Send would have returned with [Fail].
	Failure *Failure

	// NotSent means that no send reached the vendor, and that none will. The next call with the operation's key sends it
	// again, and a vendor that does not honor keys acts again.
	NotSent bool
}

// ResolveStep records what really happened to a step's call whose outcome is unknown ([ErrInDoubt], [ErrParked]). The
// next call with the operation's key continues with it. In SQL it is samekey.resolve_step. It needs the role of an
// operator: see schema.Roles.
//
// on is a pool, a connection or a transaction. The error has SQLSTATE SK010 if no operation with this key is in progress
// or it has no such step, SK011 if a call is working on the operation or the step's outcome is known (the error's
// ConstraintName is the state), and 22023 for an invalid argument (ColumnName). Find it with errors.As and
// *pgconn.PgError.
func ResolveStep(ctx context.Context, on samekey.Tx, key samekey.Key, step string, what StepResolution, by By) error {
	outcome, code, result, err := what.check()
	if err != nil {
		return fmt.Errorf("processed: resolve step %q: StepResolution: %w", step, err)
	}
	err = db.New(on).ActResolveStep(ctx, db.ActResolveStepParams{
		Scope: key.Scope, IdemKey: key.Value, Step: step, Outcome: outcome, Actor: by.Actor, Reason: by.Reason, Code: code, Result: result,
	})
	if err != nil {
		return fmt.Errorf("processed: resolve step %q of key:%s: %w", step, key.Hash(), err)
	}
	return nil
}

func (r StepResolution) check() (outcome string, code *int32, result []byte, err error) {
	switch {
	case r.Result != nil && r.Failure == nil && !r.NotSent:
		return "delivered", nil, r.Result, nil
	case r.Failure != nil && r.Result == nil && !r.NotSent:
		code := int32(r.Failure.Code)
		return "refused", &code, r.Failure.Body, nil
	case r.NotSent && r.Result == nil && r.Failure == nil:
		return "not_sent", nil, nil, nil
	}
	return "", nil, nil, errors.New("set exactly one of Result, Failure and NotSent")
}

// AbandonOperation ends an operation in progress that no caller will resume. Its answer is the failure: later calls with
// the key get it, and the record can be pruned. What its steps did stays. No step may be in doubt: call [ResolveStep]
// first. In SQL it is samekey.abandon_operation. Arguments, rights and errors are those of ResolveStep.
func AbandonOperation(ctx context.Context, on samekey.Tx, key samekey.Key, answer *Failure, by By) error {
	if answer == nil {
		return errors.New("processed: abandon operation: answer is nil: give the failure that callers get")
	}
	err := db.New(on).ActAbandonOperation(ctx, db.ActAbandonOperationParams{
		Scope: key.Scope, IdemKey: key.Value, Actor: by.Actor, Reason: by.Reason, Code: int32(answer.Code), Body: answer.Body,
	})
	if err != nil {
		return fmt.Errorf("processed: abandon operation of key:%s: %w", key.Hash(), err)
	}
	return nil
}
