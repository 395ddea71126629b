package wake

const Patience = patience

// Waiting is how many pools have a notification under way.
func Waiting() int {
	mu.Lock()
	defer mu.Unlock()
	return len(waiting)
}
