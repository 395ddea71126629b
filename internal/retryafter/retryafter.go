// Package retryafter reads the Retry-After header of an HTTP answer.
package retryafter

import (
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// LongestUndated is the longest wait until a date that no Date header stands beside: such a wait is counted by this
// process's clock, which may be wrong by any amount.
const LongestUndated = time.Hour

// Read returns how long the answer asks to wait: seconds, or the time until a date in one of HTTP's three forms. A
// fraction of a second is rounded up. A date counts from the answer's own Date, since the other side's clock is its
// own; where there is none it counts from now, and the wait is at most [LongestUndated]. Of several values, in one
// header or in many, the longest wait counts. What is past is zero; what is longer than a Duration holds (292 years) is
// the longest Duration. Callers set their own bound.
//
// also are further values, from elsewhere in the answer, that count as those of the header do.
//
// ok is false where no value can be understood, such as "-5", "120junk" or "soon".
func Read(header http.Header, now time.Time, also ...string) (wait time.Duration, ok bool) {
	date, err := http.ParseTime(header.Get("Date"))
	dated := err == nil
	if dated {
		now = date
	}
	for _, text := range slices.Concat(header.Values("Retry-After"), also) {
		if at, err := http.ParseTime(strings.TrimSpace(text)); err == nil {
			until := max(at.Sub(now), 0)
			if !dated {
				until = min(until, LongestUndated)
			}
			wait, ok = max(wait, until), true
			continue
		}
		for part := range strings.SplitSeq(text, ",") {
			if d, fits := seconds(strings.TrimSpace(part)); fits {
				wait, ok = max(wait, d), true
			}
		}
	}
	return wait, ok
}

// seconds reads digits, and a fraction behind a point where there is one. It takes no sign and no exponent.
func seconds(text string) (d time.Duration, ok bool) {
	whole, fraction, hasPoint := strings.Cut(text, ".")
	if !digits(whole) || hasPoint && !digits(fraction) {
		return 0, false
	}
	n, err := strconv.ParseInt(whole, 10, 64) // only its range can be wrong
	if strings.Trim(fraction, "0") != "" && n < math.MaxInt64 {
		n++
	}
	if err != nil || n > int64(math.MaxInt64/time.Second) {
		return math.MaxInt64, true
	}
	return time.Duration(n) * time.Second, true
}

func digits(text string) bool { return text != "" && strings.Trim(text, "0123456789") == "" }
