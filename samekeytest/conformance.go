package samekeytest

import (
	"context"
	"fmt"
	"net/http"
	"testing"
	"time"
)

// Service is the HTTP service that [Conform] tests.
type Service struct {
	// Prepare creates the service's tables. It is called once, before anything else. The database already has samekey's
	// tables. Nil if the service needs none.
	Prepare func(t testing.TB, db *DB)

	// Start starts an instance of the service on the database with this DSN and returns its URL, without a slash at its
	// end. It is called many times, and several instances run at once. An instance must store everything through this
	// DSN, and must share nothing in memory with another instance.
	//
	// t belongs to the instance: its Cleanup functions run when the instance ends, which in the subtest "crash" is at
	// once. End a process there with SIGKILL, and a server in the test's process with Close. t is not a *testing.T.
	Start func(t testing.TB, dsn string) (url string)

	// Request returns a new request with this key, in the header that your service reads. One request must have one
	// effect. Put n into the payload, as a quantity for example: a request with another n is another request. 1 and 2
	// must be valid.
	Request func(url, key string, n int) *http.Request

	// Effects returns the number of effects of all keys: rows of a table, or the effects in the ledger of a [Vendor].
	// It is called after requests are answered. If a worker has the effect later, count what makes the worker do so,
	// such as the intents in the outbox.
	Effects func(t testing.TB, db *DB) int

	// Within is how long a client retries until it has its answer. It must be longer than your service needs to notice
	// that an attempt died. Default: 10 s.
	Within time.Duration

	// Remembers is how long the service promises to remember a key, at least two minutes. Default: 24 h.
	Remembers time.Duration
}

// Tool is the function that [ConformTool] tests, such as a tool for agents.
type Tool struct {
	// Prepare, Effects, Within and Remembers are as in [Service].
	Prepare   func(t testing.TB, db *DB)
	Effects   func(t testing.TB, db *DB) int
	Within    time.Duration
	Remembers time.Duration

	// Start returns the tool as a new process has it: with a pool of its own on this DSN, and nothing in memory.
	// Otherwise it is as in [Service].
	//
	// Put n into the tool's payload, as in Service.Request. A nil error means that answer is the operation's answer.
	// Any error means that there is no answer and that the same call can be repeated, except in "mismatch", where it
	// refuses the payload.
	Start func(t testing.TB, dsn string) func(ctx context.Context, key string, n int) (answer string, err error)
}

// Conform tests that your service has one effect and gives one answer per idempotency key, whatever fails. Describe the
// service in four functions:
//
//	func TestOrdersAreIdempotent(t *testing.T) {
//		samekeytest.Conform(t, samekeytest.Service{
//			// Create the tables.
//			Prepare: func(t testing.TB, db *samekeytest.DB) { migrate(t, db.Pool) },
//			// Start an instance.
//			Start: func(t testing.TB, dsn string) string {
//				pool, err := pgxpool.New(t.Context(), dsn)
//				if err != nil {
//					t.Fatal(err)
//				}
//				t.Cleanup(pool.Close)
//				server := httptest.NewServer(shop.New(pool))
//				t.Cleanup(server.Close)
//				return server.URL
//			},
//			// Make a request: key is the idempotency key, n changes the payload.
//			Request: func(url, key string, n int) *http.Request {
//				body := fmt.Sprintf(`{"product":"tea","quantity":%d}`, n)
//				req, _ := http.NewRequest("POST", url+"/orders", strings.NewReader(body))
//				req.Header.Set("Idempotency-Key", key)
//				return req
//			},
//			// Count the effects.
//			Effects: func(t testing.TB, db *samekeytest.DB) (n int) {
//				if err := db.QueryRow(t.Context(), "select count(*) from orders").Scan(&n); err != nil {
//					t.Fatal(err)
//				}
//				return n
//			},
//		})
//	}
//
// Package examples/createorder has a complete test. Conform runs on a database of its own ([NewDB]) and takes about ten
// seconds for a fast service. A failure tells what broke, where, and the usual cause:
//
//	2 effects of one key, want 1
//		where: the service crashed after the database did round trip 3 (insert into orders ...), before its answer arrived;
//		then the same request to another instance
//		usual cause: the record of the key is written after the effect, in another transaction: write both in one
//
// Each promise is a subtest:
//
//   - identical: repeat a request, on the same instance and after a restart. There is no second effect, and the answer is
//     the first one.
//   - another_key: the same payload under another key is another operation.
//   - mismatch: another payload under a used key is refused with a 4xx, in sequence, after a restart, and when the two
//     overlap. It has no effect, and the first answer still replays.
//   - overlapping: of three identical requests at once, on three instances, one has the effect. Each gets the answer, or is
//     told to retry and then gets it. Then the same, but the first one loses its database connection instead of committing.
//   - lost_answer: the service acts, and the client gets 503, or nothing, or half of the answer. Its retry gets the answer
//     that was lost.
//   - duplicated: a proxy sends the request twice, at once and in sequence.
//   - lost_connection: the database connection breaks at each round trip of the request, before the server got the
//     statement and after it executed it.
//   - crash: the instance dies at each of these points: its connections break, and it can open no new one. Another instance
//     gets the request. Then the first instance wakes up, as one that was only believed dead, and must do nothing more.
//   - like_keys: keys that differ in the first or last character only, up to 255 characters, or in case only, are different
//     operations. A key that the service refuses is left out, and the log tells so.
//   - client_gone: the client goes away while the request is at each of its round trips; then it asks again.
//   - suspended: an instance freezes at each round trip until any lease of up to an hour has expired. Another instance gets
//     the request and half a second. Then the first one continues.
//   - remembered: the same request after four seconds, and after Remembers.
//
// No time passes for a lease and for Remembers: Conform moves the columns of type timestamptz and timestamp back, in
// the tables to which requests add rows.
//
// "Told to retry" is a lost connection, 409, 425, 429, 5xx, or any answer with Retry-After, whose time is not waited
// for. A 2xx or 3xx is the answer. Two answers are the same if status, body, Content-Type, Location, ETag and Link are.
//
// Overlapping requests overlap for certain. Each round trip to the database is held until every request has reached
// one, waits for a lock of the database, or is answered. If a request waits for something else, all continue after five
// seconds, and the log tells so. Start the service without workers that query the database by themselves: their round
// trips would count as the request's.
//
// A crash is simulated at the database's client. Effects elsewhere (a vendor's call, a file) are seen through Effects
// only, and are not interrupted.
//
// Conform does not find:
//
//   - a memory or a lease whose time is in another place (a cache, a column that holds a number), if it lasts longer than
//     four seconds, or half a second for a lease;
//   - a key that two callers share, since Conform knows only the caller in Request;
//   - two different requests that the service takes for the same, if they differ in something that n does not change: path,
//     query, headers, another route;
//   - a replayed answer that leaks data, or that its caller is no longer allowed to see;
//   - an effect that Effects does not count, or that happens after the answer;
//   - faults that need load, more than three requests at once, another version of the service, or a failover.
func Conform(t *testing.T, service Service) {
	t.Helper()
	if service.Start == nil || service.Request == nil || service.Effects == nil {
		t.Fatal("samekeytest: Conform: Service needs Start, Request and Effects")
	}
	// One connection per request: on a reused connection that is dead, net/http may send the request twice.
	transport := &http.Transport{DisableKeepAlives: true, DisableCompression: true}
	send := func(url string) sender {
		return func(ctx context.Context, key string, n int) response {
			return roundTrip(ctx, transport, service.Request(url, key, n))
		}
	}
	s := &suite{what: "service", prepare: service.Prepare, effects: service.Effects, within: service.Within, remembers: service.Remembers, via: send}
	s.start = func(t testing.TB, dsn string) (sender, string) {
		url := service.Start(t, dsn)
		return send(url), url
	}
	s.run(t)
}

