package retryafter_test

import (
	"math"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/samekey/samekey/internal/retryafter"
)

var now = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func TestRetryAfterIsReadInAllItsFormsAndNoOthers(t *testing.T) {
	const longest = time.Duration(math.MaxInt64)
	for _, tc := range []struct {
		name, value, date string
		want              time.Duration
		ok                bool
	}{
		{"seconds", "120", "", 2 * time.Minute, true},
		{"spaces", " 120 ", "", 2 * time.Minute, true},
		{"zero", "0", "", 0, true},
		{"IMF-fixdate", "Sun, 01 Mar 2026 12:00:30 GMT", "", 30 * time.Second, true},
		{"RFC 850", "Sunday, 01-Mar-26 12:00:30 GMT", "", 30 * time.Second, true},
		{"asctime", "Sun Mar  1 12:00:30 2026", "", 30 * time.Second, true},
		{"from the other side's clock", "Sun, 01 Mar 2026 13:00:30 GMT", "Sun, 01 Mar 2026 13:00:00 GMT", 30 * time.Second, true},
		{"a Date that is none", "Sun, 01 Mar 2026 12:00:30 GMT", "yesterday", 30 * time.Second, true},
		{"past", "Sun, 01 Mar 2026 11:00:00 GMT", "", 0, true},
		{"far", "Sun, 01 Mar 9999 11:00:00 GMT", "Sun, 01 Mar 2026 13:00:00 GMT", longest, true},
		{"far, and no Date", "Sun, 01 Mar 9999 11:00:00 GMT", "", retryafter.LongestUndated, true},
		{"an hour, and no Date", "Sun, 01 Mar 2026 13:00:00 GMT", "", time.Hour, true},
		{"two hours, and no Date", "Sun, 01 Mar 2026 14:00:00 GMT", "", time.Hour, true},
		{"two hours, and a Date", "Sun, 01 Mar 2026 14:00:00 GMT", "Sun, 01 Mar 2026 12:00:00 GMT", 2 * time.Hour, true},
		{"more than 32 bits", "4294967296", "", 4294967296 * time.Second, true},
		{"the last that fits", "9223372036", "", 9223372036 * time.Second, true},
		{"the first that does not", "9223372037", "", longest, true},
		{"huge", "99999999999999999999999999", "", longest, true},
		{"negative", "-5", "", 0, false},
		{"plus", "+5", "", 0, false},
		{"minus zero", "-0", "", 0, false},
		{"whole with a point", "2.0", "", 2 * time.Second, true},
		{"fraction", "1.5", "", 2 * time.Second, true},
		{"a little more", "1.000000000000000000001", "", 2 * time.Second, true},
		{"less than one", "0.001", "", time.Second, true},
		{"zero with a point", "0.00", "", 0, true},
		{"the last that fits, and more", "9223372036.1", "", longest, true},
		{"huge fraction", "9223372036854775807.9", "", longest, true},
		{"no whole", ".5", "", 0, false},
		{"no fraction", "2.", "", 0, false},
		{"two points", "1.2.3", "", 0, false},
		{"exponent", "1e3", "", 0, false},
		{"hexadecimal", "0x10", "", 0, false},
		{"list", "120, 60", "", 2 * time.Minute, true},
		{"list with junk", "junk, 60,", "", time.Minute, true},
		{"junk", "120junk", "", 0, false},
		{"words", "soon", "", 0, false},
		{"other digits", "１２０", "", 0, false},
		{"empty", "", "", 0, false},
	} {
		header := http.Header{"Retry-After": {tc.value}}
		if tc.date != "" {
			header.Set("Date", tc.date)
		}
		if wait, ok := retryafter.Read(header, now); wait != tc.want || ok != tc.ok {
			t.Errorf("%s: %q is %v, %v; want %v, %v", tc.name, tc.value, wait, ok, tc.want, tc.ok)
		}
	}
	several := http.Header{"Retry-After": {"1", "soon", "Sun, 01 Mar 2026 12:00:30 GMT", "2"}}
	if wait, ok := retryafter.Read(several, now); wait != 30*time.Second || !ok {
		t.Errorf("of several it is %v, %v, want the longest", wait, ok)
	}
	if _, ok := retryafter.Read(http.Header{}, now); ok {
		t.Error("no header is understood")
	}
}

// Whatever comes, the wait is not negative, and is none where the header is not understood; and what consists of digits
// is understood, more of them never being less.
func FuzzRead(f *testing.F) {
	for _, seed := range []string{"", "0", "120", "-5", "1.5", "2.0", "120, 60", "1e3", "120junk", "9223372037", "Sun, 01 Mar 2026 12:00:30 GMT", "Sunday, 01-Mar-26 12:00:30 GMT", "Sun Mar  1 12:00:30 2026"} {
		f.Add(seed, "")
		f.Add(seed, "Sun, 01 Mar 2026 13:00:00 GMT")
		f.Add("Sun, 01 Mar 2026 13:00:00 GMT", seed)
	}
	f.Fuzz(func(t *testing.T, value, date string) {
		header := http.Header{"Retry-After": {value}, "Date": {date}}
		wait, ok := retryafter.Read(header, now)
		if wait < 0 || !ok && wait != 0 {
			t.Errorf("%q at %q is %v, %v", value, date, wait, ok)
		}
		if _, err := http.ParseTime(strings.TrimSpace(value)); err == nil {
			if undated, _ := retryafter.Read(http.Header{"Retry-After": {value}}, now); undated < 0 || undated > retryafter.LongestUndated {
				t.Errorf("%q without a Date is %v", value, undated)
			}
		}
		twice := http.Header{"Retry-After": {value, "7"}, "Date": {date}}
		if more, known := retryafter.Read(twice, now); !known || more != max(wait, 7*time.Second) {
			t.Errorf("%q and 7 are %v, %v", value, more, known)
		}
		if strings.Trim(value, "0123456789") != "" || value == "" {
			return
		}
		header.Set("Retry-After", "1"+value)
		if longer, _ := retryafter.Read(header, now); !ok || longer < wait {
			t.Errorf("%q is %v, %v; with a 1 before it %v", value, wait, ok, longer)
		}
	})
}
