package outbox

import "slices"

// Transitions are the pairs of the table, for the guard of the tests.
func Transitions() (pairs [][2]Status) {
	for _, c := range transitions {
		pairs = append(pairs, [2]Status{c.from, c.to})
	}
	return pairs
}

var Unfinished, Finished = unfinished, finished

// Statuses are all states.
func Statuses() []Status { return append(append([]Status{}, unfinished...), finished...) }

// ReservedHeaders are the names that an intent's headers must not have.
func ReservedHeaders() []string { return slices.Concat(workersHeaders, secretHeaders) }
