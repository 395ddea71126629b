// Package intent is the life of an intent (an outbox message): its statuses, what can happen to it, and the one table
// of transitions. The dispatcher checks what it settles against the table. Tests hold the CHECKs of the tables, the
// queries and the documentation to it.
package intent

import "slices"

// The statuses of an unfinished intent. It has a row in samekey.outbox_queue. All names here are the database's.
const (
	Pending          = "pending"           // to be sent when it is due
	Blocked          = "blocked"           // behind another intent with the same ordering key
	Leased           = "leased"            // claimed: a worker sends it
	Unknown          = "unknown"           // the vendor may have acted: a worker looks it up
	Answered         = "answered"          // the vendor's answer is stored: a worker runs Apply
	AwaitingApproval = "awaiting_approval" // not sent before a person approves it
	Parked           = "parked"            // the vendor may have acted: a person finds out
	Dead             = "dead"              // the vendor did not act, or attempts ran out: a person decides
)

// The statuses of a finished intent. It is only in the history.
const (
	Delivered = "delivered" // the vendor acted
	Refused   = "refused"   // the vendor said no, such as a declined card
	Cancelled = "cancelled" // a person decided against it before it was sent
)

// New is the status of an intent that does not exist yet, or that lost its row in the queue.
const New = ""

// What happens to an intent. The history has a line for each, except for the first four.
const (
	EventInserted  = "inserted"
	EventClaimed   = "claimed"   // a worker took it
	EventPostponed = "postponed" // a worker gave it back: nothing was sent, and nothing is written down
	EventPromoted  = "promoted"  // the intent before it in its ordering key is out of the way

	EventAttempt   = "attempt"  // a call to the vendor ended, or did not begin
	EventLookup    = "lookup"   // a worker asked the vendor whether it acted (reconciliation)
	EventApply     = "apply"    // the application's Apply ended
	EventOrphaned  = "orphaned" // its worker died, or its lease ran out
	EventLate      = "late"     // an answer came after another worker had taken the intent over
	EventRestored  = "restored" // reconcile gave it back a lost row in the queue
	EventApproved  = "approved"
	EventRejected  = "rejected"
	EventRedriven  = "redriven"
	EventResolved  = "resolved"
	EventCancelled = "cancelled"
	EventReplaced  = "replaced" // a successor took its place
	EventHeld      = "held"     // the intent that it replaces was delivered after all
	EventErased    = "erased"   // a person had its content erased, once it was finished
)

// How a call, a lookup, an Apply or a person's decision ended. The history keeps it beside the event.
const (
	OutcomeDelivered        = "delivered"
	OutcomeRefused          = "refused"
	OutcomeRetry            = "retry"
	OutcomeUnsent           = "unsent"
	OutcomeUnknown          = "unknown"
	OutcomeDead             = "dead"
	OutcomeParked           = "parked"
	OutcomeAwaitingApproval = "awaiting_approval"
	OutcomeAbsent           = "absent"
	OutcomeAccepted         = "accepted"
	OutcomeNotSent          = "not_sent"
)

// Unfinished, Finished, Resting and Told list statuses. A resting intent waits for a person. Of a told one, the
// application learns by an attention event. Do not change them.
var (
	Unfinished = []string{Pending, Blocked, Leased, Unknown, Answered, AwaitingApproval, Parked, Dead}
	Finished   = []string{Delivered, Refused, Cancelled}
	Resting    = []string{AwaitingApproval, Parked, Dead}
	Told       = []string{AwaitingApproval, Parked, Dead, Cancelled}
)

// Logged lists the events that have a line in the history.
var Logged = []string{EventAttempt, EventLookup, EventApply, EventOrphaned, EventLate,
	EventApproved, EventRejected, EventRedriven, EventResolved, EventCancelled, EventRestored, EventReplaced, EventHeld, EventErased}

// Outcomes lists all outcomes.
var Outcomes = []string{OutcomeDelivered, OutcomeRefused, OutcomeRetry, OutcomeUnsent, OutcomeUnknown, OutcomeDead, OutcomeParked,
	OutcomeAwaitingApproval, OutcomeAbsent, OutcomeAccepted, OutcomeNotSent}

// IsFinished reports whether nothing more happens to an intent of this status.
func IsFinished(status string) bool { return slices.Contains(Finished, status) }
