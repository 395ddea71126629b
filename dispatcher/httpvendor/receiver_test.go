package httpvendor

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/samekey/samekey"
	"github.com/samekey/samekey/dispatcher"
	"github.com/samekey/samekey/outbox"
	"github.com/samekey/samekey/outbox/endpoints"
	"github.com/samekey/samekey/samekeytest"
)

// hooks is a server of many receivers, by path. The test sets the status of each.
type hooks struct {
	*httptest.Server
	mu     sync.Mutex
	status map[string]int // default 200
	got    []hook
}

type hook struct {
	target, id, signature, stamp, authorization, body string
}

func startHooks(t *testing.T) *hooks {
	h := &hooks{status: map[string]int{}}
	h.Server = httptest.NewServer(h)
	t.Cleanup(h.Close)
	return h
}

func (h *hooks) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.got = append(h.got, hook{r.RequestURI, r.Header.Get("Webhook-Id"), r.Header.Get("Webhook-Signature"), r.Header.Get("Webhook-Timestamp"), r.Header.Get("Authorization"), string(body)})
	if status := h.status[r.URL.Path]; status != 0 {
		w.WriteHeader(status)
	}
	_, _ = io.WriteString(w, r.Header.Get("Authorization"))
}

// take returns the requests since the last call of take.
func (h *hooks) take() []hook {
	h.mu.Lock()
	defer h.mu.Unlock()
	got := h.got
	h.got = nil
	return got
}

func (h *hooks) answer(path string, status int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.status[path] = status
}

// hookWorld has a database, receivers, and an action that calls them.
type hookWorld struct {
	*testing.T
	db     *samekeytest.DB
	hooks  *hooks
	dest   Destination
	action Action
}

func setupHooks(t *testing.T) *hookWorld {
	dest := StandardWebhooks()
	dest.Name, dest.AllowPrivate = "webhooks", loopback
	return &hookWorld{T: t, db: database(t), hooks: startHooks(t), dest: dest, action: Action{
		Request: "POST", Policy: dispatcher.Policy{Class: dispatcher.IdempotentWrite, KeyWindow: dispatcher.Forever,
			Deadline: 72 * time.Hour, Backoff: 50 * time.Second, MaxBackoff: 50 * time.Second}}} // longer than a drain, shorter than what the tests let elapse
}

func (w *hookWorld) put(name, url string, secrets ...string) {
	w.Helper()
	if err := endpoints.Put(w.Context(), w.db, endpoints.Endpoint{Destination: "webhooks", Name: name, URL: url, Secrets: secrets}, outbox.By{Actor: name, Reason: "registered"}); err != nil {
		w.Fatal(err)
	}
}

func (w *hookWorld) insert(part, payload string) (id uuid.UUID) {
	w.Helper()
	key, err := samekey.NewKey(samekey.Mint(), "test", "notify")
	if err != nil {
		w.Fatal(err)
	}
	err = pgx.BeginFunc(w.Context(), w.db, func(tx pgx.Tx) (err error) {
		id, err = outbox.Insert(w.Context(), tx, outbox.Intent{Key: key, Action: "notify", Part: part, Payload: json.RawMessage(payload)})
		return err
	})
	if err != nil {
		w.Fatal(err)
	}
	return id
}

func (w *hookWorld) drain() {
	w.Helper()
	client, err := New(w.dest)
	if err != nil {
		w.Fatal(err)
	}
	defer client.Close()
	d := dispatcher.New(w.db.Pool, &dispatcher.Config{Logger: slog.New(slog.NewTextHandler(w.Output(), nil))})
	client.register(d, "notify", w.action)
	if _, err := d.Drain(w.Context()); err != nil {
		w.Fatal(err)
	}
}

// want drains, and compares the statuses and codes of the intents.
func (w *hookWorld) want(want map[uuid.UUID]string) {
	w.Helper()
	w.drain()
	for id, want := range want {
		e := w.get(id)
		if got := string(e.Status) + " " + e.Code; got != want {
			w.Errorf("is %s, want %s", got, want)
		}
	}
}

func (w *hookWorld) get(id uuid.UUID) outbox.Entry {
	w.Helper()
	e, err := outbox.Get(w.Context(), w.db.Pool, id)
	if err != nil {
		w.Fatal(err)
	}
	return e
}

// signed reports whether a webhook has a signature for each secret and no other one.
func signed(h hook, secrets ...string) bool {
	s, _, err := newSigner(standardForm, secrets)
	if err != nil {
		return false
	}
	stamp, err := strconv.ParseInt(h.stamp, 10, 64)
	if err != nil {
		return false
	}
	header := http.Header{}
	s.sign(header, h.id, time.Unix(stamp, 0), []byte(h.body))
	return header.Get("Webhook-Signature") == h.signature
}

