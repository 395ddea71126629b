package dispatcher

import "context"

// Run ...
func (d *Dispatcher) Run(ctx context.Context) error { panic("soon") }

// Summary counts what a [Dispatcher.Drain] came to.
type Summary struct {
	Delivered, Refused, Retried, Unknown, Parked, Dead, AwaitingApproval int
}

// Drain ...
func (d *Dispatcher) Drain(ctx context.Context) (Summary, error) { panic("soon") }
