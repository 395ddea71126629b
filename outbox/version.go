package outbox

import (
	"fmt"

	"github.com/samekey/samekey/internal/jsonvalue"
	"github.com/samekey/samekey/internal/names"
)

// Versions of a payload. An intent may wait for days (DueAt, retries, a dead intent that is redriven), so a release
// reads payloads that an earlier one wrote. If T changes in a way that its JSON does not bear, give the action a
// version, and say how payloads of the earlier ones become a T:
//
//	var ChargeCard = outbox.NewAction[Charge]("charge_card").Version(2, outbox.From(1, func(old ChargeV1) (Charge, error) {
//		return Charge{Cents: old.Amount * 100, Currency: "eur"}, nil
//	}))
//
// The version is a parameter of the intent's content type, as in "application/json; payload-version=2". Vendors do not
// see it.

// maxVersion is the highest version of a payload.
const maxVersion = 9999

// Older decodes the payloads of one earlier version. [From] makes it.
type Older[T any] struct {
	version int
	decode  func(payload []byte) (T, error)
}

// From returns what [Action.Version] needs to read payloads of an earlier version: the payload is decoded into an Old,
// and upgrade makes a T of it. upgrade must depend on its argument alone, and must not change once it is in use: an
// attempt that is made again calls it again. An error or a panic of upgrade makes the intent dead, unsent, with the
// code "payload"; do not quote the payload in it.
func From[Old, T any](version int, upgrade func(Old) (T, error)) Older[T] {
	return Older[T]{version, func(payload []byte) (made T, err error) {
		old, err := decodeJSON[Old](payload)
		if err != nil {
			return made, err
		}
		if made, err = upgrade(old); err != nil {
			return made, fmt.Errorf("payload of version %d cannot be upgraded: %w", version, err)
		}
		return made, nil
	}}
}

// Version returns the action with payloads of this version, from 2 to 9999. [Action.Insert] and [Action.Intent] write
// it to the intent's content type. Intents without a version have version 1.
//
// Workers read payloads of this version as T, and those of the earlier versions that older lists. What a worker does
// with the others:
//
//	an earlier version that is not listed    the intent is dead, unsent, with the code "payload": list it, then redrive
//	a later version, during a rollout        the intent waits, without a send or a lookup and with no attempt used, for a
//	                                         worker that knows it (code "payload_version", a WARN line)
//
// A Send, a Render and a Lookup get the T that the decoder made, and in Call.Payload its JSON. An Apply and an Attention
// get the T, and the stored bytes in Call.Payload; those in SQL get the stored bytes.
//
// An older decoder makes the request of a first send only. An IdempotentWrite that an earlier release may have sent from
// an older payload is not sent again, unless its request is stored (Delivery.Render): the vendor might get another
// request under the same key. It is looked up, or parked, with the code "form". The earlier release, during a rollout
// or after a rollback, does the same with what a decoder made.
//
// Bytes are not decoded: an Action[[]byte] reads all versions up to this one as they are, and takes no older. An action
// without Version leaves later ones waiting, so name the newest one that its templates fit.
//
// Version panics, as [NewAction] does, if the version is out of range, if older lists one twice or one that is not
// earlier, or if T is bytes and older lists any. It returns a copy: declare the action with it, once.
func (a Action[T]) Version(version int, older ...Older[T]) Action[T] {
	fail := func(format string, args ...any) {
		panic(fmt.Sprintf("outbox: action %q: Version(%d): ", a.name, version) + fmt.Sprintf(format, args...))
	}
	if version < 2 || version > maxVersion {
		fail("a version is 2 to %d", maxVersion)
	}
	if a.bytes() && len(older) > 0 {
		fail("its payload is %T, which is not decoded: earlier versions are read as they are", *new(T))
	}
	a.version, a.older = version, &olderPayloads[T]{}
	for _, o := range older {
		if o.version < 1 || o.version >= version {
			fail("From(%d) is not of an earlier version", o.version)
		}
		if a.older.decoder(o.version) != nil {
			fail("From(%d) is given twice", o.version)
		}
		a.older.list = append(a.older.list, o)
	}
	return a
}

// olderPayloads is behind a pointer, so that an Action can be compared.
type olderPayloads[T any] struct{ list []Older[T] }

func (o *olderPayloads[T]) decoder(version int) func([]byte) (T, error) {
	if o != nil {
		for _, older := range o.list {
			if older.version == version {
				return older.decode
			}
		}
	}
	return nil
}

// bytes reports whether payloads are bytes, which are not decoded.
func (a Action[T]) bytes() bool {
	_, bytes := jsonvalue.Bytes(*new(T))
	return bytes
}

// PayloadVersion is the version that [Action.Insert] writes: that of [Action.Version], or 1.
func (a Action[T]) PayloadVersion() int { return max(a.version, 1) }

// Decode reads a stored payload as a worker does: as a T, or with the decoder of an earlier version. Numbers keep their
// digits where T's fields do. Its errors do not quote the payload; a [*PayloadVersionError] is one of them.
func (a Action[T]) Decode(contentType string, payload []byte) (T, error) {
	version := names.PayloadVersion(contentType)
	if version == a.PayloadVersion() || version < a.PayloadVersion() && a.bytes() {
		return decodeJSON[T](payload)
	}
	if decode := a.older.decoder(version); decode != nil {
		return decode(payload)
	}
	return *new(T), &PayloadVersionError{Action: a.name, Version: version, Newest: a.PayloadVersion()}
}

// PayloadVersionError is an error of [Action.Decode]: the action has no decoder for this version of its payload. If
// Version is greater than Newest, a later release wrote it; otherwise add [From] of the version to [Action.Version].
type PayloadVersionError struct {
	Action          string
	Version, Newest int
}

// Error tells what to do.
func (e *PayloadVersionError) Error() string {
	if e.Version > e.Newest {
		return fmt.Sprintf("payload has version %d, and this release of action %q knows versions up to %d: a later release delivers it", e.Version, e.Action, e.Newest)
	}
	return fmt.Sprintf("payload has version %d, and action %q has version %d: declare how the old one is read (outbox.From), then redrive the intent", e.Version, e.Action, e.Newest)
}