func TestStoredEndpointsUntil410(t *testing.T) {
	w := setupHooks(t)
	ours, theirs, newer := endpoints.NewSecret(), endpoints.NewSecret(), endpoints.NewSecret()
	w.put("shop-1", w.hooks.URL+"/one?tenant=1", ours)
	w.put("shop-2", w.hooks.URL+"/two", theirs)
	w.hooks.answer("/one", 503)
	first, other := w.insert("shop-1", `{"n": 1}`), w.insert("shop-2", `{"n": 2}`)
	w.want(map[uuid.UUID]string{first: "pending 503", other: "delivered 200"})
	got := w.hooks.take()
	if len(got) != 2 {
		t.Fatalf("%+v", got)
	}
	one, two := got[0], got[1]
	if one.target == "/two" {
		one, two = two, one
	}
	if one.target != "/one?tenant=1" || one.id != w.get(first).DeliveryKey.String() || one.body != `{"n": 1}` || !signed(one, ours) || two.target != "/two" || !signed(two, theirs) || signed(two, ours) {
		t.Fatalf("%+v\n%+v", one, two)
	}

	// While its secret is being replaced, each call is signed with both. Its id stays.
	w.put("shop-1", w.hooks.URL+"/one?tenant=1", newer, ours)
	samekeytest.Elapse(t, w.db, time.Minute)
	w.drain()
	if got := w.hooks.take(); len(got) != 1 || got[0].id != one.id || got[0].body != one.body || !signed(got[0], newer, ours) {
		t.Fatalf("%+v", got)
	}

	// The receiver answers 410: its queued intents are not sent. Other receivers still get theirs.
	w.hooks.answer("/one", 410)
	samekeytest.Elapse(t, w.db, time.Minute)
	w.want(map[uuid.UUID]string{first: "dead 410"})
	second, more := w.insert("shop-1", `{"n": 3}`), w.insert("shop-2", `{"n": 4}`)
	w.want(map[uuid.UUID]string{second: "dead endpoint_stopped", more: "delivered 200"})
	if got := w.hooks.take(); len(got) != 2 || got[0].target != "/one?tenant=1" || got[1].target != "/two" {
		t.Fatalf("%+v", got)
	}
	e, err := endpoints.Get(t.Context(), w.db, "webhooks", "shop-1")
	if err != nil || !e.Stopped() || !strings.Contains(e.StopReason, "answered 410") || strings.Contains(e.StopReason, "tenant") {
		t.Fatalf("%q, %v", e.StopReason, err)
	}

	// The receiver is started again, and nothing was lost.
	w.hooks.answer("/one", 200)
	if err := endpoints.Start(t.Context(), w.db, "webhooks", "shop-1", outbox.By{Actor: "ada", Reason: "the shop is back"}); err != nil {
		t.Fatal(err)
	}
	by := outbox.By{Actor: "ada", Reason: "the shop is back"}
	if n, err := outbox.RedriveAll(outbox.Filter{Action: "notify", Part: "shop-1"}, by).Run(t.Context(), w.db.Pool); n != 2 || err != nil {
		t.Fatalf("%d redriven, %v", n, err)
	}
	w.want(map[uuid.UUID]string{first: "delivered 200", second: "delivered 200"})
}

func TestSecretsOfAReceiverStayWithIt(t *testing.T) {
	w := setupHooks(t)
	client, err := New(w.dest)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	handler, _, err := client.handler(w.action)
	if err != nil {
		t.Fatal(err)
	}
	for _, user := range []string{"shop:pa55word@", ""} {
		call := testCall("{}")
		call.Endpoint = &dispatcher.Endpoint{URL: strings.Replace(w.hooks.URL, "://", "://"+user, 1), Secrets: dispatcher.Secrets{endpoints.NewSecret()}}
		if _, err := handler(t.Context(), call); err != nil {
			t.Fatal(err)
		}
	}
	if got := w.hooks.take(); len(got) != 2 || got[0].authorization == "" || got[1].authorization != "" {
		t.Errorf("%+v", got)
	}
	w.put("shop-1", strings.Replace(w.hooks.URL, "://", "://shop:pa55word@", 1)+"/hook", endpoints.NewSecret())
	id := w.insert("shop-1", `{}`)
	w.want(map[uuid.UUID]string{id: "delivered 200"})
	basic := base64.StdEncoding.EncodeToString([]byte("shop:pa55word"))
	if got := w.hooks.take(); len(got) != 1 || got[0].authorization != "Basic "+basic {
		t.Errorf("%+v", got)
	}
	e := w.get(id)
	if body := string(e.History[len(e.History)-1].Response); body != "Basic [redacted]" {
		t.Errorf("kept %q", body)
	}
}

