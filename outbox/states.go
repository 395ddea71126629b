package outbox

import "slices"

// Status is the state of an intent. The package comment has the diagram.
type Status string

// States of an unfinished intent, which has a row in samekey.outbox_queue.
const (
	StatusPending          Status = "pending"           // will be sent when it is due, for the first time or again
	StatusBlocked          Status = "blocked"           // waits for earlier intents with its ordering key
	StatusLeased           Status = "leased"            // a worker is sending it
	StatusUnknown          Status = "unknown"           // the vendor may or may not have acted; a worker will look it up
	StatusAnswered         Status = "answered"          // the vendor's answer is stored; a worker will run Apply
	StatusAwaitingApproval Status = "awaiting_approval" // unsent until Approve or Reject
	StatusParked           Status = "parked"            // unknown, and no lookup can tell: a person must find out and Resolve it
	StatusDead             Status = "dead"              // will not be retried: attempts or deadline used up, or an answer that needs a person
)

// Final states. The intent is only in the history.
const (
	StatusDelivered Status = "delivered" // the vendor did it
	StatusRefused   Status = "refused"   // the vendor said no, such as a declined card
	StatusCancelled Status = "cancelled" // a person cancelled it, and it was not sent
)

var (
	unfinished = []Status{StatusPending, StatusBlocked, StatusLeased, StatusUnknown, StatusAnswered,
		StatusAwaitingApproval, StatusParked, StatusDead}
	finished = []Status{StatusDelivered, StatusRefused, StatusCancelled}
	resting  = []Status{StatusAwaitingApproval, StatusParked, StatusDead}
)

// Finished reports whether this state is final.
func (s Status) Finished() bool { return slices.Contains(finished, s) }

// transition is a change of state and its cause. A new intent comes from "".
type transition struct {
	from, to Status
	cause    string
}

// transitions has every change of state that can happen. A retried lookup or Apply changes no state, so it is not here.
// Tests compare the queries and the CHECKs of the tables with it.
var transitions = []transition{
	{"", StatusPending, "inserted, or its queue row restored by reconcile"},
	{"", StatusBlocked, "inserted behind another intent with its ordering key"},
	{StatusBlocked, StatusPending, "promoted: the intent before it is finished, or left the order"},

	{StatusPending, StatusLeased, "claimed"},
	{StatusLeased, StatusPending, "retry; or given back unsent; or orphaned and repeatable"},
	{StatusLeased, StatusDelivered, "delivered, with no Apply to run"},
	{StatusLeased, StatusRefused, "refused by the vendor, with no Apply to run"},
	{StatusLeased, StatusAnswered, "answered, with an Apply to run"},
	{StatusLeased, StatusUnknown, "ambiguous outcome; or orphaned and not repeatable"},
	{StatusLeased, StatusAwaitingApproval, "first claim of an irreversible action"},
	{StatusLeased, StatusParked, "ambiguous outcome, with no lookup"},
	{StatusLeased, StatusDead, "attempts or deadline used up; or an answer that needs a person"},

	{StatusUnknown, StatusDelivered, "looked up: found"},
	{StatusUnknown, StatusRefused, "looked up: refused"},
	{StatusUnknown, StatusAnswered, "looked up, resolved by a person, or answered late; with an Apply to run"},
	{StatusUnknown, StatusPending, "looked up: absent, and can be sent again"},
	{StatusUnknown, StatusParked, "lookups used up; or resolved as not sent"},

	{StatusAnswered, StatusDelivered, "applied"},
	{StatusAnswered, StatusRefused, "applied"},

	{StatusAwaitingApproval, StatusPending, "approved"},
	{StatusAwaitingApproval, StatusCancelled, "rejected, or cancelled"},

	{StatusParked, StatusPending, "redriven"},
	{StatusParked, StatusAnswered, "resolved by a person, or answered late"},
	{StatusParked, StatusCancelled, "cancelled, once resolved as not sent"},
	{StatusDead, StatusPending, "redriven"},
	{StatusDead, StatusAnswered, "resolved by a person"},
	{StatusDead, StatusCancelled, "cancelled before it was sent, or once resolved as not sent"},
	{StatusPending, StatusCancelled, "cancelled before it was sent"},
	{StatusBlocked, StatusCancelled, "cancelled before it was sent"},
}
