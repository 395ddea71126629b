package dispatcher

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"time"
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
	found := map[string]endpointRead{}
	for _, row := range rows {
		e, err := newStoredEndpoint(row)
		found[row.Name] = endpointRead{e, err}
	}
	for _, c := range claims {
		if read, ok := found[c.endpointName]; ok {
			c.endpoint, c.endpointErr = read.endpoint, read.err
		} else if err != nil && isEndpointName(c.endpointName) {
			c.endpointErr = err
		}
	}
}

// endpointRead is an endpoint of the database, or why it cannot be used.
type endpointRead struct {
	endpoint *storedEndpoint
	err      error
}

func newStoredEndpoint(row db.EndpointsForCallsRow) (*storedEndpoint, error) {
	e := &storedEndpoint{Endpoint{Name: row.Name, URL: row.Url, Secrets: row.Secrets}, row.Version, row.Stopped, time.Duration(row.FailingSeconds * float64(time.Second))}
	if len(row.Headers) <= len("{}") {
		return e, nil
	}
	if json.Unmarshal(row.Headers, &e.Headers) != nil { // whose error would quote a value. The table's CHECK prevents it
		return nil, errors.New("the headers of the endpoint are not an object of strings: put it again (outbox/endpoints)")
	}
	return e, nil
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

// noteEndpoint writes down what an attempt's outcome says about its endpoint: that it wants no more calls, that it fails,
// or that it works again. queries/endpoints.sql has the interleavings.
func (d *destination) noteEndpoint(c *claim, outcome Outcome, works, fails bool) {
	if c.endpoint == nil {
		return
	}
	p := db.EndpointsStopParams{Destination: c.action.destination(), Name: c.endpoint.Name, Version: c.endpoint.version, IntentID: c.ID, Action: c.action.name}
	switch {
	case outcome.kind == outcomeGone:
		d.stopEndpoint(c, p, or(clean(outcome.text(), errorLimit), "the endpoint wants no more calls"))
	case d.stopAfter == 0 || c.Status == statusUnknown || d.core.calls.Err() != nil:
	case works && c.endpoint.failing >= 0:
		d.writeHealth(c, func(ctx context.Context) error {
			return d.core.q.EndpointsWorks(ctx, db.EndpointsWorksParams{Destination: p.Destination, Name: p.Name, Version: p.Version})
		})
	case fails && c.endpoint.failing < 0:
		d.writeHealth(c, func(ctx context.Context) error {
			return d.core.q.EndpointsFailing(ctx, db.EndpointsFailingParams{Destination: p.Destination, Name: p.Name, Version: p.Version})
		})
	case fails && c.endpoint.failing >= d.stopAfter:
		p.FailingUs = d.stopAfter.Microseconds()
		d.stopEndpoint(c, p, or(clean(outcome.text(), errorLimit/2), or(outcome.response.Code, outcome.kind)))
	}
}

// stopEndpoint stops the endpoint of an attempt, if it is still the one that was called.
func (d *destination) stopEndpoint(c *claim, p db.EndpointsStopParams, reason string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(d.core.calls), settleTimeout)
	defer cancel()
	p.Reason = reason
	line := "dispatcher: an endpoint wants no more calls and is stopped"
	if p.FailingUs > 0 {
		line = "dispatcher: an endpoint fails for longer than StopEndpointAfter and is stopped"
	}
	stopped, err := d.core.q.EndpointsStop(ctx, p)
	attrs := append(c.attrs(), c.where()...)
	switch {
	case err != nil: // the next call will be told the same
		d.core.log.Warn("dispatcher: an endpoint that wants no more calls, or fails, could not be stopped", append(attrs, slog.String("error", errorText(err)))...)
	case stopped > 0:
		d.core.log.Warn(line, attrs...)
	}
}

// writeHealth writes that an endpoint began to fail, or works again. The next attempt finds out the same.
func (d *destination) writeHealth(c *claim, write func(context.Context) error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(d.core.calls), settleTimeout)
	defer cancel()
	if err := write(ctx); err != nil {
		d.core.log.Warn("dispatcher: the health of an endpoint could not be written", append(c.attrs(), slog.String("error", errorText(err)))...)
	}
}