// The error pages of many servers contain the path.
func TestURLOfAReceiverIsRedacted(t *testing.T) {
	w := setupHooks(t)
	server := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		rw.WriteHeader(http.StatusNotFound)
		_, _ = fmt.Fprintf(rw, "Cannot POST %s. No route %q, hook %q, token %q", r.RequestURI, r.URL.Path, path.Base(r.URL.Path), r.URL.Query().Get("t"))
	}))
	defer server.Close()
	w.put("shop-1", server.URL+"/hooks/0p3n%2fS3same-0p3nS3same/?t=t0ken+1", endpoints.NewSecret())
	id := w.insert("shop-1", `{}`)
	w.want(map[uuid.UUID]string{id: "pending 404"})
	body := string(w.get(id).History[0].Response)
	for _, secret := range []string{"0p3n", "S3same", "t0ken"} {
		if strings.Contains(body, secret) || !strings.Contains(body, "No route") {
			t.Errorf("%s is kept: %s", secret, body)
		}
	}
}

func TestInvalidEndpointIsDead(t *testing.T) {
	w := setupHooks(t)
	for what, c := range map[string]struct{ url, secret, says string }{
		"no URL":      {"http:///path", endpoints.NewSecret(), "URL has no host"},
		"a space":     {w.hooks.URL + "/?a=b c", endpoints.NewSecret(), "query with a space"},
		"not ASCII":   {w.hooks.URL + "/?a=ü", endpoints.NewSecret(), "not ASCII"},
		"port 0":      {"http://shop.example:0/", endpoints.NewSecret(), "port outside"},
		"a high port": {"http://shop.example:70000/", endpoints.NewSecret(), "port outside"},
		"no secret":   {w.hooks.URL, "", "no secret to sign with"},
		"another one": {w.hooks.URL, "not base64 at all: s3cret", "is not whsec_"},
	} {
		secrets := []string{}
		if c.secret != "" {
			secrets = append(secrets, c.secret)
		}
		_, err := w.db.Exec(t.Context(), `insert into samekey.endpoints (destination, name, url, secrets) values ('webhooks', $1, $2, $3)`, what, c.url, secrets)
		if err != nil {
			t.Fatal(err)
		}
		id := w.insert(what, `{}`)
		w.want(map[uuid.UUID]string{id: "dead endpoint"})
		if says := w.get(id).History[0].Error; !strings.Contains(says, c.says) || strings.Contains(says, "s3cret") {
			t.Errorf("%s: %s", what, says)
		}
	}
	if got := w.hooks.take(); len(got) != 0 {
		t.Errorf("%+v", got)
	}
}

// A customer's endpoint has a private address: nothing is sent, and the intent is not retried forever.
func TestPrivateReceiverIsDeadAtTheDeadline(t *testing.T) {
	w := setupHooks(t)
	w.dest.AllowPrivate = nil
	w.put("shop-1", w.hooks.URL, endpoints.NewSecret())
	id := w.insert("shop-1", `{}`)
	w.want(map[uuid.UUID]string{id: "pending unsent"})
	if says := w.get(id).History[0].Error; !strings.Contains(says, "not public") {
		t.Error(says)
	}
	samekeytest.Elapse(t, w.db, 73*time.Hour)
	w.want(map[uuid.UUID]string{id: "dead deadline"})
	if got := w.hooks.take(); len(got) != 0 {
		t.Errorf("%+v", got)
	}
}

// The proxy resolves names and decides which addresses are allowed. An endpoint that is a private address is refused
// before the proxy is asked.
func TestProxyIsNotAskedForPrivateAddresses(t *testing.T) {
	w := setupHooks(t)
	var mu sync.Mutex
	var asked []string
	proxy := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		asked = append(asked, r.Host)
	}))
	defer proxy.Close()
	w.dest.Proxy = proxy.URL
	want := map[uuid.UUID]string{}
	for _, host := range []string{"169.254.169.254", "10.0.0.1.", "[::ffff:10.0.0.1]", "[fe80::1%25eth0]:80", "2130706433", "0x7f.1", "127.1", "0177.0.0.1", "１６９.254.169.254", "⑩.0.0.1", "."} {
		for _, scheme := range []string{"http", "https"} {
			name := scheme + " " + host
			w.put(name, scheme+"://"+host+"/", endpoints.NewSecret())
			want[w.insert(name, `{}`)] = "dead endpoint"
		}
	}
	for _, host := range []string{"shop.example", "8.8.8.8", "xn--bcher-kva.example", "127.0.0.1:81"} { // AllowPrivate has the last one
		w.put(host, "http://"+host+"/", endpoints.NewSecret())
		want[w.insert(host, `{}`)] = "delivered 200"
	}
	w.want(want)
	mu.Lock()
	defer mu.Unlock()
	if len(asked) != 4 {
		t.Errorf("the proxy was asked for %q", asked)
	}
}

