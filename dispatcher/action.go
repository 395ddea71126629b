package dispatcher

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
)

// action is a registered action. It is a [Delivery] without its type.
type action struct {
	name     string
	version  int    // of its payload
	bytes    bool   // its payload is not decoded
	declared Policy // as it was given to Handle
	policy   Policy // with its defaults; see resolve
	rules    KeyRules

	decode    func(*Call) error
	send      func(context.Context, *Call) (Outcome, error)
	lookup    func(context.Context, *Call) (Outcome, error) // nil: none
	render    func(context.Context, *Call) (Rendered, error)
	apply     func(context.Context, pgx.Tx, Settled) error
	attention func(context.Context, pgx.Tx, Attention) error
	endpoint  func(*Call) string
	stored    bool // endpoint names one of samekey.endpoints
	proxied   bool
	form      form

	applyFunction, attentionFunction string // names of SQL functions, or empty
	bothApply, bothAttention         bool   // a function in Go was given too
}

// destination is the name of the action's destination.
func (a *action) destination() string { return or(a.policy.Destination, a.name) }

// sentTo is where and in which form the action's intents are sent, as the queue keeps it.
func (a *action) sentTo() string {
	return strings.TrimRight(strings.Join([]string{a.destination(), a.form.key, a.form.request}, " "), " ")
}

// form is the digests of [Delivery].KeyForm and RequestForm. Empty: not known.
type form struct{ key, request string }

// differs reports whether a part of the form is known on both sides and is not the same.
func (f form) differs(other form) bool {
	differ := func(a, b string) bool { return a != "" && b != "" && a != b }
	return differ(f.key, other.key) || differ(f.request, other.request)
}

func digest(text string) string {
	if text == "" {
		return ""
	}
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:4])
}

// renders reports whether the action sends more than the payload and the plain delivery key, which never change.
func (a *action) renders() bool { return a.render != nil || !a.rules.fits() }

// keyWindow is the policy's, as queries take it.
func (a *action) keyWindow() (forever bool, window pgtype.Interval) {
	switch w := a.policy.KeyWindow; {
	case w == Forever:
		forever = true
	case w > 0:
		window = pgtype.Interval{Microseconds: w.Microseconds(), Valid: true}
	}
	return forever, window
}
