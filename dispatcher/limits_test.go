package dispatcher_test

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/samekey/samekey/dispatcher"
)

func TestCheckReturnsEveryContradictionOfLimits(t *testing.T) {
	for want, limits := range map[string]dispatcher.Limits{
		"Concurrency 10001 is outside":                     {Concurrency: 10_001},
		"Rate -1 is outside":                               {Rate: -1},
		"Rate NaN is outside":                              {Rate: math.NaN()},
		"Rate +Inf is outside":                             {Rate: math.Inf(1)},
		"Rate 100000.5 is outside":                         {Rate: 100_000.5},
		"Rate 1e-05 is outside":                            {Rate: 1e-5},
		"Burst -1 is outside":                              {Rate: 1, Burst: -1},
		"Burst 1000001 is outside":                         {Rate: 1, Burst: 1_000_001},
		"Burst 5 has no meaning without Rate":              {Burst: 5},
		"BreakDelay and MaxBreakDelay have no meaning":     {BreakAfter: -1, BreakDelay: time.Second},
		"BreakDelay 2s is outside 1ms to MaxBreakDelay 1s": {BreakDelay: 2 * time.Second, MaxBreakDelay: time.Second},
		"BreakDelay -1ns is outside":                       {BreakDelay: -1},
		"MaxBreakDelay 1h0m0.000000001s is longer":         {MaxBreakDelay: time.Hour + 1},
		"PerEndpoint 9 is outside 1 to Concurrency 8":      {Concurrency: 8, PerEndpoint: 9},
		"PerEndpoint -1 is outside":                        {PerEndpoint: -1},
		"PerEndpoint 2 has no meaning":                     {PerEndpoint: 2},
	} {
		if err := checked(limits); err == nil || !strings.Contains(err.Error(), `destination "bank": `+want) {
			t.Errorf("%+v: %v, want %q", limits, err, want)
		}
	}
	for _, limits := range []dispatcher.Limits{
		{}, {Rate: 1.0 / 86400}, {Rate: 100_000, Burst: 1_000_000}, {BreakAfter: -1}, {BreakDelay: time.Hour}, {MaxBreakDelay: time.Millisecond},
		{Concurrency: 1},
	} {
		if err := checked(limits); err != nil {
			t.Errorf("%+v: %v", limits, err)
		}
	}
	if err := checked(dispatcher.Limits{PerEndpoint: 32}, withEndpoint(func(*dispatcher.Call) string { return "" })); err != nil {
		t.Error(err)
	}
}

func checked(limits dispatcher.Limits, options ...option) error {
	d := dispatcher.New(nil, nil)
	d.Destination("bank", limits)
	handle(d, "charge_card", dispatcher.Policy{Class: dispatcher.Read, Destination: "bank"}, ok, options...)
	if err := d.Check(); err != nil {
		return fmt.Errorf("check: %w", err)
	}
	return nil
}
