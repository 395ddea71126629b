package processed

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/url"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/samekey/samekey"
	"github.com/samekey/samekey/internal/db"
	"github.com/samekey/samekey/internal/unsent"
)

// VendorCall is how a step calls a vendor. KeyWindow and Lookup tell what may be done if the outcome of a send is
// unknown: its process died, or Send returned an error. The next call with the operation's key then
//
//   - sends again, with the same delivery key, if that send certainly ends within KeyWindow (an idempotent write);
//   - otherwise calls Lookup, if there is one;
//   - otherwise parks the step for a person ([ErrParked]).
//
// A call that a person must approve first is an intent: its class is dispatcher.IrreversibleWrite.
type VendorCall[T any] struct {
	// Send calls the vendor, and passes it the delivery key as the idempotency key. Required. Its ctx ends Timeout after
	// the mark began. Obey it: nothing may be sent later.
	//
	// Build the request from the operation's request and the results of earlier steps only. So a repetition sends the
	// same bytes. To keep them the same across a deploy too, build them in a [Step] before the call.
	//
	//   - A value and no error: the vendor acted. The value is stored as the step's result, under the rules of Run.
	//   - An error of [Fail]: the vendor refused, such as a declined card. It is stored as the step's result.
	//   - An error that wraps [ErrUnsent]: no request of this Send reached the vendor, or the vendor did not act. The step
	//     can be sent again, whatever KeyWindow is.
	//   - Any other error, and a panic: the outcome is unknown.
	Send func(ctx context.Context, key uuid.UUID) (T, error)

	// KeyWindow is how long the vendor remembers the delivery key, counted from the first send: within it, a repetition
	// has no second effect. Zero means that the vendor does not deduplicate. At least Timeout and 10 seconds; [Forever]
	// is a value. For a call that changes nothing at the vendor, set Forever.
	KeyWindow time.Duration

	// Lookup asks the vendor what became of the delivery key. It changes nothing at the vendor. It is made at the
	// earliest 5 seconds after the end of the send. Its results are those of Send; [ErrAbsent] means that the vendor does
	// not know the key, and any other error that the lookup could not tell and is made again by the next call. After the
	// second ErrAbsent, 5 seconds after the first, the step is parked. Default: none.
	Lookup func(ctx context.Context, key uuid.UUID) (T, error)

	// ResendAbsent sends once more after the second ErrAbsent, instead of parking the step. Set it only if Lookup finds
	// everything that the vendor has accepted; otherwise the vendor acts twice. It needs a Lookup and no KeyWindow.
	ResendAbsent bool

	// Timeout limits a send and a lookup. Default 30 seconds; 100 ms to 1 hour. After a crash the operation can be
	// resumed when Timeout and 10 seconds have passed.
	Timeout time.Duration
}

// Forever is a KeyWindow that never ends.
const Forever time.Duration = math.MaxInt64

var (
	// ErrUnsent marks the errors of a [VendorCall] after which the vendor certainly has not acted: nothing was sent, or
	// the vendor reports that it did nothing (a 429). The client of package dispatcher/httpclient returns such errors;
	// dispatcher.ErrUnsent is the same value.
	ErrUnsent = unsent.Err

	// ErrAbsent is the error of a VendorCall's Lookup if the vendor does not know the delivery key.
	ErrAbsent = errors.New("the vendor does not know the delivery key")
)

const (
	defaultTimeout = 30 * time.Second
	minTimeout     = 100 * time.Millisecond
	maxTimeout     = time.Hour
	windowMargin   = 10 * time.Second // also in samekey.call_mark
	settlingDelay  = 5 * time.Second  // a call in progress at the vendor can end meanwhile
)

