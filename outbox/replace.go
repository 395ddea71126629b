package outbox

import (
	"bytes"
	"context"
	"errors"
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

// Replacements is what differs in the successors of many intents.
type Replacements struct {
	// Patch changes members of each payload: a JSON merge patch (RFC 7396), given as a value or as bytes in the forms of
	// [Intent].Payload. A member that is null is removed, an object changes an object's members, and any other value
	// replaces the member: map[string]any{"currency": "EUR", "note": nil}. Members that it does not name keep their order
	// and their digits. Nil means the same bytes: each request is rendered again.
	Patch any

	// Deadline is the time after which the successors are not sent any more. Zero means those of the intents that are
	// replaced; an intent whose deadline has passed is left alone then.
	Deadline time.Time
}

// ReplaceAll is [Replace] for every dead or parked intent that the filter finds and that Replace would not refuse. Set
// Status to StatusDead or StatusParked, or leave it empty for both. Limit bounds the run; 0 means no bound. After is not
// used.
//
// With a Patch, it leaves out intents whose payload is not a JSON object, would become longer than 1 MiB, or has text
// that Postgres cannot read (\u0000, half of a surrogate pair). Plan counts them. A Patch is another effect, so it needs
// the approver's role, and the login that ran it cannot approve the successors.
//
// A run replaces an intent once, even if its successor is dead meanwhile. Another run would replace that successor: set
// OlderThan or To to leave out what was inserted since.
func ReplaceAll(f Filter, r Replacements, by By) Bulk {
	b := Bulk{act: "replace_all", filter: f, by: by, deadline: orNil(r.Deadline)}
	if r.Patch == nil {
		b.batch = func(ctx context.Context, q *db.Queries, a bulkArguments) (bulkBatch, error) {
			row, err := q.ActReplaceAll(ctx, db.ActReplaceAllParams{
				Filter: a.filter, Actor: by.Actor, Reason: by.Reason, Deadline: b.deadline, MaxCount: a.count, AfterID: a.after})
			return bulkBatch{row.Changed, row.LastID, row.Actions}, err
		}
		return b
	}
	patch, err := encodePatch(r.Patch)
	b.act, b.patch, b.bad = "replace_payload_all", &patch, err
	b.batch = func(ctx context.Context, q *db.Queries, a bulkArguments) (bulkBatch, error) {
		row, err := q.ActReplacePayloadAll(ctx, db.ActReplacePayloadAllParams{
			Filter: a.filter, Patch: patch, Actor: by.Actor, Reason: by.Reason, Deadline: b.deadline, MaxCount: a.count, AfterID: a.after})
		return bulkBatch{row.Changed, row.LastID, row.Actions}, err
	}
	return b
}

// encodePatch returns a JSON object with a member.
func encodePatch(value any) (string, error) {
	patch, err := payloadBytes(value, true)
	if err != nil {
		return "", fmt.Errorf("Patch: %w", err)
	}
	patch = bytes.TrimSpace(patch)
	if patch[0] != '{' || len(bytes.TrimSpace(patch[1:])) == 1 {
		return "", errors.New(`Patch must be a JSON object with a member, such as {"currency": "EUR"}`)
	}
	return string(patch), nil
}
