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

// Filter says which intents; what is zero does not matter.
type Filter struct {
	Status    Status
	Action    string
	Key       string        // the key's value, in every scope unless Scope is set too
	Scope     string        // as in samekey.Key: escaped and joined
	Part      string        // such as the endpoint that a webhook is for
	Code      string        // of the last outcome, such as "503"; needs a Status or a Key
	OlderThan time.Duration // inserted longer ago than this, by the database's clock

	Limit int       // at most so many; 0 means 100, 1000 is the most
	After uuid.UUID // the Next of the page before
}

// Page is a page of a list, newest first.
type Page struct {
	Entries []Entry   // without payload and history
	Next    uuid.UUID // for Filter.After; zero where this is the last page
}

// List returns the intents that the filter finds, newest first, a page at a
// time. Paging is stable: an intent that is inserted meanwhile moves no other to
// another page, and one whose state changes meanwhile is at most missing. So a
// page may hold fewer than Limit and not be the last; look at Next.
//
// "Newest" is the order of ids, which writers make from their clocks: two
// writers' intents of about the same time may stand in either order.
//
// A page costs the rows that it shows and those between them that Action, Code,
// Scope, Part or OlderThan leave out; by Key it costs that key's intents only. Code
// needs a Status or a Key beside it.
//
// It reads through a pool or a connection as well as in a transaction.
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
	var page Page
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

// ids finds them by the index that fits.
func (f Filter) ids(ctx context.Context, q *db.Queries) ([]uuid.UUID, error) {
	before, age := f.After, f.OlderThan.Microseconds()
	if before == uuid.Nil {
		before = uuid.Max
	}
	switch status := string(f.Status); {
	case f.Key != "":
		return q.OutboxListByKey(ctx, db.OutboxListByKeyParams{
			IdemKey: f.Key, Before: before, Status: status, Action: f.Action, Scope: f.Scope, Part: f.Part, Code: f.Code, AgeUs: age, MaxCount: f.limit(),
		})
	case status == "":
		return q.OutboxListAll(ctx, db.OutboxListAllParams{
			Before: before, Action: f.Action, Scope: f.Scope, Part: f.Part, AgeUs: age, MaxCount: f.limit(),
		})
	case f.Status.Finished():
		return q.OutboxListFinished(ctx, db.OutboxListFinishedParams{
			Status: &status, Before: before, Action: f.Action, Scope: f.Scope, Part: f.Part, Code: f.Code, AgeUs: age, MaxCount: f.limit(),
		})
	case slices.Contains(resting, f.Status):
		return q.OutboxListAttention(ctx, db.OutboxListAttentionParams{
			Status: status, Before: before, Action: f.Action, Scope: f.Scope, Part: f.Part, Code: f.Code, AgeUs: age, MaxCount: f.limit(),
		})
	default:
		return q.OutboxListActive(ctx, db.OutboxListActiveParams{
			Status: status, Before: before, Action: f.Action, Scope: f.Scope, Part: f.Part, Code: f.Code, AgeUs: age, MaxCount: f.limit(),
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

func (f Filter) check() error {
	switch {
	case f.Limit < 0 || f.Limit > maxLimit:
		return fmt.Errorf("Limit is %d: give 1 to %d, or 0 for %d", f.Limit, maxLimit, defaultLimit)
	case f.OlderThan < 0:
		return errors.New("OlderThan is negative: give how long ago, such as time.Hour")
	case f.Status != "" && !slices.Contains(unfinished, f.Status) && !f.Status.Finished():
		return fmt.Errorf("Status is %q: give one of %v or %v", f.Status, unfinished, finished)
	case f.Code != "" && f.Status == "" && f.Key == "":
		return errors.New("Code needs a Status or a Key beside it")
	}
	for field, text := range map[string]string{"Action": f.Action, "Key": f.Key, "Scope": f.Scope, "Part": f.Part, "Code": f.Code} {
		if !utf8.ValidString(text) || strings.ContainsRune(text, 0) {
			return fmt.Errorf("%s is not text in valid UTF-8", field)
		}
	}
	return nil
}
