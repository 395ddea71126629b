package dbtest

// Waiting reports whether a test waits for the log.
func (l *Log) Waiting() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.changed != nil
}
