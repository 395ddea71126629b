package outbox

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"

	"github.com/samekey/samekey"
	"github.com/samekey/samekey/internal/db"
)

// Filter selects intents. A zero field selects all.
type Filter struct {
	Status    Status
	Action    string
	Actions   []string      // instead of Action: any of these, such as all actions of a destination
	Key       string        // the key's value, in all scopes unless Scope is set
	Scope     string        // as in samekey.Key: escaped and joined
	Part      string        // such as the endpoint of a webhook
	Subject   string        // what the intents are about, such as "booking/42"
	Reference string        // the vendor's id in any of its answers, such as "ch_123"
	Code      string        // of the last outcome, such as "503"; needs a Status, Key, Subject or Reference
	Cause     string        // as in Entry and Group; needs StatusDead or StatusParked
	OlderThan time.Duration // inserted longer ago than this, by the database's clock
	From, To  time.Time     // inserted at or after From, and before To, by the database's clock

	exact bool // Code and Cause count if they are empty too: see Group.Filter

	Limit int       // 1 to 1000; 0 means 100
	After uuid.UUID // Next of the page before
}

// Page is a page of a list, newest first.
type Page struct {
	Entries []Entry   `json:"entries"`       // without payload and history; never nil from List
	Next    uuid.UUID `json:"next,omitzero"` // for Filter.After; zero on the last page
}

// List returns a page of the intents that the filter selects, newest first. Paging is stable: an intent that is
// inserted meanwhile does not move others between pages, and one whose state changes meanwhile can only be missing. So
// a page may have fewer than Limit intents and not be the last: look at Next.
//
// The order is that of the ids, which writers make from their clocks. Intents of two writers within the clocks'
// difference may be in either order.
//
// A page reads the rows that it returns, and the rows between them that Action, Code, Scope, Part or OlderThan leave
// out, as do the other conditions. With a Key, a Subject or a Reference it reads only the intents of that key, subject or reference.
//
// List also works outside a transaction, with a pool or a connection.
func List(ctx context.Context, on samekey.Tx, f Filter) (Page, error) {
	if err := f.check(); err != nil {
		return Page{}, fmt.Errorf("outbox: list intents: %w", err)
	}
	q := db.New(on)
	ids, err := f.ids(ctx, q)
	if err != nil {
		return Page{}, fmt.Errorf("outbox: list intents: %w", err)
	}
	rows, err := q.OutboxEntries(ctx, db.OutboxEntriesParams{Ids: texts(ids)})
	if err != nil {
		return Page{}, fmt.Errorf("outbox: list intents: %w", err)
	}
	page := Page{Entries: []Entry{}}
	for _, row := range rows {
		if e := entry(row); f.Status == "" || e.Status == f.Status {
			page.Entries = append(page.Entries, e)
		}
	}
	if len(ids) == int(f.limit()) {
		page.Next = ids[len(ids)-1]
	}
	return page, nil
}

