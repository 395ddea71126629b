// Package retryafter reads the Retry-After header of an HTTP answer.
package retryafter

import (
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Read returns how long the answer asks to wait: seconds, or the time until a date in one of HTTP's three forms, counted
// from the answer's own Date where it has one, since the other side's clock is its own, else from now. What is past is
// zero; what is longer than a Duration holds (292 years) is the longest Duration; callers set their own bound.
//
// ok is false where there is nothing that can be understood: no header, two, "-5", "1.5", "120junk".
func Read(header http.Header, now time.Time) (wait time.Duration, ok bool) {
	values := header.Values("Retry-After")
	if len(values) != 1 {
		return 0, false
	}
	text := strings.TrimSpace(values[0])
	if text != "" && strings.Trim(text, "0123456789") == "" {
		seconds, err := strconv.ParseInt(text, 10, 64) // only its range can be wrong
		if err != nil || seconds > int64(math.MaxInt64/time.Second) {
			return math.MaxInt64, true
		}
		return time.Duration(seconds) * time.Second, true
	}
	at, err := http.ParseTime(text)
	if err != nil {
		return 0, false
	}
	if date, err := http.ParseTime(header.Get("Date")); err == nil {
		now = date
	}
	return max(at.Sub(now), 0), true
}
