package dispatcher

import (
	"context"
	"errors"
	"net"
	"testing"
	"time"

	"github.com/samekey/samekey/internal/limit"
)

func TestHealthOf(t *testing.T) {
	broken := errors.New("connection reset by peer")
	failed := func(err error) Outcome { return conclude(Outcome{}, err, false, false) }
	for _, test := range []struct {
		name    string
		outcome Outcome
		want    limit.Health
	}{
		{"delivered", Delivered(Response{}), limit.Good},
		{"refused", Refused(Response{Code: "card_declined"}), limit.Good},
		{"dead", Dead(Response{Code: "404"}), limit.Good},
		{"stuck", Stuck(Response{Code: "500"}), limit.Good},
		{"later", Retry(Response{}).After(time.Second), limit.Later},
		{"429 for the account", Retry(Response{}).After(time.Second).ForAccount(), limit.Throttled},
		{"429 without a time", Retry(Response{}).ForAccount(), limit.Throttled},
		{"202", Accepted(Response{}), limit.Good},
		{"503", Unknown(Response{Code: "503"}).Because(broken), limit.Bad},
		{"an error", failed(broken), limit.Bad},
		{"timeout", failed(context.DeadlineExceeded), limit.Bad},
		{"unsent", Unsent(broken), limit.Bad},
		{"an error that is ErrUnsent", failed(ErrUnsent), limit.Bad},
		{"a dial", failed(&net.OpError{Op: "dial", Err: broken}), limit.Bad},
		{"401", Denied(Response{Code: "401"}), limit.Denied},
		{"a panic", failed(&panicError{value: "x"}), limit.NoSign},
		{"a stop", failed(context.Canceled), limit.NoSign},
		{"no outcome", failed(nil), limit.NoSign},
		{"absent from a Send", conclude(Absent(Response{}), nil, false, false), limit.NoSign},
		{"a payload that does not decode", Dead(Response{Code: codePayload}).Because(broken), limit.NoSign},
	} {
		if got := healthOf(test.outcome, false); got != test.want {
			t.Errorf("%s: %d, want %d", test.name, got, test.want)
		}
	}
	if got := healthOf(Unknown(Response{Code: "200"}), true); got != limit.Good {
		t.Errorf("an inconclusive lookup: %d", got)
	}
}
