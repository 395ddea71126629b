package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
)

// traffic is the clients. Each client posts its order twice under one key, every third client both at the same moment.
// A client sends a post again until it is answered.
type traffic struct {
	url    string
	http   *http.Client
	random *rand.Rand

	clients  atomic.Int64 // clients that have started
	requests atomic.Int64 // requests sent, answered or not

	mu      sync.Mutex
	replies []reply
}

func newTraffic(url string, seed uint64) *traffic {
	return &traffic{
		url: url, random: rand.New(rand.NewPCG(seed, 1)),
		http: &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{MaxIdleConnsPerHost: 64}},
	}
}

// run starts at least this many orders, at a steady rate, and continues until enough is closed. It returns when every
// client has its answers.
func (t *traffic) run(ctx context.Context, seed uint64, orders, perSecond int, enough <-chan struct{}) {
	var clients sync.WaitGroup
	defer clients.Wait()
	tick := time.NewTicker(time.Second / time.Duration(perSecond))
	defer tick.Stop()
	for i := 0; ; i++ {
		if i >= orders {
			select {
			case <-enough:
				return
			default:
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		c := t.client(seed, i)
		clients.Go(func() { c.run(ctx) })
		t.clients.Add(1)
	}
}

// client orders one product.
type client struct {
	*traffic
	key   string
	body  []byte
	other []byte // another order under the same key, sent by mistake, or nil
	want  int
	gap   time.Duration // between its two posts; 0: both at the same moment
}

// client decides everything about the i-th client before it runs, so that the seed determines it.
func (t *traffic) client(seed uint64, i int) *client {
	r := t.random
	product, quantity := []string{"tea", "coffee", "cake"}[r.IntN(3)], 1+r.IntN(5)
	c := &client{
		traffic: t, want: http.StatusCreated, gap: 1 + time.Duration(r.IntN(300))*time.Millisecond,
		key: fmt.Sprintf("demo-%d-%04d", seed, i),
	}
	if i%3 == 0 {
		c.gap = 0
	}
	if i%50 == 49 {
		product, c.want = "unicorn", http.StatusNotFound
	}
	order := func(quantity int) []byte {
		return fmt.Appendf(nil, `{"product":%q,"quantity":%d,"email":"client%d@example.com","card":{"token":"tok_%d","declined":%t}}`,
			product, quantity, i, i, i%20 == 10)
	}
	c.body = order(quantity)
	if i%40 == 20 {
		c.other = order(quantity + 1)
	}
	return c
}

func (c *client) run(ctx context.Context) {
	if c.gap == 0 {
		var both sync.WaitGroup
		both.Go(func() { c.post(ctx, c.body, c.want) })
		both.Go(func() { c.post(ctx, c.body, c.want) })
		both.Wait()
	} else {
		c.post(ctx, c.body, c.want)
		pause(ctx, c.gap)
		c.post(ctx, c.body, c.want)
	}
	if c.other != nil {
		c.post(ctx, c.other, http.StatusUnprocessableEntity)
	}
}

// post sends the request until there is an answer, always with the same key.
func (c *client) post(ctx context.Context, body []byte, want int) {
	r := reply{key: c.key, want: want}
	for try := 0; ctx.Err() == nil; try++ {
		c.requests.Add(1)
		after, final := c.once(ctx, body, &r)
		if final {
			break
		}
		pause(ctx, max(after, 50*time.Millisecond+rand.N(100*time.Millisecond)))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.replies = append(c.replies, r)
}

// once makes one attempt. It reports whether the answer is final, and if not, how long to wait.
func (c *client) once(ctx context.Context, body []byte, r *reply) (after time.Duration, final bool) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url+"/orders", bytes.NewReader(body))
	if err != nil {
		r.body = err.Error()
		return 0, true
	}
	req.GetBody = nil // one attempt is one request
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Idempotency-Key", c.key)
	req.Header.Set("X-Tenant", "demo")
	res, err := c.http.Do(req)
	if err != nil {
		r.status, r.body = 0, err.Error()
		return 0, false
	}
	defer res.Body.Close()
	answer, err := io.ReadAll(res.Body)
	if err != nil {
		r.status, r.body = 0, err.Error()
		return 0, false
	}
	r.status, r.body, r.replayed = res.StatusCode, string(answer), res.Header.Get("Idempotent-Replayed") == "true"
	switch {
	case res.StatusCode == http.StatusConflict, res.StatusCode == http.StatusTooManyRequests, res.StatusCode >= 500:
		seconds, _ := strconv.Atoi(res.Header.Get("Retry-After"))
		return time.Duration(seconds) * time.Second, false
	}
	var order struct{ ID uuid.UUID }
	_ = json.Unmarshal(answer, &order)
	r.order = order.ID
	return 0, true
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
