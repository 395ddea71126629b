package keyclient

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"time"

	"github.com/samekey/samekey/internal/backoff"
	"github.com/samekey/samekey/internal/retryafter"
)

// call is one logical request.
type call struct {
	Transport               // with its defaults
	req       *http.Request // the caller's: read, never changed
	sent      *http.Request // req with the key, and without the body
	key       string        // the header's value
	attempts  int           // passed to Base
	waits     int           // attempts that a 409 with Retry-After answered
	waiting   time.Time     // since the first of them
}

// newCall returns req's call. With an error, the call can only be used to report it.
func (t *Transport) newCall(req *http.Request) (*call, error) {
	settings, err := t.resolved()
	c := &call{Transport: settings, req: req}
	if err != nil {
		return c, err
	}
	if c.key, err = c.keyOf(req); err != nil {
		return c, err
	}
	switch {
	case !bodyless(req.Body) && req.GetBody == nil:
		return c, ErrNotReplayable
	case len(req.Trailer) > 0:
		return c, fmt.Errorf("%w (it has trailers, which are unknown until it is read)", ErrNotReplayable)
	}
	c.sent = withoutHeader(req, c.Header)
	c.sent.Body, c.sent.GetBody = nil, nil
	c.sent.Header.Set(c.Header, c.key)
	return c, nil
}

// run makes attempts until there is an answer to return.
func (c *call) run(ctx context.Context) (*http.Response, error) {
	var last error // of the previous attempt
	for {
		if ended := ctx.Err(); ended != nil {
			return nil, c.failed(endedAfter(ended, last))
		}
		if c.counted() == c.Attempts {
			return nil, c.failed(last)
		}
		out, err := c.next(ctx)
		if err != nil {
			return nil, c.failed(fmt.Errorf("GetBody: %w", err))
		}
		c.attempts++
		resp, err := once(c.Base, out)
		wait := time.Duration(0)
		if last = err; err == nil {
			resp.Request = c.sent
			var again bool
			wait, again = c.again(resp)
			if resp.StatusCode == http.StatusConflict && again && c.Attempts > 1 {
				wait, again = c.inFlight(wait)
			} else {
				wait = max(wait, c.backoff())
			}
			if !again || c.counted() == c.Attempts {
				return resp, nil
			}
			drain(resp.Body)
			last = fmt.Errorf("an answer of %d", resp.StatusCode)
		} else {
			wait = c.backoff()
		}
		if c.counted() < c.Attempts {
			_ = backoff.Sleep(ctx, wait) // the loop looks at ctx
		}
	}
}

// inFlight returns how long to wait after an answer that says to wait, and whether there is time for another attempt.
func (c *call) inFlight(told time.Duration) (wait time.Duration, again bool) {
	if c.waits == 0 {
		c.waiting = time.Now()
	}
	c.waits++
	left := c.InFlight - time.Since(c.waiting)
	// Without a stated time the waits grow up to about a second.
	ceiling := min(backoff.Ceiling(c.Backoff, max(c.Backoff, time.Second), c.waits), c.MaxBackoff)
	return max(told, min(rand.N(ceiling), left)), left >= told && left > 0
}

// counted is the number of attempts that count: one that is only told to wait does not.
func (c *call) counted() int { return c.attempts - c.waits }

// next returns the request of the next attempt, in a form that net/http sends only once.
func (c *call) next(ctx context.Context) (*http.Request, error) {
	out := c.sent.Clone(ctx)
	if out.Body = c.req.Body; !bodyless(c.req.Body) {
		var err error
		if out.Body, err = c.req.GetBody(); err != nil {
			return nil, err
		}
	}
	if bodyless(out.Body) {
		// Without GetBody net/http cannot resend a body. Without a body it resends a request that has these headers,
		// spelled this way.
		for _, name := range []string{"Idempotency-Key", "X-Idempotency-Key"} {
			if values, ok := out.Header[name]; ok {
				delete(out.Header, name)
				out.Header[strings.ToLower(name)] = values
			}
		}
	}
	return out, nil
}

func bodyless(body io.ReadCloser) bool { return body == nil || body == http.NoBody }

// again reports whether the request is retried after this answer, and how long the answer asks to wait. It implements
// the table in the package comment.
func (c *call) again(resp *http.Response) (wait time.Duration, again bool) {
	if strings.EqualFold(resp.Header.Get("Idempotent-Replayed"), "true") {
		return 0, false
	}
	switch status := resp.StatusCode; {
	case status == http.StatusRequestTimeout, status == http.StatusTooEarly, status == http.StatusTooManyRequests:
	case status >= 500: // all of them: which ones are final depends on the server
	case status == http.StatusConflict && resp.Header["Retry-After"] != nil:
	default:
		return 0, false
	}
	wait, told := retryafter.Read(resp.Header, time.Now())
	return wait, !told || wait <= c.MaxWait
}

// backoff returns a random wait after the attempts so far. Waiting for a request in flight is not a failure.
func (c *call) backoff() time.Duration {
	return rand.N(backoff.Ceiling(c.Backoff, c.MaxBackoff, c.counted()))
}

// An answer that is not returned is read up to these limits, so that its connection can be reused.
const (
	drainLimit = 256 << 10
	drainTime  = 250 * time.Millisecond
)

func drain(body io.ReadCloser) {
	if body == nil {
		return
	}
	stop := time.AfterFunc(drainTime, func() { _ = body.Close() })
	_, _ = io.CopyN(io.Discard, body, drainLimit)
	stop.Stop()
	_ = body.Close()
}

// endedAfter returns the context's error with the error of the last attempt.
func endedAfter(ended, last error) error {
	switch {
	case last == nil:
		return ended
	case errors.Is(last, ended):
		return last
	}
	return fmt.Errorf("%w, after %w", ended, last)
}
