package httpvendor

import (
	"bufio"
	"net"
	"testing"
	"time"

	"github.com/samekey/samekey/dispatcher"
)

// Case 19. The server reads the second request of a connection and closes the connection. net/http would send the
// request again if it has an Idempotency-Key and no body that it cannot rewind.
func TestDeadReusedConnectionIsOneRequest(t *testing.T) {
	for _, tc := range []struct{ name, request, payload string }{
		{"POST with a body", "POST /v1/charges", `{"amount":1}`},
		{"POST without a body", "POST /v1/charges", ""},
		{"GET", "GET /v1/charges", ""},
		{"DELETE", "DELETE /v1/charges/1", ""},
	} {
		for _, reset := range []bool{false, true} {
			name := tc.name + ", closed"
			if reset {
				name = tc.name + ", reset"
			}
			t.Run(name, func(t *testing.T) {
				server := startRaw(t, func(s *rawServer, c net.Conn) {
					r := bufio.NewReader(c)
					for n := 1; ; n++ {
						if _, err := s.readRequest(r); err != nil {
							return
						}
						if n == 2 {
							if reset {
								_ = c.(*net.TCPConn).SetLinger(0)
							}
							return
						}
						respond(c, "ok")
					}
				})
				handler := testHandler(t, Destination{URL: server.url}, Action{Request: tc.request})
				if _, err := attempt(t, handler, testCall(tc.payload), patience); err != nil {
					t.Fatal(err)
				}
				_, err := attempt(t, handler, testCall(tc.payload), patience)
				if verdict(err) != "unknown" {
					t.Errorf("the second attempt is %s (%v), want unknown", verdict(err), err)
				}
				if n := server.requests.Load(); n != 2 {
					t.Errorf("two attempts made %d requests on the wire", n)
				}
				if _, err := attempt(t, handler, testCall(tc.payload), patience); err != nil {
					t.Errorf("the third attempt: %v", err)
				}
			})
		}
	}
}

func TestWriteOnceHasItsOwnConnection(t *testing.T) {
	for class, want := range map[dispatcher.Class]int64{
		dispatcher.Read: 1, dispatcher.IdempotentWrite: 1, dispatcher.NonIdempotentWrite: 3, dispatcher.IrreversibleWrite: 3,
	} {
		t.Run(class.String(), func(t *testing.T) {
			server := startRaw(t, func(s *rawServer, c net.Conn) {
				r := bufio.NewReader(c)
				for {
					if _, err := s.readRequest(r); err != nil {
						return
					}
					respond(c, "ok")
				}
			})
			handler := testHandler(t, Destination{URL: server.url}, Action{Policy: dispatcher.Policy{Class: class}})
			for range 3 {
				if _, err := attempt(t, handler, testCall("{}"), patience); err != nil {
					t.Fatal(err)
				}
			}
			if n := server.connections.Load(); n != want {
				t.Errorf("3 attempts took %d connections, want %d", n, want)
			}
		})
	}
}

// net/http logs unsolicited data on an idle connection, and it may be a vendor's answer.
func TestUnsolicitedDataIsNotLogged(t *testing.T) {
	logged := captureLog(t)
	ended, gone := make(chan struct{}), make(chan struct{}, 1)
	server := startRaw(t, func(s *rawServer, c net.Conn) {
		r := bufio.NewReader(c)
		if _, err := s.readRequest(r); err != nil {
			return
		}
		respond(c, "ok")
		<-ended
		respond(c, "card 4242") // an unsolicited second answer
		_, _ = r.ReadByte()     // the client closes
		gone <- struct{}{}
	})
	handler := testHandler(t, Destination{URL: server.url}, Action{})
	if _, err := attempt(t, handler, testCall("{}"), patience); err != nil {
		t.Fatal(err)
	}
	close(ended)
	select {
	case <-gone:
	case <-time.After(patience):
		t.Fatal("the client kept a connection with unsolicited data")
	}
	if text := logged.String(); text != "" {
		t.Errorf("logged: %s", text)
	}
}
