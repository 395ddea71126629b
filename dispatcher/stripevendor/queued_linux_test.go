package stripevendor

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"syscall"
	"testing"
	"time"

	"github.com/stripe/stripe-go/v85"

	"github.com/samekey/samekey/internal/wiretest"
)

// The request is queued in the kernel at the attempt's deadline. Stripe must never get it.
func TestRequestQueuedAtItsTimeoutNeverArrives(t *testing.T) {
	wiretest.NeedDropData(t)
	certified := httptest.NewUnstartedServer(nil)
	certified.StartTLS()
	certified.Close()
	for _, secure := range []bool{false, true} {
		t.Run(map[bool]string{false: "plain", true: "TLS"}[secure], func(t *testing.T) {
			listener := wiretest.Listen(t)
			if !secure {
				if err := wiretest.DropData(listener); err != nil {
					t.Fatal(err)
				}
			}
			c, err := New(Account{Key: "sk_test_1", URL: map[bool]string{false: "http://", true: "https://"}[secure] + listener.Addr().String()})
			if err != nil {
				t.Fatal(err)
			}
			c.transport.TLSClientConfig.RootCAs = x509.NewCertPool()
			c.transport.TLSClientConfig.RootCAs.AddCert(certified.Certificate())
			c.transport.TLSClientConfig.MaxVersion = tls.VersionTLS12 // the handshake ends with what the server sends
			type result struct {
				n   int64
				err error
			}
			arrived, ended := make(chan result, 1), make(chan struct{})
			go func() {
				conn, err := listener.AcceptTCP()
				if err != nil {
					arrived <- result{0, err}
					return
				}
				defer func() { _ = conn.Close() }()
				_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
				if secure {
					err = tls.Server(lastWrite{conn}, certified.TLS).Handshake()
				}
				<-ended
				if err = errors.Join(err, wiretest.PassData(conn)); err != nil {
					arrived <- result{0, err}
					return
				}
				n, err := io.Copy(io.Discard, conn)
				arrived <- result{n, err}
			}()
			ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
			defer cancel()
			x := &exchange{purpose: sending, key: "key", stored: &request{Path: "/v1/payment_intents", Header: http.Header{}, Body: []byte("amount=1")}}
			_, err = c.stripe.V1PaymentIntents.Create(x.in(ctx), &stripe.PaymentIntentCreateParams{Amount: stripe.Int64(1)})
			x.end()
			if err == nil || !x.sent {
				t.Errorf("sent: %t, %v", x.sent, err)
			}
			close(ended)
			if got := <-arrived; got.n > 0 || !errors.Is(got.err, syscall.ECONNRESET) {
				t.Errorf("%d bytes arrived late, %v, want a reset", got.n, got.err)
			}
		})
	}
}

// lastWrite has data dropped from the server's last message of a handshake on, which answers the client's last one.
type lastWrite struct{ *net.TCPConn }

func (c lastWrite) Write(p []byte) (int, error) {
	if p[0] == 20 || p[0] == 22 && p[5] == 4 { // ChangeCipherSpec, or a new session's ticket before it
		if err := wiretest.DropData(c.TCPConn); err != nil {
			return 0, err
		}
	}
	return c.TCPConn.Write(p)
}
