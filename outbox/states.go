package outbox

import (
	"slices"

	"github.com/samekey/samekey/internal/intent"
)

// Status is the state of an intent. The package comment has all states and transitions.
type Status string

// States of an unfinished intent, which has a row in samekey.outbox_queue.
const (
	StatusPending          Status = intent.Pending          // will be sent when it is due, for the first time or again
	StatusBlocked          Status = intent.Blocked          // waits for earlier intents with its ordering key
	StatusLeased           Status = intent.Leased           // a worker is sending it
	StatusUnknown          Status = intent.Unknown          // the vendor may or may not have acted; a worker will look it up (reconciliation)
	StatusAnswered         Status = intent.Answered         // the vendor's answer is stored; a worker will run Apply (completion callback)
	StatusAwaitingApproval Status = intent.AwaitingApproval // unsent until Approve or Reject
	StatusParked           Status = intent.Parked           // unknown, and no lookup can tell: a person must find out and Resolve it
	StatusDead             Status = intent.Dead             // will not be retried (dead letter): attempts or deadline used up, or an answer that needs a person
)

// Final states. The intent is only in the history.
const (
	StatusDelivered Status = intent.Delivered // the vendor did it
	StatusRefused   Status = intent.Refused   // the vendor said no, such as a declined card
	StatusCancelled Status = intent.Cancelled // a person cancelled it, and it was not sent
)

var (
	unfinished = statuses(intent.Unfinished)
	finished   = statuses(intent.Finished)
	resting    = statuses(intent.Resting)
)

func statuses(names []string) (out []Status) {
	for _, name := range names {
		out = append(out, Status(name))
	}
	return out
}

// Finished reports whether this state is final.
func (s Status) Finished() bool { return slices.Contains(finished, s) }
