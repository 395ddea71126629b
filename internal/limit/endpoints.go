package limit

import (
	"crypto/sha256"
	"encoding/hex"
	"math/rand/v2"
	"sync"
	"time"
)

// Endpoints has the endpoints of a destination that have calls in flight or a state to remember.
//
//	the claim does not know endpoints            it takes due intents; those that may not be called now are postponed in one
//	                                             statement for the batch, before the drain claims again
//	100,000 intents for an endpoint that hangs   each is postponed further than the one before, at the pace at which the
//	                                             endpoint takes calls; past the longest delay they are spread over it
//	a call ends, and others wait                 the drain looks at once for intents that have come due
//	killed between the claim and postponing      as between any claim and its call: they are taken over
//	postponing fails                             they are settled like an outcome, which is tried until it is written
//	its breaker is open                          intents that come due meanwhile are postponed; the first after that is the probe
//	a call of a forgotten endpoint ends          impossible: an endpoint with calls in flight is kept
//	two workers                                  each has its own limit and breakers, as for concurrency
type Endpoints struct {
	per     int
	breaker BreakerConfig

	mu    sync.Mutex
	known map[endpointID]*Endpoint
	swept time.Time
}

// endpointID is a digest of the name: names of any length take the same room, and no name gets into a log.
type endpointID [sha256.Size]byte

// Endpoint is one receiver behind a destination.
type Endpoint struct {
	id      endpointID
	breaker *Breaker

	starts    []time.Time   // of the calls in flight
	took      time.Duration // how long calls took lately
	next      time.Time     // intents that were postponed come due until then
	trouble   time.Time     // since when intents are postponed without a good answer between; zero: no trouble
	postponed int           // how many were postponed since then
	touched   time.Time
}

const (
	// Intents that were postponed come back one at a time, this far apart.
	minPace, brokenPace, maxPace = time.Millisecond, 100 * time.Millisecond, time.Second

	// The longest delay grows with the time that the endpoint has been in trouble, or with eachPostponed for each
	// intent that was postponed since then, whichever is more. It lies between these.
	shortestDelay, longestDelay = time.Minute, 10 * time.Minute
	eachPostponed               = 2 * time.Millisecond

	// maxEndpoints are known at once. An endpoint that had no intent for forgetAfter is forgotten, unless its breaker
	// waits.
	maxEndpoints = 20_000 // more than a destination can have calls in flight
	forgetAfter  = longestDelay + 5*time.Minute
	forgetEvery  = time.Minute
)

// Breaker is the endpoint's own.
func (e *Endpoint) Breaker() *Breaker { return e.breaker }

// Digest stands for the endpoint's name in logs.
func (e *Endpoint) Digest() string { return hex.EncodeToString(e.id[:8]) }

// NewEndpoints allows per calls in flight to each endpoint, and gives each a breaker.
func NewEndpoints(per int, breaker BreakerConfig) *Endpoints {
	return &Endpoints{per: per, breaker: breaker, known: map[endpointID]*Endpoint{}}
}

// Enter begins a call to an endpoint. If there is no room, e is nil: the intent is postponed for delay, and broken
// reports whether its breaker is the reason.
func (es *Endpoints) Enter(name string, now time.Time) (e *Endpoint, epoch int, delay time.Duration, broken bool) {
	es.mu.Lock()
	defer es.mu.Unlock()
	e = es.find(sha256.Sum256([]byte(name)), now)
	e.touched = now
	if len(e.starts) < es.per {
		may := 0
		if may, epoch = e.breaker.Admit(now, 1); may == 1 {
			e.starts = append(e.starts, now)
			return e, epoch, 0, false
		}
	}
	if e.trouble.IsZero() {
		e.trouble = now
	}
	broken = !e.breaker.delayEnds(now).IsZero()
	return nil, 0, e.postpone(now, es.per, broken), broken
}

// postpone returns how long the next intent is postponed.
func (e *Endpoint) postpone(now time.Time, per int, broken bool) time.Duration {
	took, pace := e.took, minPace
	for _, start := range e.starts {
		took = max(took, now.Sub(start))
	}
	if broken {
		pace = brokenPace
	}
	// A little faster than calls end, so that an intent is due whenever a call ends.
	pace = min(max(took/time.Duration(per)*4/5, pace), maxPace)
	if e.next.Before(now) {
		e.next = now
	}
	if until := e.breaker.delayEnds(now); e.next.Before(until) {
		e.next = until
	}
	e.postponed++
	longest := min(max(now.Sub(e.trouble), time.Duration(e.postponed)*eachPostponed, shortestDelay), longestDelay)
	if delay := e.next.Sub(now) + pace; delay < longest {
		e.next = e.next.Add(pace)
		return delay
	}
	return longest/2 + rand.N(longest/2)
}

// Leave ends a call. It reports whether others wait that may be called now.
func (es *Endpoints) Leave(e *Endpoint, start, now time.Time, h Health) (others bool) {
	es.mu.Lock()
	defer es.mu.Unlock()
	for i, s := range e.starts {
		if s.Equal(start) {
			e.starts = append(e.starts[:i], e.starts[i+1:]...)
			break
		}
	}
	if h != NoSign {
		e.took = (3*e.took + now.Sub(start)) / 4
	}
	if h == Good {
		e.trouble, e.postponed = time.Time{}, 0
	}
	e.touched = now
	if len(e.starts) == 0 && !e.next.After(now) && e.breaker.spotless(now) {
		delete(es.known, e.id)
	}
	return e.next.After(now) && e.breaker.Wait(now) == 0
}

// find returns an endpoint, and forgets others that had no intent for long.
func (es *Endpoints) find(id endpointID, now time.Time) *Endpoint {
	if now.Sub(es.swept) > forgetEvery {
		es.swept = now
		for id, e := range es.known {
			if len(e.starts) == 0 && now.Sub(e.touched) > forgetAfter && e.breaker.Wait(now) == 0 {
				delete(es.known, id)
			}
		}
	}
	if e := es.known[id]; e != nil {
		return e
	}
	for id, e := range es.known { // any without calls
		if len(es.known) < maxEndpoints {
			break
		}
		if len(e.starts) == 0 {
			delete(es.known, id)
		}
	}
	e := &Endpoint{id: id, breaker: NewBreaker(es.breaker)}
	es.known[id] = e
	return e
}
