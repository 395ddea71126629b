package wake

const Patience = patience

// Waiting is how many pools have a notification in flight.
func Waiting() int {
	mu.Lock()
	defer mu.Unlock()
	return len(waiting)
}
