package samekeytest

import (
	"context"
	"fmt"
	"net/http"
	"testing"
	"time"
)

// Service is an HTTP service of yours, as [Conform] needs it.
type Service struct {
	// Prepare makes the service's tables in the database, which has samekey's only,
	// before anything else is called. Nil if it needs none.
	Prepare func(t testing.TB, db *DB)

	// Start starts an instance of the service on the database with this DSN and
	// returns its URL, without a slash at its end. It is called many times;
	// several instances run at once, on one database. All that an instance stores
	// has to go through this DSN, and none of it may come from another instance.
	//
	// t is the instance's own: its Cleanup functions run when the instance ends,
	// which in "crash" is at once. End a process there with SIGKILL; a server in
	// the test's process with its Close, which lets it finish. t is not a
	// *testing.T.
	Start func(t testing.TB, dsn string) (url string)

	// Request returns a new request under this key, in whatever header the service
	// takes it. Done once, it has one effect. n belongs into its payload, as a
	// quantity for example: with another n it is another request. Both 1 and 2
	// must be valid.
	Request func(url, key string, n int) *http.Request

	// Effects returns how many effects there are in all, whatever their keys: the
	// rows of a table, or the effects in the ledger of a [Vendor]. It is asked when
	// requests are answered: what a worker does later is counted by what makes it
	// do so, such as the intents in the outbox.
	Effects func(t testing.TB, db *DB) int

	// Within is how long a client goes on until it has its answer: longer than the
	// service takes to find out that an attempt died. Default 10 s.
	Within time.Duration

	// Remembers is how long the service promises to remember a key, at least two
	// minutes. Default 24 h.
	Remembers time.Duration
}

// Tool is a function of yours that takes a key, such as a tool for agents, as
// [ConformTool] needs it.
type Tool struct {
	// Prepare, Effects, Within and Remembers are as in [Service].
	Prepare   func(t testing.TB, db *DB)
	Effects   func(t testing.TB, db *DB) int
	Within    time.Duration
	Remembers time.Duration

	// Start returns the tool as a new process would have it: with a pool of its
	// own on this DSN, and nothing in memory. Otherwise it is as in [Service].
	//
	// In the tool, n belongs into the payload, as in Service.Request. A nil error
	// means that the answer is the operation's. Any error means that there is no
	// answer, and that the same call may be made again, except in "mismatch", where
	// it refuses the payload.
	Start func(t testing.TB, dsn string) func(ctx context.Context, key string, n int) (answer string, err error)
}

// Conform puts a service to the test on a database of its own ([NewDB]), each
// promise in a subtest. All say the same in the end: one key, one effect, one
// answer.
//
//	func TestOrdersAreMadeOnce(t *testing.T) {
//		samekeytest.Conform(t, samekeytest.Service{
//			Prepare: func(t testing.TB, db *samekeytest.DB) { migrate(t, db.Pool) },
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
//			Request: func(url, key string, n int) *http.Request {
//				body := fmt.Sprintf(`{"product":"tea","quantity":%d}`, n)
//				req, _ := http.NewRequest("POST", url+"/orders", strings.NewReader(body))
//				req.Header.Set("Idempotency-Key", key)
//				return req
//			},
//			Effects: func(t testing.TB, db *samekeytest.DB) (n int) {
//				if err := db.QueryRow(t.Context(), "select count(*) from orders").Scan(&n); err != nil {
//					t.Fatal(err)
//				}
//				return n
//			},
//		})
//	}
//
// The subtests:
//
//   - identical: the same request again, on the same instance and after a
//     restart, has no second effect and gets the first answer.
//   - another_key: the same payload under another key is another operation.
//   - mismatch: another payload under a used key is refused with a 4xx, in
//     sequence, after a restart, and where the two overlap. It has no effect, and
//     the first answer still replays.
//   - overlapping: of three that run at once on three instances, one has the
//     effect; each gets its answer, or is told to try again and then gets it. So
//     it is where the first of them loses its connection instead of committing.
//   - lost_answer: the service acts and the client hears 503, or nothing, or half;
//     what it gets at its next try is the answer that was lost.
//   - duplicated: a proxy sends the request twice, at once and one by one.
//   - lost_connection: the connection to the database breaks at each of the
//     request's round trips, before the server gets it and after it did it.
//   - crash: the instance dies there: its connections break and no new one can be
//     made. Another instance gets the request again. Then the first wakes up, as
//     one does that was only believed dead, and must do nothing more.
//   - like_keys: keys that differ in their first or last character alone, up to 255
//     characters, or in case alone, are different operations. A key that the service
//     refuses is left out, and the log says so.
//   - client_gone: the client goes while the request is held before one of its
//     round trips, each in turn; then it asks again.
//   - suspended: an instance stands still there instead, until a lease of up to an
//     hour is over, and goes on when another one has had half a second for the
//     request.
//   - remembered: the same request again after four seconds, and after Remembers.
//
// For a lease and for Remembers no time passes: the columns of type timestamptz
// and timestamp are moved back, in the tables to which requests add rows.
//
// "Told to try again" is a lost connection, 409, 425, 429, 5xx, or anything with
// Retry-After, which is not waited for. A 2xx or 3xx is the answer. Two answers
// are the same if status, body, Content-Type, Location, ETag and Link are.
//
// Overlapping requests overlap for certain: each round trip to the database is
// held until every request has come to one, waits for a lock of the database, or
// is answered. Where a request waits for something else, they are let go after
// five seconds, and the log says so. Start the service without workers that ask
// the database by themselves: their round trips would count as a request's.
//
// The crash is that of the database's client. What the service does elsewhere
// (a vendor's call, a file) is seen by Effects alone, and not interrupted.
//
// Conform takes about ten seconds for a service that answers at once. It does not
// find:
//
//   - a memory or a lease whose time is in another place (a cache, a column that
//     holds a number) and lasts longer than four seconds, or half a second;
//   - a key of one principal that is another's too, since it knows only the one that
//     Request names;
//   - two requests that are taken for the same though they differ in something that
//     n does not change: path, query, headers, another route;
//   - what an answer leaks when it is replayed, and whether it may still be seen;
//   - an effect that Effects does not count, and one that comes after the answer;
//   - what depends on load, on more than three requests at once, on another version
//     of the service, or on the database's failover.
func Conform(t *testing.T, service Service) {
	t.Helper()
	if service.Start == nil || service.Request == nil || service.Effects == nil {
		t.Fatal("samekeytest: Conform: Service needs Start, Request and Effects")
	}
	// A connection for each request, so that none is sent twice behind our back.
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

// ConformTool is [Conform] for a function. A lost answer is one that the caller
// ignores before it calls again, as identical does; so there is neither
// lost_answer nor duplicated. An answer is the same if it is the same string.
// After a crash the call goes on without a database; it is waited for in the
// end.
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
