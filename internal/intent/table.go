package intent

// Transition is what one event can make of an intent of one status.
type Transition struct {
	From  string
	Event string
	To    []string
	Why   string
}

// Table lists every transition. What is not in it does not happen. Do not change it.
//
// A late answer that changes no status is in no row: it is only kept in the history, whatever the status is.
var Table = []Transition{
	{New, EventInserted, []string{Pending, Blocked}, "blocked: behind another intent with its ordering key"},
	{New, EventRestored, []string{Pending}, "its row in the queue was lost"},
	{Blocked, EventPromoted, []string{Pending}, "the intent before it is finished, or left the order"},

	{Pending, EventClaimed, []string{Leased}, "a worker takes it"},
	{Unknown, EventClaimed, []string{Unknown}, "to be looked up"},
	{Answered, EventClaimed, []string{Answered}, "to be applied"},

	{Leased, EventAttempt, []string{Delivered, Refused}, "the vendor answered, and there is no Apply"},
	{Leased, EventAttempt, []string{Answered}, "the vendor answered, and there is an Apply"},
	{Leased, EventAttempt, []string{Pending}, "to be tried again, or not sent at all"},
	{Leased, EventAttempt, []string{Unknown}, "the vendor may have acted, or finishes it later"},
	{Leased, EventAttempt, []string{AwaitingApproval}, "irreversible, and not approved for this attempt"},
	{Leased, EventAttempt, []string{Dead}, "no attempts or no time left, or a person must change something first"},

	{Unknown, EventLookup, []string{Delivered, Refused}, "the vendor knows it, and there is no Apply"},
	{Unknown, EventLookup, []string{Answered}, "the vendor knows it, and there is an Apply"},
	{Unknown, EventLookup, []string{Unknown}, "the vendor could not tell, or is still working on it: looked up again later"},
	{Unknown, EventLookup, []string{Pending}, "the vendor does not know it, and the policy allows another attempt"},
	{Unknown, EventLookup, []string{Parked}, "no lookup can tell"},

	{Answered, EventApply, []string{Delivered, Refused}, "applied"},
	{Answered, EventApply, []string{Answered}, "Apply failed: it runs again later"},

	{Leased, EventPostponed, []string{Pending}, "its endpoint is busy, or its payload did not load"},
	{Unknown, EventPostponed, []string{Unknown}, "its endpoint is busy, or its payload did not load"},
	{Answered, EventPostponed, []string{Answered}, "no Apply could begin in time"},

	{Leased, EventOrphaned, []string{Pending}, "it may be repeated, or was not sent yet"},
	{Leased, EventOrphaned, []string{Unknown}, "it may not be repeated"},
	{Unknown, EventOrphaned, []string{Unknown}, "its lookup is made again"},
	{Answered, EventOrphaned, []string{Answered}, "its Apply runs again"},

	{Unknown, EventLate, []string{Answered}, "the attempt that was sent last was answered after all"},
	{Parked, EventLate, []string{Answered}, "the attempt that was sent last was answered after all"},
	{Dead, EventLate, []string{Answered}, "the attempt that was sent last was answered after all"},

	{AwaitingApproval, EventApproved, []string{Pending}, "for one attempt"},
	{AwaitingApproval, EventRejected, []string{Cancelled}, "it is not sent"},
	{Parked, EventRedriven, []string{Pending}, "unless it may have been sent and must not be sent twice"},
	{Dead, EventRedriven, []string{Pending}, "unless it may have been sent and must not be sent twice"},
	{Unknown, EventResolved, []string{Answered, Parked}, "parked: resolved as not sent"},
	{Parked, EventResolved, []string{Answered, Parked}, "parked: resolved as not sent"},
	{Dead, EventResolved, []string{Answered, Dead}, "dead: resolved as not sent"},
	{Pending, EventCancelled, []string{Cancelled}, "before it was sent"},
	{Blocked, EventCancelled, []string{Cancelled}, "before it was sent"},
	{AwaitingApproval, EventCancelled, []string{Cancelled}, "before it was sent"},
	{Parked, EventCancelled, []string{Cancelled}, "not sent, or resolved as not sent"},
	{Dead, EventCancelled, []string{Cancelled}, "not sent, or resolved as not sent"},
	{Parked, EventReplaced, []string{Cancelled}, "resolved as not sent: a successor takes its place"},
	{Dead, EventReplaced, []string{Cancelled}, "no vendor acted: a successor takes its place"},

	{Pending, EventHeld, []string{Parked}, "the intent that it replaces was delivered after all"},
	{AwaitingApproval, EventHeld, []string{Parked}, "the intent that it replaces was delivered after all"},
	{Dead, EventHeld, []string{Parked}, "the intent that it replaces was delivered after all"},
}

type step struct{ from, event, to string }

var legal = func() map[step]bool {
	steps := map[step]bool{}
	for _, t := range Table {
		for _, to := range t.To {
			steps[step{t.From, t.Event, to}] = true
		}
	}
	return steps
}()

// Allowed reports whether the table lets an event lead from one status to another.
func Allowed(from, event, to string) bool { return legal[step{from, event, to}] }
