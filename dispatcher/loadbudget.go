package dispatcher

import "time"

const (
	// A claim takes what the connection is expected to carry in loadTarget, between these.
	minClaimBytes, firstClaimBytes, maxClaimBytes = 64 << 10, 256 << 10, 4 << 20
	loadTarget                                    = 500 * time.Millisecond
)

// loadBudget is how many bytes a claim may take.
type loadBudget struct{ limit int64 }

func newLoadBudget() loadBudget { return loadBudget{limit: firstClaimBytes} }

// took adapts the budget to a load of so many bytes that took so long.
func (b *loadBudget) took(bytes int64, so time.Duration) {
	switch {
	case so < loadTarget/4:
		b.limit = max(b.limit, 2*min(b.limit, bytes))
	default:
		b.limit = int64(float64(bytes) * loadTarget.Seconds() / so.Seconds())
	}
	b.limit = min(max(b.limit, minClaimBytes), maxClaimBytes)
}

// failed: the connection carries less than was thought, or nothing.
func (b *loadBudget) failed() { b.limit = minClaimBytes }
