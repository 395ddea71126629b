//go:build unix

package httpvendor

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/samekey/samekey/dispatcher"
	"github.com/samekey/samekey/samekeytest"
)

// downVendor is a vendor whose port refuses connections until up is called. It stays bound, so that no other process
// gets it.
func downVendor(t *testing.T, script ...step) (v *vendor, up func()) {
	t.Helper()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	syscall.CloseOnExec(fd)
	port := os.NewFile(uintptr(fd), "port")
	t.Cleanup(func() { _ = port.Close() })
	if err := syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	at, err := syscall.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	v = &vendor{key: header("Idempotency-Key"), script: script, effects: map[string]int{}}
	v.Server = httptest.NewUnstartedServer(http.HandlerFunc(v.serve))
	_ = v.Listener.Close()
	v.URL = fmt.Sprintf("http://127.0.0.1:%d", at.(*syscall.SockaddrInet4).Port)
	return v, func() {
		t.Helper()
		if err := syscall.Listen(fd, 16); err != nil {
			t.Fatal(err)
		}
		listener, err := net.FileListener(port)
		if err != nil {
			t.Fatal(err)
		}
		v.Listener, v.URL = listener, ""
		v.Start()
		t.Cleanup(v.Close)
	}
}

// The key window of 24 hours begins with the first byte that may have arrived. Here none arrived.
func TestOutageOf25HoursParksNothing(t *testing.T) {
	db := database(t)
	const intents, looks = 6, 6
	for name, tc := range map[string]struct {
		class  dispatcher.Class
		limits dispatcher.Limits
		tried  int // at each look, by another worker
	}{
		"idempotent":                 {dispatcher.IdempotentWrite, dispatcher.Limits{BreakAfter: -1}, intents},
		"idempotent, with a breaker": {dispatcher.IdempotentWrite, dispatcher.Limits{Concurrency: 1, BreakAfter: 2, BreakDelay: time.Hour}, 2},
		"once":                       {dispatcher.NonIdempotentWrite, dispatcher.Limits{BreakAfter: -1}, intents},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := db.Exec(t.Context(), `truncate samekey.outbox, samekey.outbox_queue, samekey.outbox_history, samekey.outbox_sends`); err != nil {
				t.Fatal(err)
			}
			if _, err := db.Exec(t.Context(), `select samekey.enqueue('outage', n::text, 'charge_card', '{}') from generate_series(1, $1::int) n`, intents); err != nil {
				t.Fatal(err)
			}
			v, up := downVendor(t, step{act: true, status: 200})
			work := func() {
				drain(t, db, Destination{Limits: tc.limits}, v, Action{Policy: dispatcher.Policy{Class: tc.class, Attempts: 1}})
			}
			for look := range looks {
				if look > 0 {
					samekeytest.Elapse(t, db, 25*time.Hour/(looks-1))
				}
				work()
			}
			samekeytest.Elapse(t, db, time.Minute)
			one := func(sql string) (text string) {
				t.Helper()
				if err := db.QueryRow(t.Context(), sql).Scan(&text); err != nil {
					t.Fatal(err)
				}
				return text
			}
			const timeline = `select string_agg(distinct concat_ws(' ', event, outcome, final_status), ', ') || ': ' || count(*) from samekey.outbox_history`
			const queue = `select string_agg(distinct concat_ws(' ', status, attempts_used, first_sent_at, key_window_until), ', ') || ': ' || count(*) from samekey.outbox_queue`
			// A retry may come due while the others run, but not while the breaker is open.
			var attempts int
			if _, err := fmt.Sscanf(one(timeline), "attempt unsent: %d", &attempts); err != nil || attempts < looks*tc.tried || tc.tried < intents && attempts > looks*tc.tried {
				t.Errorf("the history has %s, want %d attempts that were unsent", one(timeline), looks*tc.tried)
			}
			if got, want := one(queue), fmt.Sprintf("pending 0: %d", intents); got != want {
				t.Errorf("the queue has %s, want %s", got, want)
			}
			up()
			work()
			if got := one(timeline + ` where final_status = 'delivered'`); got != fmt.Sprintf("attempt delivered delivered: %d", intents) {
				t.Errorf("then the history has %s", got)
			}
			var keys []string
			for _, call := range v.wire {
				keys = append(keys, call.key)
			}
			slices.Sort(keys)
			if want := one(`select string_agg(delivery_key::text, ' ' order by delivery_key) from samekey.outbox`); strings.Join(keys, " ") != want {
				t.Errorf("the vendor saw the keys %v, want %s", keys, want)
			}
		})
	}
}
