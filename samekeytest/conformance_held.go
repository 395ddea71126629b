package samekeytest

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/samekey/samekey"
)

const (
	causeGone   = "the request's context ends when the client goes away, and the handler then does something outside the transaction: roll back everything, or finish everything with context.WithoutCancel"
	causeFence  = "an expired lease is taken over while its first owner still runs: check in the effect's transaction that the lease is held (a fence), or lock the key in that transaction"
	causeForgot = "the key is forgotten too early, by a cache's time to live, a short expiry in the record, or an eager cleanup"
)

const (
	// goneWithin is how long a service has to notice that its client has gone. Nothing shows that from outside.
	goneWithin = 100 * time.Millisecond
	// takenOverWithin is how long another instance may take to take a held request over.
	takenOverWithin = 500 * time.Millisecond
	// leaseTime is more than a lease lasts.
	leaseTime = time.Hour
	// rememberedFor is how long a memory has to last on the clock of the machine.
	rememberedFor = 4 * time.Second
)

// held is a request that waits at one of its round trips.
type held struct {
	one   *instance
	key   string
	leave func() // the client goes
	heard chan response
}

// hold sends a request and holds it before its nth round trip reaches the database. ok is false where the request was
// answered before, with r.
func (tr *trial) hold(nth int) (h *held, r response, ok bool) {
	tr.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), callWithin)
	tr.Cleanup(cancel)
	h = &held{one: tr.start(), key: samekey.Mint(), leave: cancel, heard: make(chan response, 1)}
	h.one.wire.Pause()
	tr.Cleanup(h.one.wire.Resume) // or the instance does not end
	go func() { h.heard <- h.one.send(ctx, h.key, 1) }()
	for trip := 1; ; time.Sleep(time.Millisecond) {
		select {
		case r := <-h.heard:
			h.one.wire.Resume()
			return h, r, false
		default:
		}
		switch {
		case h.one.wire.Held() == 0:
		case trip == nth:
			return h, response{}, true
		case trip == maxTrips:
			tr.Fatalf("a request makes more than %d round trips to the database", maxTrips)
		default:
			trip++
			h.one.wire.Step()
		}
	}
}

// eachHeld calls do with a request held before each of its round trips.
func (tr *trial) eachHeld(do func(h *held, nth int)) {
	tr.Helper()
	for nth := 1; ; nth++ {
		h, r, ok := tr.hold(nth)
		if !ok {
			tr.settled("one request, and no fault", r, h.one.send, h.key)
			h.one.life.end()
			tr.Logf("held before each of %d round trips", nth-1)
			return
		}
		do(h, nth)
		h.one.life.end()
		tr.noMore(fmt.Sprintf("held before round trip %d, after its instance ended", nth), causeGone)
	}
}

// clientGone lets the client go while the request is at work.
func clientGone(tr *trial) {
	tr.eachHeld(func(h *held, nth int) {
		where := fmt.Sprintf("the client went away before round trip %d reached the database; then the same request again", nth)
		h.leave()
		time.Sleep(goneWithin)
		h.one.wire.Resume()
		<-h.heard
		got := tr.settle(where, h.one.send, h.key, 1)
		tr.same(where+", twice", got, tr.settle(where, h.one.send, h.key, 1), causeRebuilt)
		tr.oneEffectOr(where, causeGone, causeGone)
	})
}

// suspended lets one instance stand still in mid-request, until whatever lease it has is over, and go on when another
// one had its chance.
func suspended(tr *trial) {
	before := tr.rows()
	tr.eachHeld(func(h *held, nth int) {
		where := fmt.Sprintf("an instance froze before round trip %d, another instance got the same request, and the first continued", nth)
		tr.elapse(before, leaseTime)
		other := tr.start()
		defer other.life.end()
		stop := make(chan struct{})
		heard := make(chan response, 1)
		go func() {
			for {
				r := tr.call(other.send, h.key, 1)
				select {
				case <-stop:
					heard <- r
					return
				default:
				}
				if r.kind == done {
					heard <- r
					return
				}
				time.Sleep(10 * time.Millisecond)
			}
		}()
		var second response
		select {
		case second = <-heard:
		case <-time.After(takenOverWithin):
			close(stop)
			h.one.wire.Resume()
			second = <-heard
		}
		h.one.wire.Resume()
		first := <-h.heard
		got := tr.settle(where, other.send, h.key, 1)
		for _, r := range []response{first, second} {
			if r.kind == done {
				tr.same(where, r, got, causeFence)
			}
		}
		tr.oneEffectOr(where, causeByItself, causeFence)
	})
}

