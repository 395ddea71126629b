package dispatcher

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/samekey/samekey/internal/db"
)

// endpoints are those of a lane that have calls under way, or that there is something to remember of.
//
//	the claim does not know endpoints            it takes what is due, and what may not be called now is put off in one
//	                                             statement for the batch, before the drain claims again
//	100,000 intents for one that hangs           each is put off further than the one before, at the pace at which the
//	                                             endpoint takes calls; past the longest delay they are spread over it
//	a call ends, and others wait                 the lane looks at once for those that have come due
//	killed between the claim and putting off     as between any claim and its call: they are taken over
//	putting off fails                            they go the way of each outcome, which is tried until it is written
//	its breaker is open                          those that come due meanwhile are put off; the first after that is the probe
//	a call of a forgotten endpoint ends          none is: what has calls under way is kept
//	two workers                                  each has its own limit and breaker, as for concurrency
type endpoints struct {
	per  int
	make func() *breaker

	mu    sync.Mutex
	known map[endpointID]*endpoint
	swept time.Time
}

// endpointID is a digest, so that a name of any length takes the same room, and none comes into a log.
type endpointID [sha256.Size]byte

type endpoint struct {
	id      endpointID
	breaker *breaker

	starts  []time.Time   // of the calls under way
	took    time.Duration // a call, of late
	next    time.Time     // what was put off is due until then
	trouble time.Time     // since when intents were put off without a good answer between; zero: not
	off     int           // how many were, since then
	touched time.Time
}

const (
	// What is put off for an endpoint comes back one at a time, this far apart.
	minPace, brokenPace, maxPace = time.Millisecond, 100 * time.Millisecond, time.Second

	// An intent is put off for no longer than the endpoint has been in trouble, or than eachPutOff for each that was put off
	// since then, whichever is more; and that is this at least and at most.
	shortPutOff, longPutOff = time.Minute, 10 * time.Minute
	eachPutOff              = 2 * time.Millisecond

	// maxEndpoints are known at once. One that nothing came for in forgetAfter is forgotten, unless it may not be called yet.
	maxEndpoints = 20_000 // more than a lane can have calls under way
	forgetAfter  = longPutOff + 5*time.Minute
	forgetEvery  = time.Minute
)

func newEndpoints(l Limits, draw func(time.Duration) time.Duration) *endpoints {
	return &endpoints{per: l.PerEndpoint, known: map[endpointID]*endpoint{}, make: func() *breaker { return newBreaker(l, draw) }}
}

// enter begins a call to an endpoint, or says for how long it is put off, and whether that is since its breaker is open.
func (es *endpoints) enter(id endpointID, now time.Time) (e *endpoint, epoch int, delay time.Duration, broken bool) {
	es.mu.Lock()
	defer es.mu.Unlock()
	e = es.find(id, now)
	e.touched = now
	if len(e.starts) < es.per {
		may := 0
		if may, epoch = e.breaker.admit(now, 1); may == 1 {
			e.starts = append(e.starts, now)
			return e, epoch, 0, false
		}
	}
	if e.trouble.IsZero() {
		e.trouble = now
	}
	broken = !e.breaker.delayEnds(now).IsZero()
	return nil, 0, e.putOff(now, es.per, broken), broken
}

// putOff is how long the next intent is put off.
func (e *endpoint) putOff(now time.Time, per int, broken bool) time.Duration {
	took, pace := e.took, minPace
	for _, start := range e.starts {
		took = max(took, now.Sub(start))
	}
	if broken {
		pace = brokenPace
	}
	// A little faster than calls end, so that there is always one due when one does.
	pace = min(max(took/time.Duration(per)*4/5, pace), maxPace)
	if e.next.Before(now) {
		e.next = now
	}
	if until := e.breaker.delayEnds(now); e.next.Before(until) {
		e.next = until
	}
	e.off++
	longest := min(max(now.Sub(e.trouble), time.Duration(e.off)*eachPutOff, shortPutOff), longPutOff)
	if delay := e.next.Sub(now) + pace; delay < longest {
		e.next = e.next.Add(pace)
		return delay
	}
	return longest/2 + rand.N(longest/2)
}

// leave ends a call. It says whether others wait that may be called now.
func (es *endpoints) leave(e *endpoint, start, now time.Time, h health) (others bool) {
	es.mu.Lock()
	defer es.mu.Unlock()
	for i, s := range e.starts {
		if s.Equal(start) {
			e.starts = append(e.starts[:i], e.starts[i+1:]...)
			break
		}
	}
	if h != healthNone {
		e.took = (3*e.took + now.Sub(start)) / 4
	}
	if h == healthGood {
		e.trouble, e.off = time.Time{}, 0
	}
	e.touched = now
	if len(e.starts) == 0 && !e.next.After(now) && e.breaker.spotless(now) {
		delete(es.known, e.id)
	}
	return e.next.After(now) && e.breaker.wait(now) == 0
}

// find returns an endpoint, and forgets others that nothing came for.
func (es *endpoints) find(id endpointID, now time.Time) *endpoint {
	if now.Sub(es.swept) > forgetEvery {
		es.swept = now
		for id, e := range es.known {
			if len(e.starts) == 0 && now.Sub(e.touched) > forgetAfter && e.breaker.wait(now) == 0 {
				delete(es.known, id)
			}
		}
	}
	if e := es.known[id]; e != nil {
		return e
	}
	for id, e := range es.known { // any that is not in use
		if len(es.known) < maxEndpoints {
			break
		}
		if len(e.starts) == 0 {
			delete(es.known, id)
		}
	}
	e := &endpoint{id: id, breaker: es.make()}
	es.known[id] = e
	return e
}

