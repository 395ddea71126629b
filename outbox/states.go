package outbox

import "slices"

// Status is where an intent stands. The package comment has the diagram.
type Status string

// The states of an unfinished intent: it has a row in samekey.outbox_queue.
const (
	StatusPending          Status = "pending"           // to be sent once it is due, for the first time or again
	StatusBlocked          Status = "blocked"           // waits for those before it with the same ordering key
	StatusLeased           Status = "leased"            // a worker is sending it
	StatusUnknown          Status = "unknown"           // the vendor may or may not have acted; a worker looks it up
	StatusAnswered         Status = "answered"          // the vendor's answer is stored; a worker runs Apply
	StatusAwaitingApproval Status = "awaiting_approval" // unsent until Approve or Reject
	StatusParked           Status = "parked"            // nobody knows whether the vendor acted: a person finds out, and Resolve
	StatusDead             Status = "dead"              // will not be tried again: attempts, deadline, or an answer to be mended
)

// The states of a finished intent: it is only in the history.
const (
	StatusDelivered Status = "delivered" // the vendor did it
	StatusRefused   Status = "refused"   // the vendor said no, such as a declined card
	StatusCancelled Status = "cancelled" // a person decided against it, and it was not sent
)

var (
	unfinished = []Status{StatusPending, StatusBlocked, StatusLeased, StatusUnknown, StatusAnswered,
		StatusAwaitingApproval, StatusParked, StatusDead}
	finished = []Status{StatusDelivered, StatusRefused, StatusCancelled}
	resting  = []Status{StatusAwaitingApproval, StatusParked, StatusDead}
)

// Finished reports whether nothing happens to an intent in this state any more.
func (s Status) Finished() bool { return slices.Contains(finished, s) }

// transition is a change of state, and what causes it. From "" an intent comes
// into being.
type transition struct {
	from, to Status
	cause    string
}

// transitions is the life of an intent: what is not here does not happen.
// A status that stays as it is (a look-up or an Apply that is tried again) is no
// transition. The CHECKs of the tables and the queries are held against it by
// tests.
var transitions = []transition{
	{"", StatusPending, "inserted, or given back its queue row by reconcile"},
	{"", StatusBlocked, "inserted behind another of its ordering key"},
	{StatusBlocked, StatusPending, "promoted: the one before it is finished, or left the order"},

	{StatusPending, StatusLeased, "claimed"},
	{StatusLeased, StatusPending, "to be retried; or given back unsent; or orphaned, and repeatable"},
	{StatusLeased, StatusDelivered, "answered, with no Apply to run"},
	{StatusLeased, StatusRefused, "answered with a no, with no Apply to run"},
	{StatusLeased, StatusAnswered, "answered, with an Apply to run"},
	{StatusLeased, StatusUnknown, "ambiguous outcome of a write; or orphaned, and not repeatable"},
	{StatusLeased, StatusAwaitingApproval, "first claim of an irreversible action"},
	{StatusLeased, StatusParked, "ambiguous outcome, and no look-up"},
	{StatusLeased, StatusDead, "attempts or deadline used up; or an answer that a person must mend"},

	{StatusUnknown, StatusDelivered, "looked up: found"},
	{StatusUnknown, StatusRefused, "looked up: found to be refused"},
	{StatusUnknown, StatusAnswered, "looked up, or resolved by a person, or by a late answer; with an Apply to run"},
	{StatusUnknown, StatusPending, "looked up: absent, and may be sent again"},
	{StatusUnknown, StatusParked, "looked up in vain; or resolved as not sent"},

	{StatusAnswered, StatusDelivered, "applied"},
	{StatusAnswered, StatusRefused, "applied"},

	{StatusAwaitingApproval, StatusPending, "approved"},
	{StatusAwaitingApproval, StatusCancelled, "rejected, or cancelled"},

	{StatusParked, StatusPending, "redriven"},
	{StatusParked, StatusAnswered, "resolved by a person, or by a late answer"},
	{StatusParked, StatusCancelled, "cancelled, once resolved as not sent"},
	{StatusDead, StatusPending, "redriven"},
	{StatusDead, StatusAnswered, "resolved by a person"},
	{StatusDead, StatusCancelled, "cancelled before it was sent, or once resolved as not sent"},
	{StatusPending, StatusCancelled, "cancelled before it was sent"},
	{StatusBlocked, StatusCancelled, "cancelled before it was sent"},
}
