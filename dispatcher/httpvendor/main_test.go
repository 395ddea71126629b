package httpvendor

import (
	"bufio"
	"context"
	"flag"
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
	"github.com/samekey/samekey/samekeytest"
)

func TestMain(m *testing.M) {
	if url := os.Getenv(childURL); url != "" {
		child(url)
		return
	}
	flag.Parse()
	if parallel := flag.Lookup("test.parallel"); parallel.Value.String() == parallel.DefValue {
		_ = parallel.Value.Set("6") // those with a database wait more than they work
	}
	goleak.VerifyTestMain(m)
}

// database is a test's own. Such tests run beside each other, when those without one have run.
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

func testHandler(t *testing.T, dest Destination, action Action) dispatcher.Handler {
	t.Helper()
	if action.Name == "" {
		action.Name = "charge_card"
	}
	if action.Request == "" {
		action.Request = "POST /v1/charges"
	}
	if action.Policy.Class == 0 {
		action.Policy.Class = dispatcher.IdempotentWrite
	}
	handler, _, err := testClient(t, dest).Handler(action)
	if err != nil {
		t.Fatal(err)
	}
	return handler
}

// attempt makes one with a deadline.
func attempt(t *testing.T, handler dispatcher.Handler, call *dispatcher.Call, timeout time.Duration) (dispatcher.Answer, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	return handler(ctx, call)
}

var verdicts = map[int64]string{
	verdictOf(dispatcher.Refused(dispatcher.Answer{})):      "refused",
	verdictOf(dispatcher.RetryAfter(0, nil)):                "wait",
	verdictOf(dispatcher.Unsent(nil)):                       "unsent",
	verdictOf(dispatcher.Dead(dispatcher.Answer{}, nil)):    "dead",
	verdictOf(dispatcher.Unknown(dispatcher.Answer{}, nil)): "unknown",
	verdictOf(dispatcher.Gone(dispatcher.Answer{}, nil)):    "gone",
	verdictOf(dispatcher.Stuck(dispatcher.Answer{}, nil)):   "stuck",
	verdictOf(dispatcher.Denied(dispatcher.Answer{}, nil)):  "denied",
	verdictOf(dispatcher.Accepted(dispatcher.Answer{}, 0)):  "accepted",
}

func verdictOf(err error) int64 { return reflect.ValueOf(err).Elem().FieldByName("verdict").Int() }

// verdict names what the dispatcher is told.
func verdict(err error) string {
	if err == nil {
		return "delivered"
	}
	return verdicts[verdictOf(err)]
}

func askedWait(err error) time.Duration {
	return time.Duration(reflect.ValueOf(err).Elem().FieldByName("after").Int())
}

func answerOf(err error) dispatcher.Answer {
	at := reflect.ValueOf(err).Elem().FieldByName("answer")
	return dispatcher.Answer{Code: at.FieldByName("Code").String(), Body: at.FieldByName("Body").Bytes()}
}

// rawServer is a server made by hand: serve has each connection, its number and a count of whole requests.
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
		for range cap(running) { // all of serve has returned
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
