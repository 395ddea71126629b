package dispatcher

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/samekey/samekey/internal/db"
)

// maxEndpointName is that of the table.
const maxEndpointName = 255

var errNoEndpoint = errors.New("the endpoint that the intent names is not in samekey.endpoints: put it there (outbox/endpoints), then redrive")

// readEndpoints reads where the calls of a claim go, in one statement.
func (d *destination) readEndpoints(ctx context.Context, claims []*claim) {
	p := db.EndpointsForCallsParams{Destination: d.name}
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
	rows, err := d.core.q.EndpointsForCalls(ctx, p)
	found := map[string]*storedEndpoint{}
	for _, row := range rows {
		e := &storedEndpoint{Endpoint{Name: row.Name, URL: row.Url, Secrets: row.Secrets}, row.Version, row.Stopped}
		if len(row.Headers) > len("{}") {
			if err = json.Unmarshal(row.Headers, &e.Headers); err != nil { // the table's CHECK prevents it
				continue
			}
		}
		found[row.Name] = e
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

// stopIfGone stops the endpoint that said that it wants no more calls, if it is still the one that was called.
func (d *destination) stopIfGone(c *claim, outcome Outcome) {
	if c.endpoint == nil || outcome.kind != outcomeGone {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(d.core.calls), settleTimeout)
	defer cancel()
	reason := or(clean(outcome.text(), errorLimit), "the endpoint wants no more calls")
	stopped, err := d.core.q.EndpointsStopGone(ctx, db.EndpointsStopGoneParams{Destination: c.action.destination(), Name: c.endpoint.Name, Version: c.endpoint.version, Reason: &reason})
	attrs := append(c.attrs(), c.where()...)
	switch {
	case err != nil: // the next call will be told the same
		d.core.log.Warn("dispatcher: an endpoint wants no more calls and could not be stopped", append(attrs, slog.String("error", errorText(err)))...)
	case stopped > 0:
		d.core.log.Warn("dispatcher: an endpoint wants no more calls and is stopped", attrs...)
	}
}
