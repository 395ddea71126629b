package dispatcher

import (
	"errors"
	"fmt"
	"sync"
	"time"
)

// health is what a probe asks of a running dispatcher.
type health struct {
	mu      sync.Mutex
	started bool
	lock    bool      // the session lock is held
	swept   time.Time // the last sweep that the database answered
}

func (h *health) set(change func(*health)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	change(h)
}

// Ready reports whether this dispatcher takes work: nil, or an error that says why it does not. It does not ask the
// database; a running dispatcher learns at each sweep. For a readiness probe.
func (d *Dispatcher) Ready() error {
	d.health.mu.Lock()
	defer d.health.mu.Unlock()
	limit := max(5*time.Second, 3*d.config.SweepInterval)
	switch since := time.Since(d.health.swept); {
	case !d.health.started:
		return errors.New("dispatcher: not running")
	case !d.health.lock:
		return errors.New("dispatcher: the session lock is not held: the database cannot be reached, or has just been")
	case since > limit:
		return fmt.Errorf("dispatcher: the database has not answered a sweep for %v", since.Round(time.Second))
	}
	return nil
}
