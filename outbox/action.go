package outbox

import (
	"context"
	"errors"
	"fmt"
	"reflect"

	"github.com/google/uuid"

	"github.com/samekey/samekey"
)

// Action names an effect, such as "charge_card", and fixes the type of its payload. Declare each action once, in a
// package that both the writer and the worker import:
//
//	var ChargeCard = outbox.NewAction[Charge]("charge_card")
//
// The writer calls [Action.Insert]; the worker passes the same variable to dispatcher.Handle. A payload of another type
// then does not compile on either side.
//
// T is stored as JSON, under the rules of Intent.Payload. An Action[[]byte] or Action[json.RawMessage] is the untyped
// form: its bytes are stored unchanged. For an action whose name is known only at run time, fill in an [Intent] and
// call the function [Insert].
//
// If T changes while intents of its former shape may still wait, give the action a version: see [Action.Version].
type Action[T any] struct {
	name    string
	version int // 0: 1
	older   *olderPayloads[T]
}

// NewAction returns the action with this name. A name is 1 to 63 bytes of lowercase letters, digits, "_", "." and "-",
// and starts with a letter.
//
// NewAction panics, as regexp.MustCompile does, if the name is invalid or if no value of T can be stored: a string, for
// example, which could be meant with or without JSON's quotation marks.
func NewAction[T any](name string) Action[T] {
	if err := errors.Join(checkAction(name), checkType(*new(T))); err != nil {
		panic(fmt.Sprintf("outbox: NewAction[%v](%q): %v", reflect.TypeFor[T](), name, err))
	}
	return Action[T]{name: name}
}

// Name returns the name that was given to [NewAction].
func (a Action[T]) Name() string { return a.name }

// Intent returns an intent of this action with this payload. Set the fields that you need, such as Part, DueAt or
// OrderingKey, and pass it to the function [Insert] or to [InsertMany].
func (a Action[T]) Intent(payload T) Intent {
	in := Intent{Action: a.name, Payload: payload}
	if a.version > 0 {
		in.ContentType = fmt.Sprintf("application/json; payload-version=%d", a.version)
	}
	return in
}

// Insert writes an intent of this action in the caller's transaction, as the function [Insert] does, and takes the key
// of the request: call it in processed.Run, processed.Do or a handler's Apply. In any other transaction set the Key of
// an
// [Action.Intent] and call the function [Insert].
func (a Action[T]) Insert(ctx context.Context, tx samekey.Tx, payload T) (uuid.UUID, error) {
	return Insert(ctx, tx, a.Intent(payload))
}
