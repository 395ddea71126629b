package httpvendor

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/samekey/samekey/internal/httpstatus"
)

// Statuses is a list of ranges of HTTP statuses, both ends included.
type Statuses [][2]int

// ParseStatuses reads a list such as "200-299, 404".
func ParseStatuses(text string) (Statuses, error) {
	var out Statuses
	for part := range strings.SplitSeq(text, ",") {
		low, high, isRange := strings.Cut(strings.TrimSpace(part), "-")
		if !isRange {
			high = low
		}
		from, err := strconv.Atoi(strings.TrimSpace(low))
		to, err2 := strconv.Atoi(strings.TrimSpace(high))
		if err != nil || err2 != nil {
			return nil, errors.New("use statuses and ranges of them, such as 200-299, 404")
		}
		out = append(out, [2]int{from, to})
	}
	return out, out.check()
}

func (s Statuses) check() error {
	for _, r := range s {
		if r[0] < 200 || r[1] > 599 || r[1] < r[0] {
			return fmt.Errorf("%d-%d is not a range within 200-599", r[0], r[1])
		}
	}
	return nil
}

func (s Statuses) has(status int) bool {
	return slices.ContainsFunc(s, func(r [2]int) bool { return r[0] <= status && status <= r[1] })
}

// common returns the first status that is in both lists.
func (s Statuses) common(other Statuses) (status int, ok bool) {
	for _, r := range s {
		for _, o := range other {
			if first := max(r[0], o[0]); first <= min(r[1], o[1]) {
				return first, true
			}
		}
	}
	return 0, false
}

// defaultDelivered are the statuses by which a vendor reports that it acted, without those that mean accepted.
func defaultDelivered(accepted Statuses) (out Statuses) {
	for status := 200; status <= 299; status++ {
		switch last := len(out) - 1; {
		case accepted.has(status) || httpstatus.Of(status, false) != httpstatus.Acted:
		case last >= 0 && out[last][1] == status-1:
			out[last][1] = status
		default:
			out = append(out, [2]int{status, status})
		}
	}
	return out
}
