package dispatcher

import "errors"

// WithEndpoint says which of many independent endpoints behind an action a call goes to, such as the receiver of a webhook,
// so that one that hangs or fails does not hold up the others: at most [Limits.PerEndpoint] calls are under way to each in
// this process, and each has a breaker of its own, by the destination's rules. fn is called after each claim, before a look-up
// too; it must not call out. It returns a name, such as a host or the id of a receiver, from the payload or a header; an
// empty one, or a panic, means that the call is no endpoint's and goes by the destination's concurrency alone.
//
// An intent whose endpoint is busy or fails is put off: it is due again later, unsent, with nothing spent, no line in its
// history and no slot taken. The delays grow with what waits for the endpoint, up to 1 minute, and up to 10 where it has
// been in trouble for long or more than 30,000 wait. Within them intents of one endpoint overtake each other, unless they have an ordering key.
func WithEndpoint(fn func(call *Call) string) Option {
	return func(a *action) error {
		if fn == nil {
			return errors.New("WithEndpoint has no function")
		}
		a.endpoint = fn
		return nil
	}
}
