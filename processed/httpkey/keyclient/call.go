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

	"github.com/samekey/samekey/internal/retryafter"
)

// call is one logical request.
type call struct {
	Transport               // with its defaults
	req       *http.Request // the caller's: read, never changed
	sent      *http.Request // req with the key, without a body
	key       string        // the header's value
	attempts  int           // handed to Base, each of them sent once
	waits     int           // attempts that were told to wait
	waiting   time.Time     // since the first of them
}

// newCall returns req's call, or one that can only fail and the reason.
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
		return c, fmt.Errorf("%w (it has trailers, which are known once it was read)", ErrNotReplayable)
	}
	c.sent = withoutHeader(req, c.Header)
	c.sent.Body, c.sent.GetBody = nil, nil
	c.sent.Header.Set(c.Header, c.key)
	return c, nil
}

func (c *call) run(ctx context.Context) (*http.Response, error) {
	var last error // what came of the attempt before
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
			sleep(ctx, wait)
		}
	}
}

// inFlight is what an answer that tells to wait comes to: how long, and whether
// there is still time for it.
func (c *call) inFlight(told time.Duration) (wait time.Duration, again bool) {
	if c.waits == 0 {
		c.waiting = time.Now()
	}
	c.waits++
	left := c.InFlight - time.Since(c.waiting)
	// Told nothing, it asks ever more seldom, up to about once in a second.
	ceiling := c.Backoff
	for waits := c.waits; waits > 1 && ceiling < time.Second; waits-- {
		ceiling *= 2
	}
	ceiling = min(ceiling, max(c.Backoff, time.Second), c.MaxBackoff)
	return max(told, min(rand.N(ceiling), left)), left >= told && left > 0
}

// counted is how many attempts count: an answer that only says to wait does not.
func (c *call) counted() int { return c.attempts - c.waits }

// next returns the request of the next attempt, which net/http can send once.
func (c *call) next(ctx context.Context) (*http.Request, error) {
	out := c.sent.Clone(ctx)
	if out.Body = c.req.Body; !bodyless(c.req.Body) {
		var err error
		if out.Body, err = c.req.GetBody(); err != nil {
			return nil, err
		}
	}
	if bodyless(out.Body) {
		// Without GetBody net/http cannot send a body again. Where there is none, it
		// looks for these names, as they are spelled here.
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

// again says whether the request is sent again after this answer, and how long
// the answer asks to wait: the table of the package comment.
func (c *call) again(resp *http.Response) (wait time.Duration, again bool) {
	if strings.EqualFold(resp.Header.Get("Idempotent-Replayed"), "true") {
		return 0, false
	}
	switch status := resp.StatusCode; {
	case status == http.StatusRequestTimeout, status == http.StatusTooEarly, status == http.StatusTooManyRequests:
	case status >= 500: // all of them: which ones are final is the server's own affair
	case status == http.StatusConflict && resp.Header["Retry-After"] != nil:
	default:
		return 0, false
	}
	wait, told := retryafter.Read(resp.Header, time.Now())
	return wait, !told || wait <= c.MaxWait
}

// backoff draws the wait after as many attempts as were made.
func (c *call) backoff() time.Duration {
	ceiling := c.Backoff
	for range c.counted() - 1 { // waiting for what is in flight is no failure
		if ceiling > c.MaxBackoff/2 {
			ceiling = c.MaxBackoff
			break
		}
		ceiling *= 2
	}
	return rand.N(ceiling)
}

// sleep returns after d, or when ctx has ended.
func sleep(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// An answer that is not returned is read so far and so long, to keep the
// connection.
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

// endedAfter is the context's error, and what came of the last attempt.
func endedAfter(ended, last error) error {
	switch {
	case last == nil:
		return ended
	case errors.Is(last, ended):
		return last
	}
	return fmt.Errorf("%w, after %w", ended, last)
}