// remembered asks again after a while, and after a while that is only in the tables.
func remembered(tr *trial) {
	before := tr.rows()
	one := tr.start()
	key := samekey.Mint()
	began := time.Now()
	first := tr.settle("the first request", one.send, key, 1)
	tr.oneEffect("the first request", causeNoLookup)
	again := func(where string) {
		later := tr.settle(where, one.send, key, 1)
		tr.noMore(where, causeForgot)
		tr.same(where, first, later, causeForgot)
	}
	time.Sleep(time.Until(began.Add(rememberedFor)))
	if again(fmt.Sprintf("the same request %s later", rememberedFor)); tr.Failed() {
		return
	}
	tr.elapse(before, tr.s.remembers-time.Minute)
	again(fmt.Sprintf("the same request, with all times in its rows moved back by %s", tr.s.remembers-time.Minute))
}

// rows counts the rows of each table that stores a time.
func (tr *trial) rows() map[string]int {
	tr.Helper()
	counts := map[string]int{}
	for table := range tr.timed() {
		n := 0
		if err := tr.db.QueryRow(tr.Context(), "select count(*) from "+table).Scan(&n); err != nil {
			tr.Fatal(err)
		}
		counts[table] = n
	}
	return counts
}

// elapse moves the times back in each table that has more rows than before, which are those that requests write to.
// Others may hold what has to be valid today, such as the caller's token.
func (tr *trial) elapse(before map[string]int, d time.Duration) {
	tr.Helper()
	now := tr.rows()
	for table, columns := range tr.timed() {
		if now[table] <= before[table] {
			continue
		}
		err := pgx.BeginFunc(tr.Context(), tr.db, func(tx pgx.Tx) error {
			if _, err := tx.Exec(tr.Context(), "set local lock_timeout = '200ms'"); err != nil {
				return err
			}
			set := ""
			for i, column := range columns {
				if i > 0 {
					set += ", "
				}
				set += fmt.Sprintf("%[1]s = %[1]s - $1::interval", quote(column))
			}
			_, err := tx.Exec(tr.Context(), "update "+table+" set "+set, d)
			return err
		})
		if err != nil {
			tr.Logf("the times in %s could not be moved back: %v", table, err)
		}
	}
}

// timed returns the columns with times of each table that has some.
func (tr *trial) timed() map[string][]string {
	tr.Helper()
	rows, err := tr.db.Query(tr.Context(), `
		select n.nspname, c.relname, array_agg(a.attname::text order by a.attnum)
		from pg_class c
		join pg_namespace n on n.oid = c.relnamespace
		join pg_attribute a on a.attrelid = c.oid
		where c.relkind in ('r', 'p') and not c.relispartition
		  and n.nspname <> 'information_schema' and n.nspname not like 'pg\_%' and c.relname not like 'river\_%'
		  and a.atttypid in ('timestamptz'::regtype, 'timestamp'::regtype)
		  and a.attnum > 0 and not a.attisdropped and a.attgenerated = ''
		group by 1, 2`)
	if err != nil {
		tr.Fatal(err)
	}
	tables := map[string][]string{}
	var schema, table string
	var columns []string
	_, err = pgx.ForEachRow(rows, []any{&schema, &table, &columns}, func() error {
		tables[pgx.Identifier{schema, table}.Sanitize()] = append([]string(nil), columns...)
		return nil
	})
	if err != nil {
		tr.Fatal(err)
	}
	return tables
}
