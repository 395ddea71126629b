package httpclient_test

import (
	"errors"
	"io"
	"net/http"
	"syscall"
	"testing"
	"time"

	"github.com/samekey/samekey/internal/wire"
	"github.com/samekey/samekey/internal/wiretest"
)

// The request is queued in the kernel when its attempt ends, at its deadline or because the handler returned early.
func TestQueuedRequestNeverArrives(t *testing.T) {
	wiretest.NeedDropData(t)
	for name, timeout := range map[string]time.Duration{"timeout": 500 * time.Millisecond, "return": time.Hour} {
		t.Run(name, func(t *testing.T) {
			listener := wiretest.Listen(t)
			if err := wiretest.DropData(listener); err != nil {
				t.Fatal(err)
			}
			client := newClient(t, nil)
			a := &wire.Attempt{Once: true}
			ctx := attempt(t, a, timeout)
			ended, body := make(chan error, 1), &endless{sent: make(chan struct{})}
			request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+listener.Addr().String(), body)
			if err != nil {
				t.Fatal(err)
			}
			go func() {
				_, err := client.Do(request)
				ended <- err
			}()
			_ = listener.SetDeadline(time.Now().Add(patience))
			conn, err := listener.AcceptTCP()
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = conn.Close() }()
			if name == "return" {
				<-body.sent
				a.End()
			}
			if err := <-ended; err == nil {
				t.Error("it was answered")
			}
			if err := wiretest.PassData(conn); err != nil {
				t.Fatal(err)
			}
			_ = conn.SetDeadline(time.Now().Add(patience))
			if text, err := io.ReadAll(conn); len(text) > 0 || !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("%d bytes arrived late, %v", len(text), err)
			}
		})
	}
}

// endless is a body that closes sent when its first part is in the kernel.
type endless struct {
	reads int
	sent  chan struct{}
}

func (e *endless) Read(p []byte) (int, error) {
	if e.reads++; e.reads == 2 {
		close(e.sent)
	}
	return len(p), nil
}
