package dispatcher

import (
	"fmt"

	"github.com/samekey/samekey/internal/redact"
)

// panicError is a panic in the application's code. It must not end the worker.
type panicError struct{ value any }

func (e *panicError) Error() string { return fmt.Sprintf("panic: %v", e.value) }

// guard turns a panic into an error. The methods of an error can panic too, such as those of a nil pointer that a
// function returned as an error: so guard reads its text once.
func guard[T any](fn func() (T, error)) (value T, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = &panicError{p}
		}
	}()
	if value, err = fn(); err != nil {
		_ = redact.WithoutURLs(err)
	}
	return value, err
}
