package dispatcher

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/google/uuid"

	"github.com/samekey/samekey/internal/db"
)

// WithStoredEndpoint is [WithEndpoint] for endpoints that are kept in samekey.endpoints, under the action's destination and
// the name that fn returns (package outbox/endpoints puts them there): right before its calls URL and secrets are read into
// [Call.Endpoint], in one statement for all that are claimed at once, and what people changed counts from the next call on.
//
// Nothing is sent to an endpoint that is stopped, by a person or by [Gone], or that is not there, or where fn returns no name:
// the intent is dead with the code "endpoint_stopped" or "endpoint_missing", and a redrive sends it once that was mended, within
// its Deadline; an approval is asked for again then. A look-up is made at a stopped endpoint too. Where the endpoint is not
// there any more, what is unknown is parked in the end.
//
// The policy needs a Deadline: an endpoint that cannot be reached spends no attempts.
func WithStoredEndpoint(fn func(call *Call) string) Option {
	return func(a *action) error {
		if fn == nil {
			return errors.New("WithStoredEndpoint has no function")
		}
		a.endpoint, a.stored = fn, true
		return nil
	}
}

// Endpoint is where a call goes, as it stood right before it.
type Endpoint struct {
	Name    string
	URL     string
	Secrets Secrets // sign the call, each
}

// Secrets are the texts that sign a call. Printed, logged or encoded they read "[secrets]".
type Secrets []string

const hiddenSecrets = "[secrets]"

// Format writes "[secrets]", whatever the verb.
func (Secrets) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte(hiddenSecrets)) }

// MarshalText returns "[secrets]".
func (Secrets) MarshalText() ([]byte, error) { return []byte(hiddenSecrets), nil }

// storedEndpoint is an endpoint, and of which version it was read.
type storedEndpoint struct {
	Endpoint
	version uuid.UUID
	stopped bool
}

// The codes of intents that name an endpoint to which nothing is sent.
const (
	codeEndpointStopped = "endpoint_stopped"
	codeEndpointMissing = "endpoint_missing"
)

// maxEndpointName is that of the table.
const maxEndpointName = 255

var errNoEndpoint = errors.New("the endpoint that the intent names is not in samekey.endpoints: put it there (outbox/endpoints), then redrive")

// readEndpoints reads where the calls of a claim go, in one statement.
func (d *destination) readEndpoints(ctx context.Context, claims []*claim) {
	p := db.EndpointsCallParams{Destination: d.name}
	for _, c := range claims {
		c.endpointErr = errNoEndpoint
		if isEndpointName(c.endpointName) {
			p.Names = append(p.Names, c.endpointName)
		}
	}
	if len(p.Names) == 0 {
		return
	}
	slices.Sort(p.Names)
	p.Names = slices.Compact(p.Names)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), settleTimeout)
	defer cancel()
	rows, err := d.node.q.EndpointsCall(ctx, p)
	found := map[string]*storedEndpoint{}
	for _, row := range rows {
		found[row.Name] = &storedEndpoint{Endpoint{Name: row.Name, URL: row.Url, Secrets: row.Secrets}, row.Version, row.Stopped}
	}
	for _, c := range claims {
		if c.endpoint = found[c.endpointName]; c.endpoint != nil {
			c.endpointErr = nil
		} else if err != nil && isEndpointName(c.endpointName) {
			c.endpointErr = err
		}
	}
}

// uncallable is how many of the claims lead to no call by their endpoints.
func uncallable(claims []*claim) (n int) {
	for _, c := range claims {
		if c.endpointErr != nil || c.endpoint.stopped && c.Status != statusUnknown {
			n++
		}
	}
	return n
}

func isEndpointName(name string) bool {
	return name != "" && len(name) <= maxEndpointName && utf8.ValidString(name) && !strings.ContainsRune(name, 0)
}

// mayCall says whether an attempt's endpoint may be called. Where it may not nothing is sent, and s says why.
func (n *node) mayCall(ctx context.Context, c *claim) (s settlement, ok bool) {
	row := &c.OutboxQueueClaimRow
	switch {
	case errors.Is(c.endpointErr, errNoEndpoint):
		return c.action.deadUnsent(row, codeEndpointMissing, errNoEndpoint), false
	case c.endpointErr != nil:
		return n.notSent(ctx, c, "dispatcher: the endpoint could not be read, nothing was sent", c.endpointErr), false
	case c.endpoint != nil && c.endpoint.stopped:
		return c.action.deadUnsent(row, codeEndpointStopped, errors.New("the endpoint is stopped: start it (outbox/endpoints), then redrive")), false
	}
	return settlement{}, true
}

// stopIfGone stops the endpoint that said that it wants no more calls, if it is still the one that was called.
func (n *node) stopIfGone(c *claim, err error) {
	if c.endpoint == nil || err == nil || classify(err, false).verdict != verdictGone {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(n.calls), settleTimeout)
	defer cancel()
	reason := or(clean(withoutURL(err), errorLimit), "the endpoint wants no more calls")
	stopped, err := n.q.EndpointsGone(ctx, db.EndpointsGoneParams{Destination: c.action.destination(), Name: c.endpoint.Name, Version: c.endpoint.version, Reason: &reason})
	attrs := append(c.attrs(), c.where()...)
	switch {
	case err != nil: // the next call will be told the same
		n.log.Warn("dispatcher: an endpoint wants no more calls and could not be stopped", append(attrs, slog.String("error", errorText(err)))...)
	case stopped > 0:
		n.log.Warn("dispatcher: an endpoint wants no more calls and is stopped", attrs...)
	}
}