// ConformTool is [Conform] for a function. It has neither lost_answer nor duplicated: to a function, a lost answer is a
// call that is repeated, as in identical. Two answers are the same if the strings are equal. After a crash the call
// runs on without a database, and Conform waits for it in the end.
//
//	samekeytest.ConformTool(t, samekeytest.Tool{
//		Prepare: prepare,
//		Start: func(t testing.TB, dsn string) func(context.Context, string, int) (string, error) {
//			credits := credit.New(open(t, dsn))
//			return func(ctx context.Context, key string, n int) (string, error) { return credits.Add(ctx, key, n) }
//		},
//		Effects: countCredits,
//	})
func ConformTool(t *testing.T, tool Tool) {
	t.Helper()
	if tool.Start == nil || tool.Effects == nil {
		t.Fatal("samekeytest: ConformTool: Tool needs Start and Effects")
	}
	s := &suite{what: "tool", prepare: tool.Prepare, effects: tool.Effects, within: tool.Within, remembers: tool.Remembers}
	s.start = func(t testing.TB, dsn string) (sender, string) {
		call := tool.Start(t, dsn)
		return func(ctx context.Context, key string, n int) response {
			answer, err := call(ctx, key, n)
			if err != nil {
				return response{kind: again, said: fmt.Sprintf("the error %q", err)}
			}
			return response{kind: done, text: answer, said: fmt.Sprintf("%.300q", answer)}
		}, ""
	}
	s.run(t)
}

// suite is a Service or a Tool.
type suite struct {
	what    string
	prepare func(testing.TB, *DB)
	start   func(t testing.TB, dsn string) (send sender, url string)
	effects func(testing.TB, *DB) int
	within  time.Duration
	via     func(url string) sender // nil for a tool

	remembers time.Duration
}

func (s *suite) run(t *testing.T) {
	t.Helper()
	if s.within == 0 {
		s.within = 10 * time.Second
	}
	if s.remembers == 0 {
		s.remembers = 24 * time.Hour
	}
	if s.remembers < 2*time.Minute {
		t.Fatalf("samekeytest: Remembers is %s: give two minutes or more, or zero for 24 h", s.remembers)
	}
	db := NewDB(t)
	if s.prepare != nil {
		s.prepare(t, db)
	}
	for _, promise := range []struct {
		name string
		http bool
		keep func(*trial)
	}{
		{"identical", false, identical},
		{"another_key", false, anotherKey},
		{"mismatch", false, mismatch},
		{"overlapping", false, overlapping},
		{"lost_answer", true, lostAnswer},
		{"duplicated", true, duplicated},
		{"lost_connection", false, lostConnection},
		{"crash", false, crash},
		{"like_keys", false, likeKeys},
		{"client_gone", false, clientGone},
		{"suspended", false, suspended},
		{"remembered", false, remembered},
	} {
		if promise.http && s.via == nil {
			continue
		}
		t.Run(promise.name, func(t *testing.T) { promise.keep(s.trial(t, db)) })
	}
}