// Call does one step of an operation by calling a vendor: the step is marked as in flight and the mark is committed,
// the vendor is called, and its answer is stored as the step's result. If the step is done already, the vendor is not
// called, and Call returns the stored result.
//
// The vendor gets a delivery key that is derived from the operation's key and name: samekey.DeliveryKey(key,
// "step:"+name, ""). It never changes. No intent has the same.
//
// Errors:
//
//   - [ErrInDoubt]: the outcome of the send is unknown. Return the error. The next call with the operation's key acts as
//     [VendorCall] tells.
//   - [ErrParked]: a person has to find the outcome out. Return the error.
//   - An error that wraps [ErrUnsent]: the vendor was not reached. Return the error, or wait and make the same Call
//     again.
//   - [*Failure]: the vendor refused, and that is stored. The function of [Steps] may go on.
//   - [ErrInFlight]: another call has taken the operation over. Nothing more is stored.
//
// The rules of [Step] for names and order apply.
func Call[T any](ctx context.Context, op *Operation, name string, call VendorCall[T]) (T, error) {
	var none T
	if err := call.check(); err != nil {
		return none, fmt.Errorf("processed: call %q: VendorCall.%w", name, err)
	}
	this, done, err := op.enter(name, true)
	if err != nil {
		return none, err
	}
	stored := false
	defer func() { op.leave(this, stored) }()
	value := none
	if done == nil {
		c := calling[T]{op: op, step: this, how: call, key: samekey.DeliveryKey(op.m.key, "step:"+name, "")}
		ans, err := answer{}, error(nil)
		if ans, value, err = c.run(ctx); err != nil {
			return none, fmt.Errorf("call %q: %w", name, err)
		}
		done = &ans
	}
	res, err := outcome(*done, value)
	stored = err == nil || errors.As(err, new(*Failure))
	return res.Value, err
}

// check returns an error that begins with the field.
func (v *VendorCall[T]) check() error {
	if v.Timeout == 0 {
		v.Timeout = defaultTimeout
	}
	switch {
	case v.Send == nil:
		return errors.New("Send is nil: it calls the vendor")
	case v.Timeout < minTimeout || v.Timeout > maxTimeout:
		return fmt.Errorf("Timeout is %s: give %s to %s, or zero for %s", v.Timeout, minTimeout, maxTimeout, defaultTimeout)
	case v.KeyWindow != 0 && v.KeyWindow <= v.Timeout+windowMargin:
		return fmt.Errorf("KeyWindow is %s: give more than Timeout and %s, or zero if the vendor does not deduplicate", v.KeyWindow, windowMargin)
	case v.ResendAbsent && v.Lookup == nil:
		return errors.New("ResendAbsent needs a Lookup")
	case v.ResendAbsent && v.KeyWindow != 0:
		return errors.New("ResendAbsent is for a vendor without a KeyWindow: leave one of them out")
	}
	return nil
}

// calling is one Call that is not done yet.
type calling[T any] struct {
	op   *Operation
	step step
	how  VendorCall[T]
	key  uuid.UUID
}

// run sends, looks up or gives up, as samekey.call_mark decides.
func (c *calling[T]) run(ctx context.Context) (ans answer, value T, err error) {
	for absent := false; ; {
		// The time includes the mark, so that a process that was paused after the mark does not send later.
		within, cancel := context.WithTimeout(ctx, c.how.Timeout)
		defer cancel() //nolint:revive // at most twice
		mark, err := c.mark(ctx, absent)
		switch {
		case err != nil:
			return answer{}, value, err
		case mark.Verdict == "parked":
			return answer{}, value, c.op.m.named(ErrParked)
		case mark.Verdict == "wait":
			return answer{}, value, &laterError{c.op.m.named(ErrInDoubt), time.Duration(mark.WaitUs) * time.Microsecond}
		case mark.Verdict == "send":
			value, err = c.make(within, c.how.Send)
			return c.conclude(ctx, mark.Sends, value, err)
		}
		if value, err = c.make(within, c.how.Lookup); !errors.Is(err, ErrAbsent) {
			if errors.Is(err, ErrUnsent) { // of the lookup
				err = fmt.Errorf("the lookup failed: %v", err) //nolint:errorlint // it tells nothing about the send
			}
			return c.conclude(ctx, mark.Sends, value, err)
		}
		absent = true
	}
}

func (c *calling[T]) make(ctx context.Context, call func(context.Context, uuid.UUID) (T, error)) (none T, _ error) {
	if ctx.Err() != nil {
		return none, fmt.Errorf("%w: %w", ErrUnsent, ctx.Err())
	}
	return call(ctx, c.key)
}

