package httpvendor

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/samekey/samekey/dispatcher"
	"github.com/samekey/samekey/internal/wiretest"
	"github.com/samekey/samekey/outbox"
	"github.com/samekey/samekey/samekeytest"
)

// The network drops the request of an attempt, which times out. The vendor honestly does not know it, and it is sent
// again. Then the network stops dropping the first attempt's packets: the kernel must have none left.
func TestTimedOutRequestNeverArrives(t *testing.T) {
	db := database(t)
	for name, person := range map[string]bool{"two lookups say absent": false, "a person says not sent": true} {
		t.Run(name, func(t *testing.T) {
			network := wiretest.NewNetwork(t)
			v := &vendor{key: header("Idempotency-Key"), script: []step{{act: true, status: 200}}, effects: map[string]int{}}
			v.log = func(*http.Request) (int, string) {
				if len(v.wire) > 0 {
					return 200, `{"data":[{}]}`
				}
				return 200, `{"data":[]}`
			}
			var mu sync.Mutex
			var first []int // the ports of the connections whose packets are dropped
			v.Server = httptest.NewUnstartedServer(http.HandlerFunc(v.serve))
			v.Config.ConnState = func(c net.Conn, state http.ConnState) {
				if state == http.StateNew {
					mu.Lock()
					defer mu.Unlock()
					first = append(first, c.RemoteAddr().(*net.TCPAddr).Port)
				}
			}
			_ = v.Listener.Close()
			v.Listener = network.Listen()
			v.Start()
			t.Cleanup(v.Close)

			dest := Destination{AllowPrivate: prefixes("198.18.0.0/15")}
			action := Action{Policy: dispatcher.Policy{Class: dispatcher.NonIdempotentWrite, Timeout: 500 * time.Millisecond, ResendAbsent: !person}}
			if !person {
				action.Lookup = &Lookup{Request: "GET /v1/charges", Rules: []Rule{
					{Match: Match{Status: status(200, 200), Field: "/data/*"}, Outcome: dispatcher.Delivered}, {Match: Match{Status: status(200, 200), Field: "/data"}, Outcome: dispatcher.Absent}}}
			}
			id := inserted(t, db)
			until := func(want outbox.Status) {
				t.Helper()
				var entry outbox.Entry
				for range 20 {
					drain(t, db, dest, v, action)
					var err error
					if entry, err = outbox.Get(t.Context(), db.Pool, id); err != nil {
						t.Fatal(err)
					}
					if entry.Status == want {
						return
					}
					samekeytest.Elapse(t, db, time.Minute)
				}
				t.Fatalf("is %s, want %s: %+v", entry.Status, want, entry.History)
			}
			network.Drop("tcp flags & (syn | rst | fin) == 0 ip length > 100") // packets that carry a request
			until(outbox.StatusUnknown)
			mu.Lock()
			var rules []string
			for _, port := range first {
				rules = append(rules, fmt.Sprintf("tcp sport %d", port))
			}
			mu.Unlock()
			network.Drop(rules...) // before the next retransmission
			if person {
				samekeytest.Elapse(t, db, time.Minute)
				until(outbox.StatusParked)
				by := outbox.By{Actor: "ann", Reason: "the vendor has nothing"}
				if err := outbox.Resolve(t.Context(), db.Pool, id, outbox.Resolution{Outcome: outbox.NotSent}, by); err != nil {
					t.Fatal(err)
				}
				if err := outbox.Redrive(t.Context(), db.Pool, id, by); err != nil {
					t.Fatal(err)
				}
			}
			samekeytest.Elapse(t, db, time.Minute)
			until(outbox.StatusDelivered)
			network.Drop()
			for end := time.Now().Add(3 * patience); sockets(t, first, v.Listener.Addr()) > 0 && time.Now().Before(end); {
				time.Sleep(10 * time.Millisecond)
			}
			v.Close() // it has served all requests that arrived
			if len(v.wire) != 1 {
				t.Errorf("the vendor saw %d requests: %+v", len(v.wire), v.wire)
			}
		})
	}
}

// sockets counts the TCP sockets from these ports to the vendor.
func sockets(t *testing.T, ports []int, vendor net.Addr) (n int) {
	t.Helper()
	table, err := os.ReadFile("/proc/net/tcp")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(table)) {
		fields := strings.Fields(line)
		for _, port := range ports {
			from, to := fmt.Sprintf(":%04X", port), fmt.Sprintf(":%04X", vendor.(*net.TCPAddr).Port)
			if len(fields) > 3 && strings.HasSuffix(fields[1], from) && strings.HasSuffix(fields[2], to) && fields[3] != "06" { // TIME_WAIT
				n++
			}
		}
	}
	return n
}
