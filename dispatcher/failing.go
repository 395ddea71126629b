package dispatcher

import (
	"sync"
	"time"
)

// failing notes since when something fails that is tried again and again. The zero value is ready.
type failing struct {
	mu    sync.Mutex
	since time.Time // zero: it does not fail
	why   string
}

// note takes how the last try ended.
func (f *failing) note(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case err == nil:
		f.since, f.why = time.Time{}, ""
		return
	case f.since.IsZero():
		f.since = time.Now()
	}
	f.why = errorText(err)
}

// forLong returns for how long every try has failed, and why, if that is at least limit.
func (f *failing) forLong(limit time.Duration) (so time.Duration, why string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.since.IsZero() || time.Since(f.since) < limit {
		return 0, ""
	}
	return time.Since(f.since).Round(time.Second), f.why
}
