package stripevendor

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"testing"
	"time"

	"github.com/stripe/stripe-go/v85"

	"github.com/samekey/samekey/internal/wire"
)

// stopped is the context of a process that was stopped and continues: its deadline has passed, but no timer has fired
// yet.
type stopped struct {
	context.Context //nolint:containedctx // it is a context itself
	deadline        time.Time
}

func (s stopped) Deadline() (time.Time, bool) { return s.deadline, true }

// A process that was stopped past the key window and continues must not send its request.
func TestNothingLeavesPastTheDeadlineOrTheEnd(t *testing.T) {
	small, large := []byte("amount=1"), bytes.Repeat([]byte("x"), 32<<20) // more than the socket buffers hold
	for name, tc := range map[string]struct {
		body  []byte
		early bool // before the first byte, not after it
		end   bool // ended by the function's return, not by the deadline
		want  error
	}{
		"stopped with a connection":             {small, true, false, wire.ErrLate},
		"stopped in the middle of the request":  {large, false, false, wire.ErrLate},
		"returned in the middle of the request": {large, false, true, wire.ErrEnded},
	} {
		t.Run(name, func(t *testing.T) {
			listener, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = listener.Close() }()
			c, err := New(Account{Key: "sk_test_1", URL: "http://" + listener.Addr().String()})
			if err != nil {
				t.Fatal(err)
			}
			x := &exchange{purpose: sending, key: "key", stored: &request{Path: "/v1/payment_intents", Header: http.Header{}, Body: tc.body}}
			timed, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
			defer cancel()
			deadline, _ := timed.Deadline()
			if tc.end {
				deadline = deadline.Add(time.Hour)
			}
			ctx := context.Context(stopped{t.Context(), deadline})
			if tc.early {
				ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { <-timed.Done() }})
			}
			ctx = x.in(ctx)
			arrived := make(chan int64, 1)
			go func() {
				other, err := listener.Accept()
				if err != nil {
					arrived <- -1
					return
				}
				defer func() { _ = other.Close() }()
				first, _ := io.ReadFull(other, make([]byte, 1))
				if tc.end {
					x.end()
				}
				<-timed.Done()
				_ = other.SetReadDeadline(time.Now().Add(5 * time.Second)) // a client that sends everything waits for an answer
				rest, _ := io.Copy(io.Discard, other)
				arrived <- int64(first) + rest
			}()
			_, err = c.stripe.V1PaymentIntents.Create(ctx, &stripe.PaymentIntentCreateParams{Amount: stripe.Int64(1)})
			x.end()
			if n := <-arrived; n < 0 || n >= int64(len(tc.body)) || tc.early && n > 0 || x.sent != (n > 0) || !errors.Is(err, tc.want) {
				t.Errorf("%d bytes arrived, sent: %v, %v", n, x.sent, err)
			}
		})
	}
}

// net/http hands over such a connection, and a read of it ends only when the other side ends it.
func Test101HoldsNoConnection(t *testing.T) {
	hold := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		socket, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		_, _ = io.WriteString(socket, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
		<-hold
		_ = socket.Close()
	}))
	defer server.Close()
	defer close(hold)
	c, err := New(Account{Key: "sk_test_1", URL: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	x := &exchange{purpose: sending, key: "key", wire: wire.New(ctx)}
	out, err := http.NewRequestWithContext(ctx, http.MethodPost, server.URL, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() {
		_, err := x.send(ctx, c, out)
		ended <- err
	}()
	select {
	case err := <-ended:
		if err != nil || x.status != http.StatusSwitchingProtocols {
			t.Errorf("status %d, %v", x.status, err)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("it does not end at its deadline")
	}
}
