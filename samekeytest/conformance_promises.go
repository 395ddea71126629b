package samekeytest

import (
	"fmt"

	"github.com/samekey/samekey"
	"github.com/samekey/samekey/internal/wiretest"
)

// What usually breaks a promise, for the failure's reader.
const (
	causeNoLookup = "the key is not looked up before the work, or its record does not commit together with the effect"
	causeMemory   = "the key is remembered in memory: write a record of the key into the database, in the effect's transaction"
	causeRebuilt  = "the answer is rebuilt instead of stored with the effect, or is stored before it is complete"
	causeNoHash   = "the record has no hash of the payload, or not every path that replays compares the hash"
	causeRace     = "the key is looked up before the work, and its record is inserted only after it, where ON CONFLICT DO NOTHING hides that another attempt won: take the key first, by an insert or a lock, and roll back if another attempt has it"
	causeByItself = "the record of the key commits before the effect, in another transaction: write both in one"
	causeApart    = "the record of the key is written after the effect, in another transaction: write both in one"
	causeEarly    = "the answer is sent before COMMIT, or COMMIT's error is ignored: answer after COMMIT, and check its error"
	causeStuck    = "a started attempt is committed, and no other attempt takes over after its process died: lock the key in the open transaction, or by a lease that expires (then increase Within)"
	causeBlind    = "after a lost connection the work is repeated without reading the record"
)

func identical(tr *trial) {
	one := tr.start()
	key := samekey.Mint()
	first := tr.settle("the first request", one.send, key, 1)
	if n := tr.newEffects(); n != 1 {
		tr.Fatalf("the first request had %d effects, want 1: a request must ask for one effect, and Effects must count it", n)
	}
	where := "the same request again"
	later := tr.settle(where, one.send, key, 1)
	tr.noMore(where, causeNoLookup)
	tr.same(where, first, later, causeRebuilt)

	where = "the same request on another instance, as after a restart"
	later = tr.settle(where, tr.start().send, key, 1)
	tr.noMore(where, causeMemory)
	tr.same(where, first, later, causeRebuilt)
}

func anotherKey(tr *trial) {
	one := tr.start()
	tr.settle("the first request", one.send, samekey.Mint(), 1)
	tr.oneEffect("the first request", causeNoLookup)
	where := "the same payload under another key"
	tr.settle(where, one.send, samekey.Mint(), 1)
	if n := tr.newEffects(); n != 1 {
		tr.broken(where, fmt.Sprintf("%d effects, want 1 more: a new key is a new operation", n),
			"requests are identified by their payload, or the service does not read the key where Request puts it")
	}
}

func mismatch(tr *trial) {
	tr.Run("in_sequence", func(tr *trial) {
		one, two := tr.start(), tr.start()
		key := samekey.Mint()
		first := tr.settle("the first request", one.send, key, 1)
		tr.oneEffect("the first request", causeNoLookup)
		for i, on := range []*instance{one, two} {
			where := [...]string{"another payload under the key", "another payload under the key, on another instance"}[i]
			if r := tr.call(on.send, key, 2); !r.refuses() {
				tr.broken(where, "it was not refused, but got "+r.said+": want a 4xx", causeNoHash)
			}
			tr.noMore(where, causeNoHash)
			where = "the first request again, after " + where
			tr.same(where, first, tr.settle(where, on.send, key, 1), causeRebuilt)
			tr.noMore(where, causeNoLookup)
		}
	})
	tr.Run("overlapping", func(tr *trial) {
		key := samekey.Mint()
		senders, got := tr.race(tr.wire(), key, 1, 2)
		answered, where := 0, "two payloads under one key at once"
		for i, r := range got {
			if r.kind == again {
				r = tr.settleEither(where, senders[i], key, i+1)
			}
			if r.kind == done {
				answered++
			}
		}
		if answered != 1 {
			tr.broken(where, fmt.Sprintf("%d of the two were answered, want 1, and the other refused", answered), causeNoHash)
		}
		tr.oneEffect(where, causeRace)
	})
}

func overlapping(tr *trial) {
	tr.Run("undisturbed", func(tr *trial) {
		tr.atOnce(tr.wire(), "three identical requests at once, on three instances")
	})
	tr.Run("the_first_breaks", func(tr *trial) {
		wire := tr.wire()
		wire.Arm(wiretest.CutBefore, "commit")
		tr.atOnce(wire, "three identical requests at once, on three instances; the first to commit lost its connection before that")
	})
}

func (tr *trial) atOnce(wire *wiretest.Proxy, where string) {
	tr.Helper()
	key := samekey.Mint()
	senders, got := tr.race(wire, key, 1, 1, 1)
	var answer *response
	for i, r := range got {
		if r.kind == refused {
			tr.broken(where, "one was refused with "+r.said+": want the answer, or to be told to retry", "it is treated as a request with another payload")
			continue
		}
		if r.kind == again {
			r = tr.settle(where+", and one of them again", senders[i], key, 1)
		}
		if answer == nil {
			answer = &r
		}
		tr.same(where, *answer, r, causeRace)
	}
	tr.oneEffect(where, causeRace)
}

func lostAnswer(tr *trial) {
	one := tr.start()
	proxy := StartProxy(tr.T, one.url)
	through := tr.s.via(proxy.URL)
	for _, fault := range []Fault{"503_after", FaultLoseAnswer, FaultResetAfter, FaultTruncate, FaultResetBefore} {
		tr.Run(string(fault), func(tr *trial) {
			key := samekey.Mint()
			where := fmt.Sprintf("a proxy with the fault %q, then the same request again", fault)
			proxy.Next(fault)
			if r := tr.call(through, key, 1); r.kind != again {
				tr.Fatalf("the proxy's fault %q was answered with %s", fault, r.said)
			}
			calls := proxy.Calls()
			lost := calls[len(calls)-1].Backend
			got := tr.settle(where, through, key, 1)
			tr.sameAsBackend(where, lost, got)
			tr.oneEffect(where, causeNoLookup)
		})
	}
}

func duplicated(tr *trial) {
	one := tr.start()
	proxy := StartProxy(tr.T, one.url)
	through := tr.s.via(proxy.URL)
	for _, fault := range []Fault{FaultDuplicate, FaultResend} {
		tr.Run(string(fault), func(tr *trial) {
			key := samekey.Mint()
			where := "a request that a proxy sends twice, at once"
			proxy.Next(fault)
			var r response
			if fault == FaultDuplicate {
				before := proxy.answers()
				tr.inStep(one.wire, 2, func() int { return proxy.answers() - before }, func() { r = tr.call(through, key, 1) })
			} else {
				where = "a request that a proxy sends twice, one by one"
				r = tr.call(through, key, 1)
			}
			calls := proxy.Calls()
			both := calls[len(calls)-1].Backend
			got := tr.settle(where, through, key, 1)
			if r.kind == done {
				tr.same(where, r, got, causeRebuilt)
			}
			tr.sameAsBackend(where, both, got)
			tr.oneEffect(where, causeRace)
		})
	}
}
