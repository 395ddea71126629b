// Package stripemock tests the Stripe integrations against stripe-mock, Stripe's own test server. It tests the worker
// with the preset stripe, and package stripevendor. stripe-mock refuses a request that Stripe's OpenAPI description
// does not allow. It stores nothing: its answers are fixtures, and it ignores idempotency keys.
package stripemock
