package httpvendor

import (
	"net/http"
	"testing"
	"time"

	"github.com/samekey/samekey/dispatcher"
	"github.com/samekey/samekey/outbox"
	"github.com/samekey/samekey/samekeytest"
)

// A key belongs to the request that it was sent with. Another path, or the key in another header, is another call for
// the vendor. An intent that an earlier release may have sent in another form is looked up, or else parked.
func TestChangedFormIsNotSentAgain(t *testing.T) {
	db := database(t)
	named := func(name string, quoted bool) Destination {
		return Destination{Vendor: dispatcher.Vendor{Key: dispatcher.KeyRules{Place: dispatcher.KeyInHeader, Name: name, Quoted: quoted}}}
	}
	once := SentLog("GET /log?ref={{.Key}}", "/data", "/ref")
	template := Body{Format: JSON, Template: `{"id": {{.Payload.id}}}`}
	for name, tc := range map[string]struct {
		before, after Action
		from, to      Destination
		want          outbox.Status
		calls         int
	}{
		"the same":                  {Action{}, Action{}, named("X-Key", false), named("x-key", false), "delivered", 2},
		"another path":              {Action{}, Action{Request: "POST /v1/orders"}, Destination{}, Destination{}, "parked", 1},
		"another path, found":       {Action{}, Action{Request: "POST /v1/orders", Lookup: once}, Destination{}, Destination{}, "delivered", 1},
		"another method":            {Action{}, Action{Request: "PUT /v1/charges"}, Destination{}, Destination{}, "parked", 1},
		"another header":            {Action{}, Action{}, named("X-Key", false), named("X-Idem", false), "parked", 1},
		"quoted":                    {Action{}, Action{}, named("X-Key", false), named("X-Key", true), "parked", 1},
		"what was rendered is kept": {Action{Body: template}, Action{Body: template, Request: "POST /v1/orders"}, Destination{}, Destination{}, "delivered", 2},
		"rendered, another header":  {Action{Body: template}, Action{Body: template}, named("X-Key", false), named("X-Idem", false), "parked", 1},
	} {
		t.Run(name, func(t *testing.T) {
			v := startVendor(t, header("Idempotency-Key"), step{lose: true}, step{status: 200, body: "{}"})
			tc.before.Policy.Backoff, tc.after.Policy.Backoff = time.Hour, time.Hour // no retry within a drain
			id := inserted(t, db)
			v.log = func(r *http.Request) (int, string) { return 200, `{"data":[{"ref":"` + r.FormValue("ref") + `"}]}` }
			drain(t, db, tc.from, v, tc.before)
			for range 3 {
				samekeytest.Elapse(t, db, 2*time.Hour)
				drain(t, db, tc.to, v, tc.after)
			}
			entry, err := outbox.Get(t.Context(), db.Pool, id)
			if err != nil {
				t.Fatal(err)
			}
			v.mu.Lock()
			defer v.mu.Unlock()
			if entry.Status != tc.want || len(v.wire) != tc.calls {
				t.Errorf("is %s after %+v, want %s after %d calls", entry.Status, v.wire, tc.want, tc.calls)
			}
			if tc.calls == 2 && v.wire[0].target != v.wire[1].target {
				t.Errorf("sent %+v", v.wire)
			}
		})
	}
}