// mark decides what to do. If that is to send, the step is marked as in flight. If the answer to the mark is lost,
// nothing was sent, and the mark is taken back.
func (c *calling[T]) mark(ctx context.Context, absent bool) (mark db.OperationStepsMarkRow, err error) {
	m := c.op.m
	if err := ended(ctx); err != nil {
		return mark, err
	}
	err = m.transact(ctx, c.op.pool, func(batch *pgx.Batch) {
		batch.Queue(db.OperationStepsMark, m.key.Scope, m.key.Value, c.step.fence, stepLease.Microseconds(), c.step.position, c.step.name,
			c.how.Timeout.Microseconds(), c.how.KeyWindow.Microseconds(), settlingDelay.Microseconds(), c.how.Lookup != nil, absent, c.how.ResendAbsent).
			QueryRow(func(row pgx.Row) error { return row.Scan(&mark.Verdict, &mark.Sends, &mark.WaitUs) })
	})
	if err != nil && SafeToRetry(err) && !errors.Is(err, ErrInFlight) {
		_ = c.end(ctx, c.op.sends+1, true, "nothing was sent: the connection to the database was lost before")
	}
	if err == nil {
		c.op.sends = mark.Sends
	}
	return mark, err
}

// conclude stores what a send or a lookup found out.
func (c *calling[T]) conclude(ctx context.Context, sends int32, value T, err error) (ans answer, kept T, _ error) {
	ctx, cancel := grace(ctx)
	defer cancel()
	m := c.op.m
	failure := m.failureOf(err)
	switch {
	case failure != nil:
		ans, err = *failure, failure.checkSize()
	case err == nil:
		ans, kept, err = keepable(value)
	case errors.Is(err, ErrUnsent):
		if lost := c.end(ctx, sends, true, reason(err)); errors.Is(lost, ErrInFlight) {
			return answer{}, kept, lost
		}
		return answer{}, kept, err
	}
	if err != nil {
		if lost := c.end(ctx, sends, false, reason(err)); errors.Is(lost, ErrInFlight) {
			return answer{}, kept, lost
		}
		return answer{}, kept, fmt.Errorf("%w (key:%s): %w", ErrInDoubt, m.key.Hash(), err)
	}
	err = m.persist(ctx, c.op.pool, func(batch *pgx.Batch) {
		batch.Queue(db.OperationStepsAnswer, m.key.Scope, m.key.Value, c.step.fence, stepLease.Microseconds(), c.step.position,
			ans.failed, ans.code, ans.body)
	})
	switch {
	case errors.Is(err, ErrInFlight):
		return answer{}, kept, err
	case err != nil:
		return answer{}, kept, fmt.Errorf("%w (key:%s): the vendor's answer could not be stored: %w", ErrInDoubt, m.key.Hash(), err)
	}
	return ans, kept, nil
}

// end notes that a send or a lookup ended without an answer. If that fails, the step stays in flight.
func (c *calling[T]) end(ctx context.Context, sends int32, unsent bool, reason string) error {
	m := c.op.m
	return m.persist(ctx, c.op.pool, func(batch *pgx.Batch) {
		batch.Queue(db.OperationStepsEnd, m.key.Scope, m.key.Value, c.step.fence, stepLease.Microseconds(), c.step.position, sends, unsent, reason)
	})
}

// reason is an error's text as it is stored: without URLs, which may contain secrets, and what text cannot hold.
func reason(err error) string {
	text := err.Error()
	if request := (*url.Error)(nil); errors.As(err, &request) && request.URL != "" {
		text = strings.ReplaceAll(strings.ReplaceAll(text, fmt.Sprintf("%q", request.URL), "[URL]"), request.URL, "[URL]")
	}
	text = strings.ReplaceAll(strings.ToValidUTF8(text, "\uFFFD"), "\x00", "\uFFFD")
	for len(text) > 4096 || !utf8.ValidString(text) {
		text = text[:min(len(text), 4097)-1]
	}
	return text
}
