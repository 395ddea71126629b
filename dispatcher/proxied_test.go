package dispatcher_test

import (
	"context"
	"strings"
	"testing"

	"github.com/samekey/samekey/dispatcher"
)

func TestCheckRefusesResendsThroughAProxy(t *testing.T) {
	lookup := dispatcher.WithLookup(func(context.Context, *dispatcher.Call, []byte) (dispatcher.Finding, error) {
		return dispatcher.Finding{}, nil
	})
	handle := func(context.Context, *dispatcher.Call) (dispatcher.Answer, error) { return dispatcher.Answer{}, nil }
	for _, resend := range []bool{false, true} {
		d := dispatcher.New(nil, nil)
		d.Handle("send_mail", dispatcher.Policy{Class: dispatcher.NonIdempotentWrite, ResendAbsent: resend}, handle, lookup, dispatcher.ThroughProxy())
		err := d.Check()
		if resend != (err != nil) || err != nil && !strings.Contains(err.Error(), `"send_mail": ResendAbsent: not allowed with a proxy`) {
			t.Errorf("ResendAbsent %t: %v", resend, err)
		}
	}
}