// ids uses the index that fits the filter.
func (f Filter) ids(ctx context.Context, q *db.Queries) ([]uuid.UUID, error) {
	before, age := f.After, f.OlderThan.Microseconds()
	if before == uuid.Nil {
		before = uuid.Max
	}
	switch status := string(f.Status); {
	case f.Reference != "":
		return q.OutboxListByReference(ctx, db.OutboxListByReferenceParams{
			Reference: f.Reference, Before: before, Status: status, IdemKey: f.Key, Subject: f.Subject, Actions: f.actions(), Scope: f.Scope, Part: f.Part, Code: f.Code, AgeUs: age, WrittenFrom: orNil(f.From.UTC()), WrittenTo: orNil(f.To.UTC()), MaxCount: f.limit(),
		})
	case f.Key != "":
		return q.OutboxListByKey(ctx, db.OutboxListByKeyParams{
			IdemKey: f.Key, Before: before, Status: status, Subject: f.Subject, Actions: f.actions(), Scope: f.Scope, Part: f.Part, Code: f.Code, AgeUs: age, WrittenFrom: orNil(f.From.UTC()), WrittenTo: orNil(f.To.UTC()), MaxCount: f.limit(),
		})
	case f.Subject != "":
		return q.OutboxListBySubject(ctx, db.OutboxListBySubjectParams{
			Subject: f.Subject, Before: before, Status: status, Actions: f.actions(), Scope: f.Scope, Part: f.Part, Code: f.Code, AgeUs: age, WrittenFrom: orNil(f.From.UTC()), WrittenTo: orNil(f.To.UTC()), MaxCount: f.limit(),
		})
	case status == "":
		return q.OutboxListAll(ctx, db.OutboxListAllParams{
			Before: before, Actions: f.actions(), Scope: f.Scope, Part: f.Part, AgeUs: age, WrittenFrom: orNil(f.From.UTC()), WrittenTo: orNil(f.To.UTC()), MaxCount: f.limit(),
		})
	case f.Status.Finished():
		return q.OutboxListFinished(ctx, db.OutboxListFinishedParams{
			Status: &status, Before: before, Actions: f.actions(), Scope: f.Scope, Part: f.Part, Code: f.Code, AgeUs: age, WrittenFrom: orNil(f.From.UTC()), WrittenTo: orNil(f.To.UTC()), MaxCount: f.limit(),
		})
	case slices.Contains(resting, f.Status):
		return q.OutboxListAttention(ctx, db.OutboxListAttentionParams{
			Status: status, Before: before, Actions: f.actions(), Scope: f.Scope, Part: f.Part, Code: f.Code, Cause: f.Cause, Exact: f.exact, AgeUs: age, WrittenFrom: orNil(f.From.UTC()), WrittenTo: orNil(f.To.UTC()), MaxCount: f.limit(),
		})
	default:
		return q.OutboxListActive(ctx, db.OutboxListActiveParams{
			Status: status, Before: before, Actions: f.actions(), Scope: f.Scope, Part: f.Part, Code: f.Code, AgeUs: age, WrittenFrom: orNil(f.From.UTC()), WrittenTo: orNil(f.To.UTC()), MaxCount: f.limit(),
		})
	}
}

const (
	defaultLimit = 100
	maxLimit     = 1000
)

func (f Filter) limit() int32 {
	if f.Limit == 0 {
		return defaultLimit
	}
	return int32(f.Limit)
}

// actions is never nil: the query counts them.
func (f Filter) actions() []string {
	if f.Action != "" {
		return []string{f.Action}
	}
	return append([]string{}, f.Actions...)
}

func (f Filter) check() error {
	switch {
	case f.Action != "" && len(f.Actions) > 0:
		return errors.New("Action and Actions are both set: give one of them")
	case f.Cause != "" && f.Status != StatusDead && f.Status != StatusParked:
		return errors.New("Cause needs the Status StatusDead or StatusParked as well")
	case f.Limit < 0 || f.Limit > maxLimit:
		return fmt.Errorf("Limit is %d: give 1 to %d, or 0 for %d", f.Limit, maxLimit, defaultLimit)
	case f.OlderThan < 0:
		return errors.New("OlderThan is negative: give how long ago, such as time.Hour")
	case f.Status != "" && !slices.Contains(unfinished, f.Status) && !f.Status.Finished():
		return fmt.Errorf("Status is %q: give one of %v or %v", f.Status, unfinished, finished)
	case f.Code != "" && f.Status == "" && f.Key == "" && f.Subject == "" && f.Reference == "":
		return errors.New("Code needs a Status, a Key, a Subject or a Reference as well")
	}
	texts := map[string]string{"Action": f.Action, "Key": f.Key, "Scope": f.Scope, "Part": f.Part, "Subject": f.Subject, "Reference": f.Reference,
		"Code": f.Code, "Cause": f.Cause}
	for i, action := range f.Actions {
		texts[fmt.Sprintf("Actions[%d]", i)] = action
	}
	for field, text := range texts {
		if !utf8.ValidString(text) || strings.ContainsRune(text, 0) {
			return fmt.Errorf("%s must be text in valid UTF-8, without NUL", field)
		}
	}
	return nil
}
