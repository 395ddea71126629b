package httpvendor

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"reflect"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"go.uber.org/goleak"

	"github.com/samekey/samekey/dispatcher"
	"github.com/samekey/samekey/internal/dbtest"
	"github.com/samekey/samekey/outbox"
	"github.com/samekey/samekey/samekeytest"
)

func TestMain(m *testing.M) {
	if url := os.Getenv(childURL); url != "" {
		child(url)
		return
	}
	dbtest.Parallel("6") // tests with a database mostly wait
	goleak.VerifyTestMain(m)
}

// database makes a database for one test. Such tests run in parallel, after the tests without a database.
func database(t *testing.T) *samekeytest.DB {
	t.Helper()
	t.Parallel()
	return samekeytest.NewDB(t)
}

const patience = 10 * time.Second

var deliveryKey = uuid.MustParse("0190d6a0-0000-8000-8000-000000000001")

func testCall(payload string) *dispatcher.Call {
	return &dispatcher.Call{
		ID: uuid.New(), DeliveryKey: deliveryKey, CarriedKey: deliveryKey.String(), Action: "charge_card", Attempt: 3, Payload: []byte(payload),
		ContentType: "application/json", Headers: map[string]string{},
	}
}

var loopback = prefixes("127.0.0.0/8", "::1/128")

func testClient(t *testing.T, dest Destination) *Client {
	t.Helper()
	if dest.Name == "" {
		dest.Name = "stripe"
	}
	dest.AllowPrivate = append(dest.AllowPrivate, loopback...)
	c, err := New(dest)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// handler is an action's Send.
type handler func(context.Context, *dispatcher.Call) (dispatcher.Outcome, error)

// handler returns an action's Delivery, its Send, and its mistakes.
func (c *Client) handler(action Action) (handler, dispatcher.Delivery[[]byte], error) {
	delivery := Delivery[[]byte](c, action)
	return func(ctx context.Context, call *dispatcher.Call) (dispatcher.Outcome, error) {
		return delivery.Send(ctx, call, call.Payload)
	}, delivery, delivery.Mistakes.Err()
}

// register registers an action with its destination.
func (c *Client) register(d *dispatcher.Dispatcher, name string, action Action) {
	c.Register(d)
	dispatcher.Handle(d, outbox.NewAction[[]byte](name), Delivery[[]byte](c, action))
}

func testHandler(t *testing.T, dest Destination, action Action) handler {
	t.Helper()
	if action.Request == "" {
		action.Request = "POST /v1/charges"
	}
	if action.Policy.Class == 0 {
		action.Policy.Class = dispatcher.IdempotentWrite
	}
	handler, _, err := testClient(t, dest).handler(action)
	if err != nil {
		t.Fatal(err)
	}
	return handler
}

// notDelivered is any other outcome.
type notDelivered struct {
	outcome dispatcher.Outcome
	err     error
}

func (n *notDelivered) Error() string {
	if n.err != nil {
		return n.err.Error()
	}
	return n.outcome.String()
}

// attempt makes one attempt with a deadline.
func attempt(t *testing.T, handler handler, call *dispatcher.Call, timeout time.Duration) (dispatcher.Response, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	return result(handler(ctx, call))
}

// result returns an outcome's response, and an error if it is not delivered.
func result(outcome dispatcher.Outcome, err error) (dispatcher.Response, error) {
	if err == nil && outcome.Kind() == delivered {
		return outcome.Response(), nil
	}
	return outcome.Response(), &notDelivered{outcome, err}
}

// verdict names an outcome as the dispatcher takes it.
func verdict(err error) string {
	if err == nil {
		return delivered
	}
	n := err.(*notDelivered)
	switch {
	case errors.Is(n.err, dispatcher.ErrUnsent):
		return "unsent"
	case n.err != nil:
		return "unknown"
	}
	return n.outcome.Kind()
}

func askedWait(err error) time.Duration {
	return time.Duration(reflect.ValueOf(err.(*notDelivered).outcome).FieldByName("after").Int())
}

func answerOf(err error) dispatcher.Response {
	return err.(*notDelivered).outcome.Response()
}

// rawServer is a server without net/http: serve gets each connection, its number and a count of whole requests.
type rawServer struct {
	url         string
	connections atomic.Int64
	requests    atomic.Int64
}

func startRaw(t *testing.T, serve func(s *rawServer, c net.Conn)) *rawServer {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &rawServer{url: "http://" + listener.Addr().String()}
	done := make(chan struct{})
	open := make(chan net.Conn, 1000)
	running := make(chan struct{}, 1000)
	go func() {
		defer close(done)
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			s.connections.Add(1)
			open <- c
			running <- struct{}{}
			go func() {
				defer func() { <-running }()
				defer func() { _ = c.Close() }()
				serve(s, c)
			}()
		}
	}()
	t.Cleanup(func() {
		_ = listener.Close()
		<-done
		close(open)
		for c := range open {
			_ = c.Close()
		}
		for range cap(running) { // all calls of serve have returned
			running <- struct{}{}
		}
	})
	return s
}

// readRequest reads one whole request and counts it.
func (s *rawServer) readRequest(r *bufio.Reader) (body []byte, err error) {
	req, err := http.ReadRequest(r)
	if err != nil {
		return nil, err
	}
	body, err = io.ReadAll(req.Body)
	if err == nil {
		s.requests.Add(1)
	}
	return body, err
}

func respond(w io.Writer, body string) {
	_, _ = fmt.Fprintf(w, "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
}
