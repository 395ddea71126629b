// Package reply is the answer of a protocol that has a status and headers, as an edge of processed (processed/httpkey)
// gives it to processed.Run and gets it back. Each part is kept in a column of its own, byte for byte.
package reply

import "fmt"

// Reply is such an answer. As Run's T it is kept as it is. As the error of Run's function, a *Reply is kept too, and
// everything else is rolled back: it comes back as Result.Value, with RolledBack set, and not as a *Failure.
type Reply struct {
	Code       int    // 0 after a replay of what was stored without one
	Header     []byte // in a form of the edge's own, at most MaxHeader bytes
	Body       []byte // at most 1 MiB
	RolledBack bool
}

// MaxHeader is what the table's CHECK allows.
const MaxHeader = 64 << 10

// Error makes a *Reply a function's error.
func (r *Reply) Error() string {
	return fmt.Sprintf("processed: the request was answered with code %d", r.Code)
}
