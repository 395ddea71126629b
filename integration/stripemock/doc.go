// Package stripemock holds the shipped Stripe configuration to Stripe's own description of its API: its tests run the worker
// with the preset stripe, and the package stripevendor, against stripe-mock, Stripe's test server, which refuses a request
// that its OpenAPI description does not allow. stripe-mock keeps nothing: what it answers is a fixture, and it takes a key
// without remembering it.
package stripemock
