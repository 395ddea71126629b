package dispatcher_test

import (
	"context"
	"strings"
	"testing"

	"github.com/samekey/samekey/dispatcher"
)

func TestAProxyAndAResendContradict(t *testing.T) {
	lookup := withLookup(func(context.Context, *dispatcher.Call, []byte) (dispatcher.Outcome, error) {
		return dispatcher.Outcome{}, nil
	})
	send := func(context.Context, *dispatcher.Call) (dispatcher.Outcome, error) {
		return dispatcher.Delivered(dispatcher.Response{}), nil
	}
	for _, resend := range []bool{false, true} {
		d := dispatcher.New(nil, nil)
		handle(d, "send_mail", dispatcher.Policy{Class: dispatcher.NonIdempotentWrite, ResendAbsent: resend}, send, lookup, func(dl *delivery) { dl.Proxied = true })
		err := d.Check()
		if resend != (err != nil) || err != nil && !strings.Contains(err.Error(), "send_mail: ResendAbsent contradicts the proxy") {
			t.Errorf("ResendAbsent %t: %v", resend, err)
		}
	}
}
