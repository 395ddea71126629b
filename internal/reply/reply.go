// Package reply is the answer of a protocol that has a status and headers. An edge of processed, such as
// processed/httpkey, passes it to processed.Run and gets it back. Each part is stored in a column of its own, byte for
// byte.
package reply

import "fmt"

// Reply is such an answer. As the answer type of Run it is stored as it is. If Run's function returns a *Reply as its
// error, the reply is stored and everything else is rolled back: Run returns it as Result.Value, with RolledBack set,
// and not as a *Failure.
type Reply struct {
	Code       int    // 0 after a replay of an answer that was stored without one
	Header     []byte // in the edge's own form, at most MaxHeader bytes
	Body       []byte // at most 1 MiB
	RolledBack bool
}

// MaxHeader is the limit of the table's CHECK.
const MaxHeader = 64 << 10

// Error makes a *Reply a function's error.
func (r *Reply) Error() string {
	return fmt.Sprintf("processed: the request was answered with code %d", r.Code)
}
