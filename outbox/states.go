package outbox

import (
	"slices"

	"github.com/samekey/samekey/internal/intent"
)

// Status is where an intent stands. The package comment has the diagram; internal/intent has the table of transitions.
type Status string

// The states of an unfinished intent: it has a row in samekey.outbox_queue.
const (
	StatusPending          Status = intent.Pending          // to be sent once it is due, for the first time or again
	StatusBlocked          Status = intent.Blocked          // waits for those before it with the same ordering key
	StatusLeased           Status = intent.Leased           // a worker is sending it
	StatusUnknown          Status = intent.Unknown          // the vendor may or may not have acted; a worker looks it up
	StatusAnswered         Status = intent.Answered         // the vendor's answer is stored; a worker runs Apply
	StatusAwaitingApproval Status = intent.AwaitingApproval // unsent until Approve or Reject
	StatusParked           Status = intent.Parked           // nobody knows whether the vendor acted: a person finds out, and Resolve
	StatusDead             Status = intent.Dead             // will not be tried again: attempts, deadline, or an answer to be mended
)

// The states of a finished intent: it is only in the history.
const (
	StatusDelivered Status = intent.Delivered // the vendor did it
	StatusRefused   Status = intent.Refused   // the vendor said no, such as a declined card
	StatusCancelled Status = intent.Cancelled // a person decided against it, and it was not sent
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

// Finished reports whether nothing happens to an intent in this state any more.
func (s Status) Finished() bool { return slices.Contains(finished, s) }
