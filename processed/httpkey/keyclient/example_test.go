package keyclient_test

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"time"

	"github.com/samekey/samekey"
	"github.com/samekey/samekey/processed/httpkey/keyclient"
)

// shop creates an order for each key, and loses its first answer.
func shop() *httptest.Server {
	var mu sync.Mutex
	orders := map[string]int{}
	return httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		key := r.Header.Get("Idempotency-Key")
		number, known := orders[key]
		if !known {
			number = len(orders) + 1
			orders[key] = number
		}
		if number == 1 && !known {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		if known {
			w.Header().Set("Idempotent-Replayed", "true")
		}
		fmt.Fprintf(w, "order %d", number)
	}))
}

// The first answer is lost. The second one is for the same order.
func ExampleTransport() {
	server := shop()
	defer server.Close()

	client := &http.Client{Transport: &keyclient.Transport{Backoff: time.Millisecond}}
	defer client.CloseIdleConnections()

	for range 2 {
		resp, err := client.Post(server.URL+"/orders", "application/json", strings.NewReader(`{"amount":100}`))
		if err != nil {
			fmt.Println(err)
			return
		}
		var kind string
		var number int
		_, _ = fmt.Fscan(resp.Body, &kind, &number)
		_ = resp.Body.Close()
		fmt.Println(kind, number, "replayed:", resp.Header.Get("Idempotent-Replayed") == "true")
	}
	// Output:
	// order 1 replayed: true
	// order 2 replayed: false
}

// The key is stored with the operation before the first call, so a killed and
// restarted process repeats the call, and not the order.
func ExampleTransport_ownKey() {
	server := shop()
	defer server.Close()

	stored := samekey.Mint() // in the job's row, in the transaction that inserts it

	place := func() (string, error) {
		req, err := http.NewRequest("POST", server.URL+"/orders", strings.NewReader(`{"amount":100}`))
		if err != nil {
			return "", err
		}
		req.Header.Set("Idempotency-Key", stored)
		client := &http.Client{Transport: &keyclient.Transport{Backoff: time.Millisecond}}
		defer client.CloseIdleConnections()
		resp, err := client.Do(req)
		if err != nil {
			return "", err
		}
		defer func() { _ = resp.Body.Close() }()
		var kind, number string
		_, err = fmt.Fscan(resp.Body, &kind, &number)
		return kind + " " + number, err
	}
	for range 2 { // as before and after a restart
		fmt.Println(place())
	}
	// Output:
	// order 1 <nil>
	// order 1 <nil>
}

// A call without an answer may have been done: its key is kept for the next call.
func ExampleError() {
	server := httptest.NewServer(nil)
	server.Close() // no server is listening

	client := &http.Client{Transport: &keyclient.Transport{Attempts: 2, Backoff: time.Millisecond}}
	_, err := client.Post(server.URL, "application/json", strings.NewReader(`{"amount":100}`))
	if failed := (*keyclient.Error)(nil); errors.As(err, &failed) && failed.Attempts > 0 {
		fmt.Println("attempts:", failed.Attempts, "key to send next time:", failed.Key != "")
	}
	// Output:
	// attempts: 2 key to send next time: true
}
