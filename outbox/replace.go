package outbox

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/samekey/samekey/internal/db"
)

// Replacement is what differs in the successor of an intent.
type Replacement struct {
	// Payload is the corrected payload, in the forms of [Intent]. Nil means the same bytes: the request is rendered
	// again, from the worker's present configuration.
	Payload any

	// ContentType is the media type of Payload. Default: application/json. It has no effect without a Payload.
	ContentType string

	// Deadline is the time after which the successor is not sent any more. Zero means that of the intent that is
	// replaced; if it has passed, set another one.
	Deadline time.Time
}

// Replace cancels a dead or parked intent that no vendor acted on, and writes its successor, in one act. It returns the
// successor's id. Use it after a release that sent wrong bytes, where [Redrive] would send the same bytes again.
//
// The successor has the same key, action, part, subject and headers, a delivery key derived from the first one's, and the
// first one's place in its order. An irreversible action needs a new approval. Inserting the old key, action and part
// again returns the successor, also with the first payload. [Entry] links both (Replaces, ReplacedBy).
//
// Each attempt must have been unsent, or answered by "the vendor did not act". After any other answer an attempt may have
// taken effect, and Replace returns a [*StateError]: find out, and [Resolve] it; an intent that is resolved as not sent
// can be replaced. Any other state is a [*StateError] too, and an invalid Payload is an [*IntentError].
//
// Another Payload is another effect, so it needs the role of the approver; the same one needs the operator's. If the
// intent is delivered late after all, the worker logs an ERROR and parks a successor that was not sent.
func Replace(ctx context.Context, on DB, id uuid.UUID, r Replacement, by By) (successor uuid.UUID, err error) {
	var payload []byte
	var contentType string
	if r.Payload != nil {
		if payload, contentType, err = encodePayload(r.Payload, r.ContentType); err != nil {
			return uuid.Nil, fmt.Errorf("outbox: replace intent %s: %w", id, err)
		}
	}
	err = act(ctx, on, "replace", id, by, func(q *db.Queries) ([]string, error) {
		if r.Payload == nil {
			row, err := q.ActReplace(ctx, db.ActReplaceParams{ID: id, Actor: by.Actor, Reason: by.Reason, Deadline: orNil(r.Deadline)})
			successor = row.Successor
			return []string{row.Action}, err
		}
		row, err := q.ActReplacePayload(ctx, db.ActReplacePayloadParams{ID: id, Payload: payload, ContentType: contentType,
			Actor: by.Actor, Reason: by.Reason, Deadline: orNil(r.Deadline)})
		successor = row.Successor
		return []string{row.Action}, err
	})
	if err != nil {
		return uuid.Nil, err
	}
	return successor, nil
}
