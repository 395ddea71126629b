package samekeytest

import (
	"fmt"
	"strings"

	"github.com/samekey/samekey"
)

const causeCut = "the key is changed before it is looked up: truncated to a column's length, lowercased, or compared case-insensitively"

// likeKeys: two keys that are nearly the same are two operations. A service may
// refuse a key; what it takes, it has to tell apart.
func likeKeys(tr *trial) {
	one := tr.start()
	id := samekey.Mint()
	pair := func(n int) (a, b string) {
		begin := strings.Repeat(samekey.Mint(), n/len(id)+1)[:n-1]
		return begin + "0", begin + "1"
	}
	type two struct{ what, a, b string }
	pairs := []two{{"that differ in their first character only", "1" + id[1:], "2" + id[1:]}}
	for _, n := range []int{len(id), 64, 128, 255} {
		a, b := pair(n)
		pairs = append(pairs, two{fmt.Sprintf("of %d characters that differ in the last one only", n), a, b})
	}
	id = "Order-" + samekey.Mint()
	pairs = append(pairs, two{"that differ in case only", strings.ToLower(id), strings.ToUpper(id)})
	for _, keys := range pairs {
		for i, key := range []string{keys.a, keys.b} {
			where := fmt.Sprintf("the same payload under two keys %s (%s, %s)", keys.what, keys.a, keys.b)
			r := tr.until(where, one.send, key, 1, func(r response) bool { return r.kind != again || tr.s.via == nil })
			if r.kind != done {
				tr.Logf("a key was refused, so keys %s cannot be compared: %s", keys.what, r.said)
				tr.noMore(where, causeNoLookup)
				break
			}
			if n := tr.newEffects(); n != 1 {
				tr.broken(where, fmt.Sprintf("%d effects of key %d, want 1: a new key is a new operation", n, i+1), causeCut)
			}
		}
	}
}