// visit is a claim's way past a breaker, and to an endpoint where its action has those.
type visit struct {
	breaker  *breaker
	epoch    int
	endpoint *endpoint
	start    time.Time
	health   health
	told     bool
	broken   bool // put off, since the endpoint's breaker is open
}

// enter lets a claim go on to its call, or says for how long it is put off. What leads to no call is let by.
func (l *lane) enter(c *claim, epoch int) (delay time.Duration, ok bool) {
	c.visit = visit{breaker: l.breaker, epoch: epoch}
	if c.action.endpoint == nil {
		return 0, true
	}
	c.visit.breaker = nil
	if !c.calls {
		return 0, true
	}
	call := c.call()
	name, err := guard(func() (string, error) { return c.action.endpoint(&call), nil })
	if err != nil || name == "" {
		return 0, true
	}
	c.endpointName = name
	now := time.Now()
	e, epoch, delay, broken := l.endpoints.enter(sha256.Sum256([]byte(name)), now)
	if e != nil {
		c.visit = visit{breaker: e.breaker, epoch: epoch, endpoint: e, start: now}
		return 0, true
	}
	c.visit.broken = broken
	return delay, false
}

// judge tells a claim's breaker what its call says of the vendor, as soon as it has ended.
func (n *node) judge(c *claim, code string, outcome Outcome) {
	v := &c.visit
	if v.told || v.breaker == nil {
		return
	}
	v.told, v.health = true, healthOf(outcome, c.Status == statusUnknown)
	if after := outcome.wait(); v.health == healthThrottled && after > 0 { // no failure, and there may be many
		if held := v.breaker.throttle(v.epoch, after, time.Now()); held > 0 {
			n.log.Info("dispatcher: the vendor wants fewer calls; none is made until the delay is over",
				append(c.where(), slog.String("code", clean(code, codeLimit)), slog.Duration("again_in", held))...)
		}
		return
	}
	made := v.breaker.record(v.epoch, v.health, time.Now())
	level := slog.LevelWarn
	if v.endpoint != nil && made.trips > 1 { // there may be many
		level = slog.LevelDebug
	}
	switch {
	case made.holds > 0:
		level := slog.LevelInfo
		if v.endpoint != nil && made.holds > 1 {
			level = slog.LevelDebug
		}
		n.log.Log(n.calls, level, "dispatcher: the vendor wants to be asked later; no call is made until the delay is over, then one by one", append(c.where(),
			slog.String("code", clean(code, codeLimit)), slog.Int("holds", made.holds), slog.Duration("again_in", made.delay))...)
	case made.opened:
		n.log.Log(n.calls, level, "dispatcher: calls fail; none is made until the delay is over, then one to try", append(c.where(),
			slog.String("code", clean(code, codeLimit)), slog.Int("failures", made.failures), slog.Duration("again_in", made.delay))...)
	case made.closed:
		n.log.Info("dispatcher: calls are answered again", c.where()...)
	}
	if made.closed || made.room || made.holds > 0 { // how long the drain has to wait is another time now
		n.wake(c.action.name)
	}
}

// where names whom a claim calls, in logs.
func (c *claim) where() []any {
	where := []any{slog.String("destination", c.action.destination())}
	if e := c.visit.endpoint; e != nil {
		where = append(where, slog.String("endpoint", endpointDigest(e.id)))
	}
	return where
}

// endpointDigest is what stands for an endpoint in logs.
func endpointDigest(id endpointID) string { return hex.EncodeToString(id[:8]) }

// leave ends a claim's visit.
func (l *lane) leave(c *claim) {
	v := &c.visit
	if v.breaker != nil && !v.told { // nobody was called
		if made := v.breaker.record(v.epoch, healthNone, time.Now()); made.room {
			l.node.wake(c.action.name)
		}
	}
	if v.endpoint != nil && l.endpoints.leave(v.endpoint, v.start, time.Now(), v.health) {
		l.node.wake(c.action.name)
	}
}

// putOff undoes claims whose endpoints cannot be called now, in one statement.
func (l *lane) putOff(ctx context.Context, claims []*claim, delays []time.Duration) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), settleTimeout)
	defer cancel()
	p := db.OutboxQueuePostponeParams{Worker: claims[0].worker}
	for i, c := range claims {
		p.Ids = append(p.Ids, c.ID)
		p.Attempts = append(p.Attempts, c.Attempt)
		p.Delays = append(p.Delays, delays[i].Microseconds())
		p.ClearSent = append(p.ClearSent, c.FirstSend)
	}
	if _, err := l.node.q.OutboxQueuePostpone(ctx, p); err == nil {
		now := time.Now() // after the statement, by whose clock they are due
		for i, c := range claims {
			if !c.visit.broken {
				l.busy(now.Add(delays[i]))
			}
		}
		return
	}
	for i, c := range claims {
		s := c.action.givenBack(&c.OutboxQueueClaimRow)
		s.delay = delays[i]
		l.node.open.Add(1)
		l.node.settle(c, s)
	}
}
