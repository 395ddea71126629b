package dbtest

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// Variant is one way to do the same work.
type Variant struct {
	Name string
	Do   func(context.Context) error
}

// Rounds measures variants in turns, so that all meet the same machine: clients goroutines repeat each for the length of
// a round. The metric of each variant is the median of its rates, as a ratio to the first variant's in the same round.
// That of the first is its median rate, in works per second. With -short, it makes one short round.
func Rounds(b *testing.B, rounds, clients int, length time.Duration, variants ...Variant) {
	b.Helper()
	if testing.Short() {
		rounds, length = 1, 50*time.Millisecond
	}
	rates := make([][]float64, len(variants))
	for range rounds {
		for i, v := range variants {
			rates[i] = append(rates[i], rate(b, clients, length, v.Do))
		}
	}
	for i, v := range variants {
		ratios := make([]float64, rounds)
		for r := range ratios {
			ratios[r] = rates[i][r] / rates[0][r]
		}
		if i == 0 {
			b.ReportMetric(median(rates[0]), v.Name+"/s")
		} else {
			b.ReportMetric(median(ratios), v.Name)
			b.Logf("%s: %.2f times %s, rounds %.2f to %.2f", v.Name, median(ratios), variants[0].Name, slices.Min(ratios), slices.Max(ratios))
		}
	}
	b.ReportMetric(0, "ns/op")
}

func rate(b *testing.B, clients int, length time.Duration, do func(context.Context) error) float64 {
	b.Helper()
	var done atomic.Int64
	var all sync.WaitGroup
	began := time.Now()
	for range clients {
		all.Go(func() {
			for time.Since(began) < length {
				if err := do(context.Background()); err != nil {
					b.Error(err)
					return
				}
				done.Add(1)
			}
		})
	}
	all.Wait()
	if b.Failed() {
		b.FailNow()
	}
	return float64(done.Load()) / time.Since(began).Seconds()
}

func median(of []float64) float64 {
	sorted := slices.Sorted(slices.Values(of))
	return sorted[len(sorted)/2]
}
