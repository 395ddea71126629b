package httpvendor

import (
	"time"

	"github.com/samekey/samekey/dispatcher"
)

// Stripe is what is known of Stripe's API v1.
func Stripe() Destination {
	return Destination{Vendor: dispatcher.Vendor{
		Key:    dispatcher.KeyRules{Place: dispatcher.KeyInHeader, Name: "Idempotency-Key", MaxLength: 255},
		Window: 24 * time.Hour, Replay: dispatcher.ReplayAnswer,
	}}
}
