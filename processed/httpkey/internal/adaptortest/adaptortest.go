// Package adaptortest is the conformance suite of the framework adaptors: ginkey, echokey and fiberkey each serve the
// same shop with their framework, and the suite sends it the same requests.
package adaptortest

import (
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/samekey/samekey/processed/httpkey"
)

// Adaptor is what the suite needs to know of one framework.
type Adaptor struct {
	// Scope is httpkey.Options.Scope. It reads the tenant that an outer middleware stored in the framework's context
	// from the header X-Tenant.
	Scope func(r *http.Request) []string

	// Serve starts a server on a free port and returns its URL. The test's cleanup stops it. An outer middleware stores
	// the tenant and sets the header X-Outer to 1. The routes are:
	//
	//	POST /v1/orders/:item  behind keyed, see Shop.Order. It adds the header X-Run: 1 and sets Location to /half first.
	//	                       A created order is a 201 with Location /v1/orders/ID and {"id":ID}, SoldOut is a 409, and the
	//	                       item "empty" is a 204.
	//	GET  /v1/orders/:item  behind keyed, which lets it pass. It answers with the item, or with 404 for "missing".
	Serve func(s *Shop, keyed *httpkey.Middleware) (url string)
}

// Conform runs the suite.
func (a Adaptor) Conform(t *testing.T) {
	t.Run("RouteIsSafeToRepeat", a.routeIsSafeToRepeat)
	t.Run("AnswerWithoutBodyReplays", a.answerWithoutBodyReplays)
	t.Run("ErrorsAreStoredOrForgotten", a.errorsAreStoredOrForgotten)
	t.Run("CollisionRunsHandlerAgain", a.collisionRunsHandlerAgain)
	t.Run("PanicStoresNothing", a.panicStoresNothing)
	t.Run("TwentyAtOnceAreOneEffect", a.twentyAtOnceAreOneEffect)
}

func (a Adaptor) routeIsSafeToRepeat(t *testing.T) {
	s := a.Start(t)
	first := s.Post("k1", "tea")
	s.Same(first, s.Post("k1", "tea"))
	if first.Status != 201 || first.Header.Get("Location") != "/v1/orders/1" || !strings.Contains(first.Body, `"id":1`) || !strings.HasPrefix(first.Header.Get("Content-Type"), "application/json") {
		t.Errorf("first %+v", first)
	}
	if first.Header.Get("X-Outer") != "1" || len(first.Header["X-Outer"]) != 1 {
		t.Errorf("the outer middleware set %q", first.Header["X-Outer"])
	}
	if got := s.Post("k1", "milk"); got.Status != 422 || !strings.Contains(got.Body, "key-reused") {
		t.Errorf("another path: %+v", got)
	}
	if got := s.Post("", "tea"); got.Status != 400 || !strings.Contains(got.Body, "key-missing") {
		t.Errorf("without a key: %+v", got)
	}
	if got := s.Post("k1|k2", "tea"); got.Status != 400 || !strings.Contains(got.Body, "key-invalid") {
		t.Errorf("with two keys: %+v", got)
	}
	s.Holds(1, 1, 1)
	if got := s.send("GET", "k1", "tea"); got.Status != 200 || got.Body != "tea" {
		t.Errorf("GET: %+v", got)
	}
	if got := s.send("GET", "k1", "missing"); got.Status != 404 {
		t.Errorf("GET: %+v", got)
	}
}

func (a Adaptor) answerWithoutBodyReplays(t *testing.T) {
	s := a.Start(t)
	first := s.Post("k1", "empty")
	s.Same(first, s.Post("k1", "empty"))
	if first.Status != 204 || first.Body != "" {
		t.Errorf("first %+v", first)
	}
	s.Holds(1, 1, 1)
}

func (a Adaptor) errorsAreStoredOrForgotten(t *testing.T) {
	s := a.Start(t)
	first := s.Post("k1", "sold") // the service answers this error itself
	s.Same(first, s.Post("k1", "sold"))
	if first.Status != 409 {
		t.Errorf("sold: %+v", first)
	}
	declined := s.Post("k2", "declined")
	s.Same(declined, s.Post("k2", "declined"))
	if declined.Status != 402 || declined.Body != `"declined"` {
		t.Errorf("declined: %+v", declined)
	}
	s.Holds(0, 2, 2)
	for range 2 {
		if got := s.Post("k3", "broken"); got.Status != 500 || got.Replayed {
			t.Errorf("broken: %+v", got)
		}
	}
	s.Holds(0, 2, 4)
	if !strings.Contains(s.Log(), "broken") {
		t.Errorf("the log lacks the cause: %s", s.Log())
	}
}

func (a Adaptor) collisionRunsHandlerAgain(t *testing.T) {
	s := a.Start(t)
	first := s.Post("k1", "again")
	s.Same(first, s.Post("k1", "again"))
	if first.Status != 201 || len(first.Header["X-Run"]) != 1 {
		t.Errorf("%+v", first)
	}
	s.Holds(1, 1, 2)
}

func (a Adaptor) panicStoresNothing(t *testing.T) {
	s := a.Start(t)
	if got := s.Post("k1", "panic"); got.Status != 500 || got.Header.Get("Location") != "" {
		t.Errorf("%+v", got)
	}
	s.Holds(0, 0, 1)
}

func (a Adaptor) twentyAtOnceAreOneEffect(t *testing.T) {
	s := a.Start(t)
	var clients sync.WaitGroup
	for range 20 {
		clients.Go(func() {
			if got := s.Post("k1", "tea"); got.Status != 201 && got.Status != 409 {
				t.Errorf("%+v", got)
			}
		})
	}
	clients.Wait()
	s.Holds(1, 1, 1)
}
