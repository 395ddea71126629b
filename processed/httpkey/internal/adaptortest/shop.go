package adaptortest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/samekey/samekey/internal/dbtest"
	"github.com/samekey/samekey/processed"
	"github.com/samekey/samekey/processed/httpkey"
	"github.com/samekey/samekey/samekeytest"
)

// ErrSoldOut is the business error that the shop's own error handling answers with a 409.
var ErrSoldOut = errors.New("sold out")

// Shop is a service that takes orders: a database of its own and a server on a real socket.
type Shop struct {
	T   *testing.T
	DB  *samekeytest.DB
	Ran atomic.Int64 // calls of the handler

	url string
	log dbtest.Log
}

// Start starts a shop for one test.
func (a Adaptor) Start(t *testing.T) *Shop {
	t.Helper()
	s := &Shop{T: t, DB: samekeytest.NewDB(t)}
	if _, err := s.DB.Exec(t.Context(), "create table orders (id bigint generated always as identity primary key, item text not null)"); err != nil {
		t.Fatal(err)
	}
	keyed, err := httpkey.New(s.DB.Pool, httpkey.Options{Scope: a.Scope, Logger: slog.New(slog.NewTextHandler(&s.log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	s.url = a.Serve(s, keyed)
	return s
}

// Order inserts an order. The item chooses the outcome: "sold", "declined" and "broken" are errors, "panic" panics, and
// "again" meets a serialization failure the first time.
func (s *Shop) Order(ctx context.Context, item string) (id int64, err error) {
	ran := s.Ran.Add(1)
	tx := httpkey.Tx(ctx)
	if err := tx.QueryRow(ctx, "insert into orders (item) values ($1) returning id", item).Scan(&id); err != nil {
		return 0, err
	}
	switch {
	case item == "sold":
		return 0, ErrSoldOut
	case item == "declined":
		return 0, fmt.Errorf("charge: %w", processed.Fail(402, "declined"))
	case item == "broken":
		return 0, errors.New("broken")
	case item == "panic":
		panic("a bug")
	case item == "again" && ran == 1:
		_, err = tx.Exec(ctx, "do $$ begin raise sqlstate '40001'; end $$")
	}
	return id, err
}

// IsConflict reports whether the shop's error handling answers err with a 409. It also takes any database error for
// one, as some services do: the adaptor has to see a collision first.
func IsConflict(err error) bool {
	var ofDatabase interface{ SQLState() string }
	return errors.Is(err, ErrSoldOut) || errors.As(err, &ofDatabase)
}

// IsKeyed reports whether r is the request that the middleware passes to the handler. An outer middleware must not see
// it.
func IsKeyed(r *http.Request) (keyed bool) {
	defer func() { keyed = recover() == nil }()
	httpkey.Key(r.Context())
	return true
}

// Answer is what a client received.
type Answer struct {
	Status   int
	Header   http.Header
	Body     string
	Replayed bool
}

// Post orders an item. A key with "|" sends several headers, "" sends none.
func (s *Shop) Post(key, item string) Answer {
	s.T.Helper()
	return s.send("POST", key, item)
}

func (s *Shop) send(method, key, item string) Answer {
	s.T.Helper()
	req, err := http.NewRequestWithContext(s.T.Context(), method, s.url+"/v1/orders/"+item, strings.NewReader(`{"quantity":1}`))
	if err != nil {
		s.T.Error(err)
		return Answer{}
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("X-Tenant", "acme")
	for key := range strings.SplitSeq(key, "|") {
		if key != "" {
			req.Header.Add("Idempotency-Key", key)
		}
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	res, err := client.Do(req)
	if err != nil {
		s.T.Error(err)
		return Answer{}
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		s.T.Error(err)
	}
	return Answer{res.StatusCode, res.Header, string(body), res.Header.Get("Idempotent-Replayed") == "true"}
}

// Same checks that again is the replay of first.
func (s *Shop) Same(first, again Answer) {
	s.T.Helper()
	if first.Replayed || !again.Replayed || first.Status != again.Status || first.Body != again.Body ||
		first.Header.Get("Content-Type") != again.Header.Get("Content-Type") || first.Header.Get("Location") != again.Header.Get("Location") {
		s.T.Errorf("first %+v\nagain %+v", first, again)
	}
}

// Holds checks the number of orders, of processed records, and of calls of the handler.
func (s *Shop) Holds(orders, records, ran int64) {
	s.T.Helper()
	have := [3]int64{0, 0, s.Ran.Load()}
	err := s.DB.QueryRow(s.T.Context(), "select (select count(*) from orders), (select count(*) from samekey.processed_events)").Scan(&have[0], &have[1])
	if want := [3]int64{orders, records, ran}; err != nil || have != want {
		s.T.Errorf("orders, records, calls of the handler: %v, want %v (%v)", have, want, err)
	}
}

// Log returns what the middleware logged.
func (s *Shop) Log() string { return s.log.String() }
