package outbox

import (
	"slices"

	"github.com/samekey/samekey/internal/intent"
)

// Transitions are the changes of status in the table, for the guard of the tests.
func Transitions() (pairs [][2]Status) {
	for _, t := range intent.Table {
		for _, to := range t.To {
			if to != t.From {
				pairs = append(pairs, [2]Status{Status(t.From), Status(to)})
			}
		}
	}
	return pairs
}

// BulkSize is the size of a batch.
const BulkSize = bulkSize

var Unfinished, Finished = unfinished, finished

// Statuses are all statuses.
func Statuses() []Status { return slices.Concat(unfinished, finished) }

// ReservedHeaders are the names that an intent's headers must not have.
func ReservedHeaders() []string { return slices.Concat(workersHeaders, secretHeaders) }
