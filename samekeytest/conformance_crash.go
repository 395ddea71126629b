package samekeytest

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/samekey/samekey"
	"github.com/samekey/samekey/internal/wiretest"
)

// maxTrips bounds the round trips of one request: one that has more repeats
// something endlessly.
const maxTrips = 200

// point is a moment of a request: before or after the database did what its
// nth round trip asked for.
type point struct {
	fault wiretest.Fault
	nth   int
}

func (p point) after() bool { return p.fault == wiretest.LoseAnswer || p.fault == wiretest.CrashAfter }

// in says which moment it is, given the statements that were struck.
func (p point) in(statements []string) string {
	text := []rune(strings.Join(strings.Fields(strings.Join(statements, "; ")), " "))
	if len(text) > 160 {
		text = append(text[:157], []rune("...")...)
	}
	if p.after() {
		return fmt.Sprintf("after the database did round trip %d (%s), before its answer arrived", p.nth, string(text))
	}
	return fmt.Sprintf("before round trip %d (%s) reached the database", p.nth, string(text))
}

// eachPoint lets do meet each moment of a request, until a request has none
// left and do returns false.
func (tr *trial) eachPoint(before, after wiretest.Fault, do func(point) bool) {
	tr.Helper()
	for _, fault := range []wiretest.Fault{before, after} {
		nth := 1
		for do(point{fault, nth}) {
			if nth++; nth > maxTrips {
				tr.Fatalf("a request makes more than %d round trips to the database", maxTrips)
			}
		}
		if nth == 1 {
			tr.Fatalf("the %s answered without a statement through the DSN that Start got: it must connect with that DSN", tr.s.what)
		}
		if fault == after {
			tr.Logf("failed before and after each of %d round trips", nth-1)
		}
	}
}

func lostConnection(tr *trial) {
	tr.eachPoint(wiretest.CutBefore, wiretest.LoseAnswer, func(p point) bool {
		one := tr.start()
		defer one.life.end()
		key := samekey.Mint()
		hit := one.wire.ArmNth(p.fault, p.nth)
		r := tr.call(one.send, key, 1)
		if one.wire.Disarm() {
			tr.settled("one request, and no fault", r, one.send, key)
			return false
		}
		tr.settled("the connection broke "+p.in(tr.struck(hit))+"; then the same request again", r, one.send, key)
		return true
	})
}

func crash(tr *trial) {
	other := tr.start()
	tr.eachPoint(wiretest.CrashBefore, wiretest.CrashAfter, func(p point) bool {
		victim := tr.start()
		key := samekey.Mint()
		hit := victim.wire.ArmNth(p.fault, p.nth)
		ctx, cancel := context.WithTimeout(context.Background(), callWithin)
		defer cancel()
		heard := make(chan response, 1)
		returned := make(chan struct{})
		go func() {
			defer close(returned)
			heard <- victim.send(ctx, key, 1)
		}()
		r := response{kind: again, said: "nothing, since it crashed"}
		var statements []string
		select {
		case statements = <-hit:
		case r = <-heard:
			if victim.wire.Disarm() {
				tr.settled("one request, and no fault", r, other.send, key)
				victim.life.end()
				return false
			}
			statements = tr.struck(hit)
		}
		cancel() // its client hears no more
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			if tr.s.via == nil { // a tool has no server that waits for the call
				<-returned
			}
			victim.life.end()
		}()
		where := fmt.Sprintf("the %s crashed %s; then the same request to another instance", tr.s.what, p.in(statements))
		tr.settled(where, r, other.send, key)
		victim.wire.Revive()
		tr.wait(ended, "the Cleanup functions of an instance that crashed")
		tr.wait(returned, "its call")
		tr.noMore(where+"; then the first one woke up", causeBlind)
		return true
	})
}

// settled checks the end of a request that met a fault and was answered with r,
// or with nothing.
func (tr *trial) settled(where string, r response, send sender, key string) {
	tr.Helper()
	if r.kind == done { // counted before it is repeated, which may make up for what was lost
		tr.acknowledged(where, causeApart)
	}
	got := tr.settle(where, send, key, 1)
	if r.kind == done {
		tr.same(where, r, got, causeRebuilt)
	}
	tr.same(where+", twice", got, tr.settle(where, send, key, 1), causeRebuilt)
	if r.kind == done {
		tr.noMore(where, causeApart)
		return
	}
	tr.oneEffect(where, causeApart)
}

// struck waits until the fault has happened, and returns the statements.
func (tr *trial) struck(hit <-chan []string) []string {
	tr.Helper()
	select {
	case statements := <-hit:
		return statements
	case <-time.After(callWithin):
		tr.Fatalf("a statement of the %s did not end within %s", tr.s.what, callWithin)
		return nil
	}
}

func (tr *trial) wait(ended <-chan struct{}, what string) {
	tr.Helper()
	select {
	case <-ended:
	case <-time.After(callWithin):
		tr.Fatalf("%s did not end within %s", what, callWithin)
	}
}
