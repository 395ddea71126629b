package dispatcher

import (
	"slices"
	"testing"
)

// Each endpoint stands at the place of its intent. A batch without one sends no array.
func TestSettleSendsEndpointsOnlyIfThereAreSome(t *testing.T) {
	a := &action{name: "notify"}
	plain := result{claim: &claim{action: a}, settlement: settlement{event: "attempt"}}
	to := func(name string) result {
		return result{claim: &claim{action: a, endpoint: &storedEndpoint{Endpoint: Endpoint{Name: name}}}, settlement: settlement{event: "attempt"}}
	}
	if p := settleParams([]result{plain, plain}); p.Endpoints != nil {
		t.Errorf("got %q, want none", p.Endpoints)
	}
	want := []string{"", "notify/one", "", "", "notify/two"}
	if p := settleParams([]result{plain, to("one"), plain, plain, to("two"), plain}); !slices.Equal(p.Endpoints, want) {
		t.Errorf("got %q, want %q", p.Endpoints, want)
	}
}
