package processed

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/samekey/samekey/internal/db"
	"github.com/samekey/samekey/internal/guarded"
	"github.com/samekey/samekey/internal/keyed"
)

// Operation is a request that [Steps] does in several transactions. Pass it to [Step] and [Call], one at a time, until
// the function has returned.
type Operation struct {
	m     *memory
	pool  *pgxpool.Pool
	fence int64 // of this call: see queries/operations.sql
	gate  guarded.Gate

	mu     sync.Mutex
	stored []db.OperationStepsListRow // in order, those of earlier calls first
	passed int                        // how many of them this call has passed
	failed string                     // the name of a step that did not finish; it must come next
	inside string                     // the name of the running step
	sends  int32                      // how many sends of the step that comes next may have reached the vendor
}

// step is one step of an operation.
type step struct {
	fence    int64
	position int16 // 1 for the first
	name     string
}

// betweenSteps stands for a pool in the context of an operation's function, where no transaction is open.
var betweenSteps = new(pgxpool.Pool)

// queueStored loads the steps that are stored.
func (op *Operation) queueStored(batch *pgx.Batch) {
	batch.Queue(db.OperationStepsList, op.m.key.Value, op.m.key.Scope).Query(func(rows pgx.Rows) (err error) {
		op.stored, err = pgx.CollectRows(rows, pgx.RowToStructByPos[db.OperationStepsListRow])
		return err
	})
}

// stepName is the CHECK of the table.
var stepName = regexp.MustCompile(`^[a-z][a-z0-9_.-]{0,62}$`)

// maxSteps leaves one of the table's 1001 positions for samekey.abandon_operation.
const maxSteps = 1000

// enter begins a step. done is its stored result, nil if it is to be done. After a nil error the caller calls leave.
func (op *Operation) enter(name string, calls bool) (this step, done *answer, err error) {
	if err := op.gate.Enter(); err != nil {
		return step{}, nil, fmt.Errorf("processed: step %q: the operation has ended: use it in the function of Steps only", name)
	}
	op.mu.Lock()
	defer op.mu.Unlock()
	if done, err = op.next(name, calls); err != nil {
		op.gate.Exit()
		return step{}, nil, err
	}
	op.inside = name
	return step{fence: op.fence, position: int16(op.passed + 1), name: name}, done, nil
}

func (op *Operation) next(name string, calls bool) (done *answer, err error) {
	switch {
	case !stepName.MatchString(name) || strings.HasPrefix(name, "samekey."):
		return nil, fmt.Errorf("processed: step %q: a name must match %s and not begin with samekey.", name, stepName)
	case op.inside != "":
		return nil, fmt.Errorf("processed: step %q: step %q is still running: steps run one after another", name, op.inside)
	case op.failed != "" && op.failed != name:
		return nil, fmt.Errorf("processed: step %q: the step %q before it did not finish: return its error, or make it an answer with Fail", name, op.failed)
	case op.passed == maxSteps:
		return nil, fmt.Errorf("processed: step %q: an operation has at most %d steps", name, maxSteps)
	}
	for i := range op.passed {
		if op.stored[i].Name == name {
			return nil, fmt.Errorf("processed: step %q: the operation has a step with this name already: use another name", name)
		}
	}
	if op.passed == len(op.stored) {
		return nil, nil
	}
	stored := op.stored[op.passed]
	if stored.Name != name || stored.Calls != calls {
		return nil, &StepsChangedError{Position: op.passed + 1, Stored: stored.Name, Name: name}
	}
	if stored.Status != "done" {
		if op.failed == "" {
			op.sends = stored.Sends
		}
		return nil, nil
	}
	return &answer{code: stored.Code, body: stored.Result, failed: stored.Failed, replay: true}, nil
}

// leave ends a step. stored is true if its result is stored.
func (op *Operation) leave(this step, stored bool) {
	op.mu.Lock()
	defer op.mu.Unlock()
	defer op.gate.Exit()
	op.inside, op.failed = "", ""
	if !stored {
		op.failed = this.name
		return
	}
	op.sends = 0
	switch {
	case op.passed == len(op.stored):
		op.stored = append(op.stored, db.OperationStepsListRow{Name: this.name})
		fallthrough
	default:
		op.passed++
	}
}

// checkEnd refuses an answer while a step is unfinished.
func (op *Operation) checkEnd() error {
	op.mu.Lock()
	defer op.mu.Unlock()
	switch {
	case op.inside != "":
		return fmt.Errorf("processed: the function of Steps returned while the step %q was running: wait for it (key:%s)", op.inside, op.m.key.Hash())
	case op.failed != "":
		return fmt.Errorf("processed: the function of Steps returned an answer, and the step %q before it did not finish: return the step's error (key:%s)", op.failed, op.m.key.Hash())
	case op.passed < len(op.stored):
		return &StepsChangedError{Position: op.passed + 1, Stored: op.stored[op.passed].Name}
	}
	return nil
}

// StepsChangedError means that an operation in progress has other steps than the function of [Steps], usually because a
// release between its start and now has changed the function. Nothing was done, and the operation stays in progress:
// the release that started it can resume it. docs/steps.md tells how to change steps.
//
// It also means that the function's way depends on something else than the request and the results of earlier steps.
type StepsChangedError struct {
	Position int    // 1 for the first step
	Stored   string // the step that the operation has at this position
	Name     string // the step that the function asked for; empty if it returned an answer instead
}

func (e *StepsChangedError) Error() string {
	asked := fmt.Sprintf("the function does %q", e.Name)
	switch e.Name {
	case "":
		asked = "the function returned an answer"
	case e.Stored:
		asked = "the function has a Step in place of a Call of this name, or the reverse"
	}
	return fmt.Sprintf("processed: step %d of the operation is stored as %q, and %s: its steps were changed while it was in progress; see docs/steps.md",
		e.Position, e.Stored, asked)
}

// laterError is an error after which another call makes sense, but not before.
type laterError struct {
	err   error
	after time.Duration
}

func (e *laterError) Error() string { return e.err.Error() }
func (e *laterError) Unwrap() error { return e.err }

// RetryAfter returns how long to wait before another call with the same key, after [ErrInFlight] or [ErrInDoubt]: what
// an HTTP edge sends as Retry-After. It is a second if nothing better is known, and zero for other errors.
func RetryAfter(err error) time.Duration {
	if later, ok := errors.AsType[*laterError](err); ok {
		return max(later.after, time.Second)
	}
	if errors.Is(err, ErrInFlight) || errors.Is(err, ErrInDoubt) {
		return time.Second
	}
	return 0
}

// held is the error if another call works on the operation.
func (m *memory) held(ctx context.Context, left time.Duration) error {
	return &laterError{m.inFlight(ctx), left}
}

// takenOver is the error if this call has lost the operation to another one.
func (m *memory) takenOver() error {
	return fmt.Errorf("%w (another call has taken the operation over; key:%s)", ErrInFlight, m.key.Hash())
}

// intentExists is the error if a step inserts an intent that is there already.
func (m *memory) intentExists(cause error) error {
	return fmt.Errorf("processed: step %q: an intent of this action and part exists under the operation's key: another step wrote it; give each its own Part (key:%s): %w",
		m.step.name, m.key.Hash(), cause)
}

func (m *memory) operationError(err error) error {
	return fmt.Errorf("processed: operation of key:%s: %w%s", m.key.Hash(), keyed.Named(err), advice(err))
}
