package outbox

import (
	"context"
	"fmt"

	"github.com/samekey/samekey"
	"github.com/samekey/samekey/internal/db"
)

// Group is how many intents rest for one cause.
type Group struct {
	Status Status // StatusDead, StatusParked or StatusAwaitingApproval
	Action string
	Code   string // of the last outcome, such as "503"; empty: none
	Cause  string // the last error's message without its values; empty for StatusAwaitingApproval
	Count  int
}

// Filter selects the intents of the group, for [List] and for acts on many intents such as [RedriveAll].
func (g Group) Filter() Filter {
	return Filter{Status: g.Status, Action: g.Action, Code: g.Code, Cause: g.Cause, exact: true}
}

// Groups returns the intents that wait for a person, grouped by state, action, code and cause, the largest groups first,
// at most 1000 of them. Without actions it returns the groups of all. With a million such intents it takes a fraction of
// a second.
//
// The cause is the message of the last error, or of the vendor's answer in JSON, in at most 120 bytes. The worker leaves
// out what tells two intents of one cause apart: numbers, ids, addresses, quoted text, and the values of the payload.
// The history has the message itself.
func Groups(ctx context.Context, on samekey.Tx, actions ...string) ([]Group, error) {
	rows, err := db.New(on).CauseGroups(ctx, db.CauseGroupsParams{Actions: actions, MaxCount: maxLimit})
	if err != nil {
		return nil, fmt.Errorf("outbox: group intents: %w", err)
	}
	groups := make([]Group, len(rows))
	for i, row := range rows {
		groups[i] = Group{Status: Status(row.Status), Action: row.Action, Code: row.Code, Cause: row.Cause, Count: int(row.Intents)}
	}
	return groups, nil
}
