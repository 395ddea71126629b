package ginkey_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/gin-gonic/gin"
	"go.uber.org/goleak"

	"github.com/samekey/samekey/processed"
	"github.com/samekey/samekey/processed/httpkey"
	"github.com/samekey/samekey/processed/httpkey/ginkey"
	"github.com/samekey/samekey/samekeytest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var errSold = errors.New("sold out")

// shop is a service on a database of its own, behind a real socket.
type shop struct {
	t   *testing.T
	db  *samekeytest.DB
	log *logbook
	url string
	ran atomic.Int64
}

func start(t *testing.T) *shop {
	t.Helper()
	s := &shop{t: t, db: samekeytest.NewDB(t), log: &logbook{}}
	if _, err := s.db.Exec(t.Context(), "create table orders (id bigint generated always as identity primary key, item text not null)"); err != nil {
		t.Fatal(err)
	}
	keyed, err := httpkey.New(s.db.Pool, httpkey.Options{
		Scope:  scope,
		Logger: slog.New(slog.NewTextHandler(s.log, nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	s.serve(keyed)
	return s
}

// order writes a row, and ends as the item says.
func (s *shop) order(ctx context.Context, item string) (id int64, err error) {
	ran := s.ran.Add(1)
	tx := httpkey.Tx(ctx)
	if err := tx.QueryRow(ctx, "insert into orders (item) values ($1) returning id", item).Scan(&id); err != nil {
		return 0, err
	}
	switch {
	case item == "sold":
		return 0, errSold
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

type reply struct {
	status   int
	header   http.Header
	body     string
	replayed bool
}

func (s *shop) send(method, key, item string) reply {
	s.t.Helper()
	req, err := http.NewRequestWithContext(s.t.Context(), method, s.url+"/v1/orders/"+item, strings.NewReader(`{"quantity":1}`))
	if err != nil {
		s.t.Fatal(err)
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
		s.t.Fatal(err)
	}
	body, err := io.ReadAll(res.Body)
	_ = res.Body.Close()
	if err != nil {
		s.t.Error(err)
	}
	return reply{res.StatusCode, res.Header, string(body), res.Header.Get("Idempotent-Replayed") == "true"}
}

func (s *shop) post(key, item string) reply {
	s.t.Helper()
	return s.send("POST", key, item)
}

// holds checks the orders, the records and how often the handler ran.
func (s *shop) holds(orders, records, ran int64) {
	s.t.Helper()
	have := [3]int64{0, 0, s.ran.Load()}
	err := s.db.QueryRow(s.t.Context(), "select (select count(*) from orders), (select count(*) from samekey.processed_events)").Scan(&have[0], &have[1])
	if want := [3]int64{orders, records, ran}; err != nil || have != want {
		s.t.Errorf("orders, records, runs of the handler: %v, want %v (%v)", have, want, err)
	}
}

func (s *shop) same(first, again reply) {
	s.t.Helper()
	if first.replayed || !again.replayed || first.status != again.status || first.body != again.body ||
		first.header.Get("Content-Type") != again.header.Get("Content-Type") || first.header.Get("Location") != again.header.Get("Location") {
		s.t.Errorf("first %+v\nagain %+v", first, again)
	}
}

func TestARouteIsSafeToRepeat(t *testing.T) {
	s := start(t)
	first := s.post("k1", "tea")
	s.same(first, s.post("k1", "tea"))
	if first.status != 201 || first.header.Get("Location") != "/v1/orders/1" || !strings.Contains(first.body, `"id":1`) || !strings.HasPrefix(first.header.Get("Content-Type"), "application/json") {
		t.Errorf("first %+v", first)
	}
	if first.header.Get("X-Outer") != "1" || len(first.header["X-Outer"]) != 1 {
		t.Errorf("what stands in front has set %q", first.header["X-Outer"])
	}
	if got := s.post("k1", "milk"); got.status != 422 || !strings.Contains(got.body, "key-reused") {
		t.Errorf("another path: %+v", got)
	}
	if got := s.post("", "tea"); got.status != 400 || !strings.Contains(got.body, "key-missing") {
		t.Errorf("without a key: %+v", got)
	}
	if got := s.post("k1|k2", "tea"); got.status != 400 || !strings.Contains(got.body, "key-invalid") {
		t.Errorf("with two keys: %+v", got)
	}
	s.holds(1, 1, 1)
	if got := s.send("GET", "k1", "tea"); got.status != 200 || got.body != "tea" {
		t.Errorf("GET: %+v", got)
	}
	if got := s.send("GET", "k1", "missing"); got.status != 404 {
		t.Errorf("GET: %+v", got)
	}
}

func TestAnAnswerWithoutABodyReplays(t *testing.T) {
	s := start(t)
	first := s.post("k1", "empty")
	s.same(first, s.post("k1", "empty"))
	if first.status != 204 || first.body != "" {
		t.Errorf("first %+v", first)
	}
	s.holds(1, 1, 1)
}

func TestErrorsBecomeAnswersOrAreForgotten(t *testing.T) {
	s := start(t)
	first := s.post("k1", "sold") // an answer of the service's own
	s.same(first, s.post("k1", "sold"))
	if first.status != 409 {
		t.Errorf("sold: %+v", first)
	}
	declined := s.post("k2", "declined")
	s.same(declined, s.post("k2", "declined"))
	if declined.status != 402 || declined.body != `"declined"` {
		t.Errorf("declined: %+v", declined)
	}
	s.holds(0, 2, 2)
	for range 2 {
		if got := s.post("k3", "broken"); got.status != 500 || got.replayed {
			t.Errorf("broken: %+v", got)
		}
	}
	s.holds(0, 2, 4)
	if !strings.Contains(s.log.String(), "broken") {
		t.Errorf("the log does not say why: %s", s.log)
	}
}

func TestACollisionIsDoneAgain(t *testing.T) {
	s := start(t)
	first := s.post("k1", "again")
	s.same(first, s.post("k1", "again"))
	if first.status != 201 || len(first.header["X-Run"]) != 1 {
		t.Errorf("%+v", first)
	}
	s.holds(1, 1, 2)
}

func TestAPanicStoresNothing(t *testing.T) {
	s := start(t)
	if got := s.post("k1", "panic"); got.status != 500 || got.header.Get("Location") != "" {
		t.Errorf("%+v", got)
	}
	s.holds(0, 0, 1)
}

func TestTwentyAtOnceAreOneEffect(t *testing.T) {
	s := start(t)
	var clients sync.WaitGroup
	for range 20 {
		clients.Go(func() {
			if got := s.post("k1", "tea"); got.status != 201 && got.status != 409 {
				t.Errorf("%+v", got)
			}
		})
	}
	clients.Wait()
	s.holds(1, 1, 1)
}

func TestAHandlerOfGinThatAnswersNothingIsAnError(t *testing.T) {
	s := start(t)
	if got := s.post("k1", "silent"); got.status != 500 || !strings.Contains(got.body, "internal") {
		t.Errorf("%+v", got)
	}
	s.holds(0, 0, 1)
}

// logbook keeps what was logged.
type logbook struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *logbook) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logbook) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// httpkeyed reports whether the request is one that the middleware made.
func httpkeyed(r *http.Request) (keyed bool) {
	defer func() { keyed = recover() == nil }()
	httpkey.Key(r.Context())
	return true
}

func scope(r *http.Request) []string {
	return []string{ginkey.Context(r).GetString("tenant"), "orders.create"}
}

func (s *shop) serve(keyed *httpkey.Middleware) {
	gin.SetMode(gin.ReleaseMode)
	g := gin.New()
	g.Use(gin.RecoveryWithWriter(io.Discard), func(c *gin.Context) {
		c.Set("tenant", c.GetHeader("X-Tenant"))
		c.Header("X-Outer", "1")
		c.Next()
		if c.Request.Method == "POST" && (!c.Writer.Written() || c.Writer.Status() == http.StatusOK || httpkeyed(c.Request)) {
			s.t.Errorf("a log further out sees %d", c.Writer.Status())
		}
	})
	v1 := g.Group("/v1")
	v1.POST("/orders/:item", ginkey.Handler(keyed, s.create))
	v1.GET("/orders/:item", ginkey.Handler(keyed, func(c *gin.Context) {
		if c.Param("item") == "missing" {
			c.AbortWithStatus(http.StatusNotFound)
			return
		}
		c.String(http.StatusOK, c.Param("item"))
	}))
	server := httptest.NewServer(g)
	s.t.Cleanup(server.Close)
	s.url = server.URL
}

func (s *shop) create(c *gin.Context) {
	var asked struct{ Quantity int }
	if err := c.ShouldBindJSON(&asked); err != nil || asked.Quantity != 1 {
		s.t.Errorf("the body is %+v, %v", asked, err)
	}
	if _, seen := c.Get("seen"); seen {
		s.t.Error("the second run sees what the first one has set")
	}
	c.Set("seen", true)
	c.Header("X-Run", "1")
	c.Header("Location", "/half")
	id, err := s.order(c.Request.Context(), c.Param("item"))
	switch {
	case errors.Is(err, errSold):
		_ = c.AbortWithError(http.StatusConflict, err)
	case err != nil:
		_ = c.Error(err)
	case c.Param("item") == "empty":
		c.Status(http.StatusNoContent)
	case c.Param("item") == "silent":
	default:
		c.Header("Location", fmt.Sprint("/v1/orders/", id))
		c.JSON(http.StatusCreated, gin.H{"id": id})
	}
}
