package httpstatus_test

import (
	"net/http"
	"slices"
	"testing"

	"github.com/samekey/samekey/internal/httpstatus"
)

// A status that proves "not done" clears the mark that a write may have been sent. The test therefore lists each of
// them again.
func TestOnlyTheseStatusesProveThatNothingWasDone(t *testing.T) {
	proofs := []int{400, 401, 402, 403, 404, 405, 407, 410, 411, 413, 414, 415, 416, 417, 421, 422, 426, 428, 429, 431, 451}
	var got []int
	for status := -1; status <= 1100; status++ {
		switch httpstatus.Of(status, false) {
		case httpstatus.NotDone, httpstatus.Denied, httpstatus.Later:
			got = append(got, status)
		}
	}
	if !slices.Equal(got, proofs) {
		t.Errorf("proofs are %v, want %v", got, proofs)
	}
}

func TestMeaningOfEachStatus(t *testing.T) {
	for effect, statuses := range map[httpstatus.Effect][]int{
		httpstatus.Acted:   {200, 201, 202, 203, 204, 205, 208, 226, 299},
		httpstatus.Stuck:   {206, 207, 300, 301, 302, 303, 304, 307, 308, 399, 406, 409, 412},
		httpstatus.Silent:  {-1, 0, 1, 99, 100, 101, 103, 199, 408, 418, 419, 420, 423, 424, 425, 427, 430, 440, 444, 449, 450, 460, 494, 498, 499, 500, 501, 502, 503, 504, 505, 511, 520, 524, 530, 599, 600, 999},
		httpstatus.Denied:  {401, 407},
		httpstatus.Later:   {429},
		httpstatus.NotDone: {400, 402, 403, 404, 405, 410, 413, 417, 421, 422, 428, 431, 451},
	} {
		for _, status := range statuses {
			if got := httpstatus.Of(status, false); got != effect {
				t.Errorf("%d is %s, want %s", status, got, effect)
			}
		}
	}
	for status := range 1000 {
		want := httpstatus.Of(status, false)
		if status == http.StatusForbidden {
			want = httpstatus.Later
		}
		if got := httpstatus.Of(status, true); got != want {
			t.Errorf("%d with Retry-After is %s, want %s", status, got, want)
		}
	}
}

// The binary search needs the order.
func TestTableIsInOrder(t *testing.T) {
	last := 0
	for _, r := range httpstatus.Table {
		if r.From <= last || r.To < r.From || r.Why == "" {
			t.Errorf("%+v after %d", r, last)
		}
		last = r.To
	}
}