// Among thousands of receivers, some always hang. Here they hold 160 calls.
func TestHangingReceiversLeaveRoom(t *testing.T) {
	w := setupHooks(t)
	release, reached := make(chan struct{}), make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/hangs" {
			<-release
			return
		}
		close(reached)
	}))
	defer server.Close()
	defer close(release)
	for i := range 40 {
		name := fmt.Sprint("hangs-", i)
		w.put(name, server.URL+"/hangs", endpoints.NewSecret())
		for range 4 {
			w.insert(name, `{}`)
		}
	}
	w.put("works", server.URL+"/works", endpoints.NewSecret())
	w.insert("works", `{}`)
	client, err := New(w.dest)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	d := dispatcher.New(w.db.Pool, &dispatcher.Config{Logger: slog.New(slog.NewTextHandler(w.Output(), nil)), StopTimeout: time.Millisecond})
	client.register(d, "notify", w.action)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- d.Run(ctx) }()
	select {
	case <-reached:
	case <-time.After(20 * time.Second): // less than their Timeout
		t.Error("the receiver is not called")
	}
	cancel()
	<-ended
}

func TestEndpointNameFromThePayload(t *testing.T) {
	w := setupHooks(t)
	w.dest.Endpoint = `shop-{{.Payload.shop}}`
	w.put("shop-7", w.hooks.URL+"/seven", endpoints.NewSecret())
	known, none := w.insert("", `{"shop": 7}`), w.insert("shop-7", `{"store": 7}`)
	w.want(map[uuid.UUID]string{known: "delivered 200", none: "dead endpoint_missing"})
}

// A lookup asks the endpoint, without its signature.
func TestLookupAsksTheEndpoint(t *testing.T) {
	w := setupHooks(t)
	w.action.Policy.Class, w.action.Policy.KeyWindow, w.action.Policy.SettlingDelay = dispatcher.NonIdempotentWrite, 0, -1
	w.action.Lookup = &Lookup{Request: "GET /seen?id={{.Key}}", Rules: []Rule{{Match: Match{Status: status(200, 200)}, Outcome: dispatcher.Delivered}}}
	w.put("shop-1", w.hooks.URL+"/one?tenant=1", endpoints.NewSecret())
	w.hooks.answer("/one", 500)
	id := w.insert("shop-1", `{}`)
	w.want(map[uuid.UUID]string{id: "delivered 200"})
	if got := w.hooks.take(); len(got) != 2 || got[1].target != "/one/seen?tenant=1&id="+w.get(id).DeliveryKey.String() || got[1].signature != "" {
		t.Errorf("%+v", got)
	}
}

// A destination with a URL can have limits per endpoint too.
func TestOneURLMayHaveManyEndpoints(t *testing.T) {
	dest := Destination{Name: "shops", URL: "https://shops.example", Endpoint: "{{.Payload.shop}}", Limits: dispatcher.Limits{PerEndpoint: 2}}
	client, err := New(dest)
	if err != nil {
		t.Fatal(err)
	}
	d := dispatcher.New(nil, nil)
	p := dispatcher.Policy{Class: dispatcher.IdempotentWrite, KeyWindow: time.Hour}
	client.register(d, "notify", Action{Request: "POST /shops/{{.Payload.shop}}", Policy: p})
	if err := d.Check(); err != nil { // PerEndpoint needs an Endpoint
		t.Error(err)
	}
	if got := client.nameEndpoint(&dispatcher.Call{Payload: []byte(`{"shop": 7}`)}); got != "7" {
		t.Errorf("the endpoint is %q", got)
	}
}

func TestDeliveryWithoutItsEndpointIsDead(t *testing.T) {
	dest := StandardWebhooks()
	handler := testHandler(t, dest, Action{Request: "POST"})
	_, err := attempt(t, handler, testCall("{}"), patience)
	if verdict(err) != "dead" || !strings.Contains(err.Error(), "as it was made") {
		t.Error(err)
	}
}
