package dispatcher

import (
	"context"
	"math"
	"sync"
	"time"

	"github.com/samekey/samekey/internal/db"
	"github.com/samekey/samekey/internal/sqlstate"
)

// rate is a lane's share of a destination's rate. The budget is one row for all workers; before a claim, one statement
// takes as many permits as are due and as there are slots for, and a claim never asks for more than there are permits.
//
//	two nodes take at once                   the second waits for the first one's row, and counts on from there
//	killed between the take and the claim    the permits are lost: less is called, never more
//	the claim gets fewer than it may         somebody else took them; what is left over is good for permitLife, then lost
//	nothing is due                           the statement takes nothing: an idle destination's budget stays whole
//	nothing is left                          the statement says when a batch of them will be there; until then nobody asks
//	the rate or the burst is changed         the row holds a number of calls, not a time: see queries/rate_limits.sql
//	the database's clock is set back         no time has passed: a permit comes after 1/rate
//	serializable by default                  a take that lost against another (40001) has taken nothing, and waits
type rate struct {
	perSecond    float64 // 0: no limit
	burst, batch int

	mu      sync.Mutex
	permits int       // in hand
	expire  time.Time // when they are no good any more
	next    time.Time // when the next ones may be asked for
}

const (
	// permitLife is how long a permit that was taken may be used.
	permitLife = 200 * time.Millisecond
	// takeEvery is about how often a lane asks while its destination is at its rate: it waits for what comes in that time.
	takeEvery = 50 * time.Millisecond
)

func newRate(l Limits) *rate {
	// Half of the burst at most: what a late asker does not take while the budget is whole is lost.
	batch := min(int(math.Ceil(l.Rate*takeEvery.Seconds())), l.Burst/2)
	return &rate{perSecond: l.Rate, burst: l.Burst, batch: max(batch, 1)}
}

// wait is how long no permit may be asked for.
func (r *rate) wait(now time.Time) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.inHand(now) > 0 {
		return 0
	}
	return max(r.next.Sub(now), 0)
}

func (r *rate) inHand(now time.Time) int {
	if !now.Before(r.expire) {
		r.permits = 0
	}
	return r.permits
}

// use takes up to want permits that are in hand.
func (r *rate) use(now time.Time, want int) (have int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	have = min(r.inHand(now), want)
	r.permits -= have
	return have
}

// unused gives back what use or take gave and no call was made with. It is good for as long as it was.
func (r *rate) unused(permits int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.permits += permits
}

// take gets up to want permits for intents of the action that are due from a mark on. None, and nothing due: it is idle.
func (r *rate) take(ctx context.Context, q *db.Queries, destination string, a *action, from time.Time, want int) (may int, due bool, err error) {
	now := time.Now()
	if have := r.use(now, want); have > 0 {
		return have, true, nil
	}
	if r.wait(now) > 0 {
		return 0, true, nil
	}
	row, err := r.ask(ctx, q, db.RateLimitsTakeParams{
		Destination: destination, Action: a.name, DueFrom: from, MaxCount: int32(want),
		Rate: r.perSecond, Burst: int32(r.burst), Batch: int32(r.batch)})
	switch {
	case lostRace(err):
		row.Due, row.WaitUs = int32(want), takeEvery.Microseconds()
	case err != nil || row.Due == 0:
		return 0, err != nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.permits, r.expire = 0, now.Add(permitLife)
	if row.WaitUs > 0 {
		r.next = time.Now().Add(time.Duration(row.WaitUs) * time.Microsecond)
	}
	return int(row.Given), true, nil
}

// ask takes permits, and adds the destination's row where there is none yet.
func (r *rate) ask(ctx context.Context, q *db.Queries, p db.RateLimitsTakeParams) (row db.RateLimitsTakeRow, err error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), claimTimeout)
	defer cancel()
	if row, err = q.RateLimitsTake(ctx, p); err != nil || row.Due == 0 || row.Found {
		return row, err
	}
	if err = q.RateLimitsAdd(ctx, p.Destination); err != nil {
		return row, err
	}
	return q.RateLimitsTake(ctx, p)
}

// lostRace: a database whose transactions are serializable, or repeatable, by default.
func lostRace(err error) bool {
	return sqlstate.Of(err) == sqlstate.Serialization
}
