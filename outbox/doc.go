// Package outbox writes intents, and has what people do to them.
package outbox
