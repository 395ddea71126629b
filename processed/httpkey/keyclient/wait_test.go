package keyclient

import (
	"context"
	"errors"
	"io"
	"math"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// waited runs a POST in a bubble and returns the time between its attempts: the nth answer is that of the given number,
// or none where it is nil.
func waited(t *testing.T, transport Transport, answers ...func() *http.Response) (waits []time.Duration, resp *http.Response, err error) {
	t.Helper()
	var last time.Time
	n := 0
	transport.Base = baseFunc(func(*http.Request) (*http.Response, error) {
		if n++; n > 1 {
			waits = append(waits, time.Since(last))
		}
		last = time.Now()
		if of := answers[min(n, len(answers))-1]; of != nil {
			return of(), nil
		}
		return nil, io.ErrUnexpectedEOF
	})
	resp, err = transport.RoundTrip(newRequest(t, "POST", "http://example.com", order))
	if resp != nil {
		_ = resp.Body.Close()
	}
	return waits, resp, err
}

func answering(status int, headers ...string) func() *http.Response {
	return func() *http.Response { return response(status, headers...) }
}

func TestRetryAfterIsObeyedInFull(t *testing.T) {
	for _, tc := range []struct {
		headers []string
		want    time.Duration
	}{
		{[]string{"Retry-After: 2"}, 2 * time.Second},
		{[]string{"Retry-After: 1.5"}, 2 * time.Second},
		{[]string{"Retry-After: 30"}, 30 * time.Second}, // MaxWait's default
		{[]string{"Retry-After: Sun, 01 Mar 2026 12:00:07 GMT", "Date: Sun, 01 Mar 2026 12:00:00 GMT"}, 7 * time.Second},
		{[]string{"Retry-After: Sat, 01 Jan 2000 00:00:05 GMT"}, 5 * time.Second}, // the bubble's clock starts with 2000
	} {
		for _, status := range []int{409, 429, 503} {
			synctest.Test(t, func(t *testing.T) {
				waits, resp, err := waited(t, Transport{Backoff: time.Nanosecond, MaxBackoff: time.Nanosecond}, answering(status, tc.headers...), answering(200))
				if err != nil || resp.StatusCode != 200 || len(waits) != 1 || waits[0] != tc.want {
					t.Errorf("%d %v: waited %v, want %v (%v)", status, tc.headers, waits, tc.want, err)
				}
			})
		}
	}
}

func TestWaitingInFlightSpendsNoAttempts(t *testing.T) {
	short := Transport{Attempts: 2, Backoff: time.Nanosecond, MaxBackoff: time.Nanosecond}
	running := answering(409, "Retry-After: 2")
	for _, tc := range []struct {
		inFlight time.Duration
		attempts int
		answers  []func() *http.Response
		waits    int
		status   int
	}{
		{0, 2, slices.Repeat([]func() *http.Response{running}, 31), 30, 409}, // a minute
		{0, 2, append(slices.Repeat([]func() *http.Response{running}, 30), answering(201)), 30, 201},
		{10 * time.Second, 2, slices.Repeat([]func() *http.Response{running}, 9), 5, 409},
		{10*time.Second - 1, 2, slices.Repeat([]func() *http.Response{running}, 9), 4, 409},
		{-1, 2, []func() *http.Response{running, answering(201)}, 0, 409},
		{0, 1, []func() *http.Response{running, answering(201)}, 0, 409}, // sent once
		{0, 2, []func() *http.Response{running, answering(503), running, answering(201)}, 3, 201},
		{0, 2, []func() *http.Response{running, answering(503), running, answering(503), answering(201)}, 3, 503},
	} {
		synctest.Test(t, func(t *testing.T) {
			short.InFlight, short.Attempts = tc.inFlight, tc.attempts
			waits, resp, err := waited(t, short, tc.answers...)
			if err != nil || resp.StatusCode != tc.status || len(waits) != tc.waits {
				t.Errorf("InFlight %v, Attempts %d: waited %d times, got %v (%v), want %d and %d", tc.inFlight, tc.attempts, len(waits), resp.StatusCode, err, tc.waits, tc.status)
			}
		})
	}
}

func TestOnBothSidesOfMaxWait(t *testing.T) {
	for _, tc := range []struct {
		maxWait    time.Duration
		retryAfter string
		waits      bool
	}{
		{0, "30", true}, {0, "31", false},
		{10 * time.Second, "9", true}, {10 * time.Second, "10", true}, {10 * time.Second, "11", false},
		{9999 * time.Millisecond, "10", false},
		{-1, "0", false}, {-1, "1", false}, {-1, "junk", true},
		{48 * time.Hour, "172800", true}, {48 * time.Hour, "172801", false},
		{math.MaxInt64 - 1, "99999999999999999999", false},
	} {
		synctest.Test(t, func(t *testing.T) {
			waits, resp, err := waited(t, Transport{MaxWait: tc.maxWait}, answering(503, "Retry-After: "+tc.retryAfter), answering(200))
			if err != nil || (len(waits) == 1) != tc.waits || (resp.StatusCode == 200) != tc.waits {
				t.Errorf("MaxWait %v, Retry-After %s: waited %v, got %d (%v)", tc.maxWait, tc.retryAfter, waits, resp.StatusCode, err)
			}
			if !tc.waits && resp.Header.Get("Retry-After") != tc.retryAfter {
				t.Errorf("the answer's header is %v", resp.Header)
			}
		})
	}
}

func TestBackoffIsRandomUpToADoublingCeiling(t *testing.T) {
	for _, tc := range []struct {
		transport Transport
		ceilings  []time.Duration
	}{
		{Transport{}, []time.Duration{200 * time.Millisecond, 400 * time.Millisecond, 800 * time.Millisecond, 1600 * time.Millisecond}},
		{Transport{Attempts: 6, Backoff: 3 * time.Second}, []time.Duration{3 * time.Second, 6 * time.Second, 10 * time.Second, 10 * time.Second, 10 * time.Second}},
		{Transport{Attempts: 3, Backoff: time.Minute}, []time.Duration{time.Minute, time.Minute}},
		{Transport{Attempts: 4, Backoff: math.MaxInt64/4 + 1, MaxBackoff: math.MaxInt64}, []time.Duration{math.MaxInt64 / 4, math.MaxInt64 / 2, math.MaxInt64}},
	} {
		for _, first := range []func() *http.Response{nil, answering(500), answering(503, "Retry-After: -1.5")} {
			longest := make([]time.Duration, len(tc.ceilings))
			for range 200 {
				synctest.Test(t, func(t *testing.T) {
					waits, _, _ := waited(t, tc.transport, first)
					if len(waits) != len(tc.ceilings) {
						t.Fatalf("waited %v, want %d times", waits, len(tc.ceilings))
					}
					for i, wait := range waits {
						if wait < 0 || wait > tc.ceilings[i] {
							t.Errorf("wait %d is %v, more than %v", i+1, wait, tc.ceilings[i])
						}
						longest[i] = max(longest[i], wait)
					}
				})
			}
			// Full jitter: that none of 200 is in the upper quarter has a chance of 10^-25.
			for i, wait := range longest {
				const century = 100 * 365 * 24 * time.Hour // several such waits in a row do not fit a timer, which cuts them
				if wait < tc.ceilings[i]/4*3 && tc.ceilings[i] < century {
					t.Errorf("of 200, the longest wait %d is %v, ceiling %v", i+1, wait, tc.ceilings[i])
				}
			}
		}
	}
}

func TestLongerOfBackoffAndRetryAfterCounts(t *testing.T) {
	above := 0
	for range 100 {
		synctest.Test(t, func(t *testing.T) {
			waits, _, _ := waited(t, Transport{Backoff: 10 * time.Second}, answering(503, "Retry-After: 5"), answering(200))
			if waits[0] < 5*time.Second || waits[0] > 10*time.Second {
				t.Errorf("waited %v", waits[0])
			}
			if waits[0] > 5*time.Second {
				above++
			}
		})
	}
	if above == 0 || above == 100 {
		t.Errorf("%d of 100 waits are longer than the Retry-After", above)
	}
}

func TestNoWaitAfterTheLastAttempt(t *testing.T) {
	for _, of := range []func() *http.Response{nil, answering(503, "Retry-After: 20")} {
		synctest.Test(t, func(t *testing.T) {
			began := time.Now()
			_, _, _ = waited(t, Transport{Attempts: 1, Backoff: time.Hour}, of)
			if took := time.Since(began); took != 0 {
				t.Errorf("took %v", took)
			}
		})
	}
}

func TestADeadlineEndsTheWaitAtOnce(t *testing.T) {
	for _, base := range []baseFunc{
		func(*http.Request) (*http.Response, error) { return response(503, "Retry-After: 20"), nil },
		func(*http.Request) (*http.Response, error) { return nil, io.ErrUnexpectedEOF },
	} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
			defer cancel()
			began := time.Now()
			// Drawn below a millisecond, the wait would end first: once in 3.6 million.
			transport := &Transport{Base: base, Backoff: time.Hour}
			_, err := transport.RoundTrip(newRequest(t, "POST", "http://example.com", order).WithContext(ctx))
			failed := errorOf(t, err)
			if took := time.Since(began); took != time.Millisecond || !errors.Is(err, context.DeadlineExceeded) || failed.Attempts != 1 || !failed.Timeout() {
				t.Errorf("took %v: %v", took, err)
			}
			if text := err.Error(); !strings.Contains(text, "an answer of 503") && !strings.Contains(text, "unexpected EOF") {
				t.Errorf("says nothing of what came before: %v", err)
			}
		})
	}
}

func TestAContextThatEndsInTheLastAttemptIsInTheError(t *testing.T) {
	for _, cause := range []error{errors.New("shutting down"), context.Canceled} {
		ctx, cancel := context.WithCancelCause(t.Context())
		transport := &Transport{Attempts: 1, Base: baseFunc(func(*http.Request) (*http.Response, error) {
			cancel(cause)
			return nil, cause // as http.Transport does
		})}
		_, err := transport.RoundTrip(newRequest(t, "POST", "http://example.com", order).WithContext(ctx))
		if !errors.Is(err, context.Canceled) || !errors.Is(err, cause) || strings.Count(err.Error(), "context canceled") != 1 {
			t.Errorf("%v", err)
		}
	}
}
