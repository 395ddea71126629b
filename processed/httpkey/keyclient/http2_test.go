package keyclient

import (
	"encoding/binary"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

// refusingHTTP2 speaks HTTP/2 by hand: it refuses the first streams with REFUSED_STREAM, as a server does that is going
// away or full, and answers the others with 200.
func refusingHTTP2(t *testing.T, refuse int64) (url string, streams *atomic.Int64) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	streams = new(atomic.Int64)
	var running sync.WaitGroup
	var open sync.Map
	running.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			open.Store(conn, nil)
			running.Go(func() { serveHTTP2(conn, refuse, streams) })
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		open.Range(func(conn, _ any) bool { _ = conn.(net.Conn).Close(); return true })
		running.Wait()
	})
	return "http://" + listener.Addr().String(), streams
}

func serveHTTP2(conn net.Conn, refuse int64, streams *atomic.Int64) {
	defer func() { _ = conn.Close() }()
	frame := func(kind, flags byte, stream uint32, payload ...byte) {
		head := []byte{0, 0, byte(len(payload)), kind, flags, 0, 0, 0, 0}
		binary.BigEndian.PutUint32(head[5:], stream)
		_, _ = conn.Write(append(head, payload...))
	}
	if _, err := io.CopyN(io.Discard, conn, int64(len("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"))); err != nil {
		return
	}
	frame(4, 0, 0) // SETTINGS
	for head := make([]byte, 9); ; {
		if _, err := io.ReadFull(conn, head); err != nil {
			return
		}
		size := int64(head[0])<<16 | int64(head[1])<<8 | int64(head[2])
		if _, err := io.CopyN(io.Discard, conn, size); err != nil {
			return
		}
		stream := binary.BigEndian.Uint32(head[5:])
		switch kind, flags := head[3], head[4]; {
		case kind == 4 && flags == 0:
			frame(4, 1, 0) // SETTINGS, acknowledged
		case kind == 6 && flags == 0:
			frame(6, 1, 0, make([]byte, 8)...) // PING
		case kind == 1: // HEADERS
			if streams.Add(1) <= refuse {
				frame(3, 0, stream, 0, 0, 0, 7) // RST_STREAM, REFUSED_STREAM
			} else {
				frame(1, 4|1, stream, 0x88) // HEADERS, ":status: 200", the end of both
			}
		}
	}
}

func TestResentRefusedStreamCounts(t *testing.T) {
	prior := &http.Protocols{}
	prior.SetUnencryptedHTTP2(true)
	newBase := func() *http.Transport {
		base := &http.Transport{Protocols: prior}
		t.Cleanup(base.CloseIdleConnections)
		return base
	}
	request := func(url string) *http.Request {
		req, err := http.NewRequestWithContext(t.Context(), "POST", url, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		return req
	}

	url, streams := refusingHTTP2(t, 1)
	resp, err := newBase().RoundTrip(request(url))
	if err != nil || resp.StatusCode != 200 || streams.Load() != 2 {
		t.Fatalf("the test is void: net/http alone made %d requests: %v", streams.Load(), err)
	}
	_ = resp.Body.Close()

	// Ever refused: what the error counts is what was sent.
	url, streams = refusingHTTP2(t, 1<<40)
	transport := newTransport(t)
	transport.Base, transport.Attempts = newBase(), 2
	_, err = transport.RoundTrip(request(url))
	if failed := errorOf(t, err); failed.Attempts < 2 || int64(failed.Attempts) != streams.Load() {
		t.Errorf("%d attempts, and %d requests on the wire: %v", failed.Attempts, streams.Load(), err)
	}
	if !strings.Contains(err.Error(), "REFUSED_STREAM") {
		t.Errorf("%v", err)
	}
}
