package outbox

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"

	"github.com/samekey/samekey/internal/db"
	"github.com/samekey/samekey/internal/intent"
)

// Outcome is what really happened to an intent, as a person found out.
type Outcome string

// The outcomes of [Resolve].
const (
	Delivered Outcome = intent.OutcomeDelivered // the vendor did it
	Refused   Outcome = intent.OutcomeRefused   // the vendor said no, such as a declined card
	NotSent   Outcome = intent.OutcomeNotSent   // the vendor never received it
)

// Resolution is an outcome and its evidence.
type Resolution struct {
	// Outcome is required.
	Outcome Outcome

	// Code is the vendor's code, such as "200" or "card_declined". At most 128 bytes of printable text.
	Code string

	// Response is the vendor's answer as far as you know it, such as the charge from its dashboard. The handler's Apply
	// gets it as if the vendor had just answered, and it is stored with the intent. At most 1 MiB, without secrets.
	Response []byte

	// ResponseType is the media type of Response, at most 255 bytes.
	ResponseType string

	// Reference is the vendor's id of what it did, such as "ch_123", for [Filter].Reference and the handler's Apply. At
	// most 255 bytes of printable text.
	Reference string
}

// Resolve records what really happened to an intent that is unknown, parked or dead. Any other state is a
// [*StateError].
//
// After Delivered or Refused, a worker runs the action's Apply with this answer, as if the vendor had given it, and
// finishes the intent. After NotSent, the intent is parked (or stays dead), and can be redriven or cancelled. If a lookup
// that is running meanwhile finds that the vendor acted or refused, that counts instead, until a redrive sends the
// intent again.
//
// An intent that was replaced can be resolved as Delivered: the answer is kept, and a successor that is not being sent is
// parked. If the successor may have been sent too, the application gets an attention event of the intent, with the code
// "successor_sent", and the database raises a warning (pgx: OnNotice), not an error.
//
// With NotSent you guarantee that no attempt reached the vendor and none will. A redrive sends the intent again, and a
// vendor that does not honor keys acts again.
func Resolve(ctx context.Context, on DB, id uuid.UUID, r Resolution, by By) error {
	if err := r.check(); err != nil {
		return fmt.Errorf("outbox: resolve intent %s: %w", id, err)
	}
	return act(ctx, on, "resolve", id, by, func(q *db.Queries) ([]string, error) {
		return q.ActResolve(ctx, db.ActResolveParams{
			ID: id, Outcome: string(r.Outcome), Actor: by.Actor, Reason: by.Reason,
			Code: r.Code, ResponseType: r.ResponseType, Response: r.Response, Reference: r.Reference,
		})
	})
}

func (r Resolution) check() error {
	switch r.Outcome {
	case Delivered, Refused, NotSent:
	default:
		return errors.New("Outcome must be Delivered, Refused or NotSent")
	}
	if err := checkText("Code", r.Code, 128); err != nil {
		return err
	}
	if err := checkText("Reference", r.Reference, maxReference); err != nil {
		return err
	}
	if len(r.Response) > maxPayload {
		return fmt.Errorf("Response is %d bytes long, more than %d: keep what matters", len(r.Response), maxPayload)
	}
	if len(r.ResponseType) > maxContentType || !visible(r.ResponseType) {
		return fmt.Errorf("ResponseType must be a media type of at most %d bytes", maxContentType)
	}
	return nil
}
