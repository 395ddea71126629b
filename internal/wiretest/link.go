package wiretest

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"sync"
)

// The codes of a first packet that is not a startup message.
const (
	cancelRequest = 80877102
	sslRequest    = 80877103
	gssRequest    = 80877104
)

// link is one proxied connection: the client's half and the server's half.
type link struct {
	p              *Proxy
	number         int
	client, server net.Conn
	names          map[string]string // prepared statements

	mu      sync.Mutex
	waiting [][]string // the statements of each burst without an answer
	trip    []string   // the statements of the answered bursts since the connection was last idle
	losing  *armed
}

func (p *Proxy) serve(client net.Conn) {
	defer p.forget(client)
	if !p.track(client) {
		return
	}
	startup, err := readStartup(client)
	if err != nil {
		return
	}
	server, err := net.Dial(p.network, p.upstream)
	if err != nil {
		return
	}
	defer p.forget(server)
	if !p.track(server) {
		return
	}
	if _, err := server.Write(startup); err != nil {
		return
	}
	if binary.BigEndian.Uint32(startup[4:]) == cancelRequest {
		_, _ = io.Copy(io.Discard, server)
		return
	}
	p.mu.Lock()
	p.count++
	l := &link{p: p, number: p.count, client: client, server: server, names: map[string]string{}}
	p.mu.Unlock()

	answered := make(chan struct{})
	go func() {
		defer close(answered)
		l.answers()
		_ = client.Close()
	}()
	l.requests()
	_ = server.Close()
	<-answered
}

// readStartup refuses requests for encryption, and returns the startup packet that follows.
func readStartup(client net.Conn) ([]byte, error) {
	for {
		head := make([]byte, 8)
		if _, err := io.ReadFull(client, head); err != nil {
			return nil, err
		}
		size, code := binary.BigEndian.Uint32(head), binary.BigEndian.Uint32(head[4:])
		if size < 8 || size > 1<<16 {
			return nil, errors.New("wiretest: not a startup packet")
		}
		if code == sslRequest || code == gssRequest {
			if _, err := client.Write([]byte("N")); err != nil {
				return nil, err
			}
			continue
		}
		packet := append(head, make([]byte, size-8)...)
		_, err := io.ReadFull(client, packet[8:])
		return packet, err
	}
}

// readMessage returns a whole message, including its type and length.
func readMessage(from io.Reader) ([]byte, error) {
	head := make([]byte, 5)
	if _, err := io.ReadFull(from, head); err != nil {
		return nil, err
	}
	size := binary.BigEndian.Uint32(head[1:])
	if size < 4 || size > 1<<30 {
		return nil, errors.New("wiretest: not a message")
	}
	message := append(head, make([]byte, size-4)...)
	_, err := io.ReadFull(from, message[5:])
	return message, err
}

// requests forwards the client's messages, one burst at a time.
func (l *link) requests() {
	var burst []byte
	var statements []string
	for {
		message, err := readMessage(l.client)
		if err != nil {
			return
		}
		burst = append(burst, message...)
		switch message[0] {
		case 'P': // Parse: name, statement
			name, rest := cString(message[5:])
			sql, _ := cString(rest)
			l.names[name] = sql
			continue
		case 'B': // Bind: portal, name
			_, rest := cString(message[5:])
			name, _ := cString(rest)
			statements = append(statements, l.names[name])
			continue
		case 'D', 'E', 'C':
			continue
		case 'Q':
			sql, _ := cString(message[5:])
			statements = append(statements, sql)
		case 'S':
		default: // the handshake, COPY, Flush, Terminate
			if _, err := l.server.Write(burst); err != nil {
				return
			}
			burst = nil
			continue
		}
		if !l.send(burst, statements) {
			return
		}
		burst, statements = nil, nil
	}
}

// send forwards a burst that the server must answer. If a fault ends the connection, send returns false.
func (l *link) send(burst []byte, statements []string) bool {
	if len(statements) > 0 && !l.p.pass() {
		return false
	}
	hit := l.p.due(statements)
	if hit != nil && (hit.fault == CutBefore || hit.fault == CrashBefore) {
		l.breakOff(hit)
		_ = l.server.Close()
		hit.happened(statements)
		return false
	}
	if hit != nil && hit.fault == Hold {
		_ = l.client.Close()
		hit.happened(statements)
		select {
		case <-l.p.released:
		case <-l.p.stopped:
			return false
		}
		hit = nil
	}
	l.mu.Lock()
	l.waiting = append(l.waiting, statements)
	l.losing = hit
	l.mu.Unlock()
	_, err := l.server.Write(burst)
	return err == nil
}

// breakOff closes the client's connection. For CrashBefore and CrashAfter it closes all connections.
func (l *link) breakOff(hit *armed) {
	_ = l.client.Close()
	if hit.fault == CrashBefore || hit.fault == CrashAfter {
		l.p.crash()
	}
}

// answers forwards the server's messages.
func (l *link) answers() {
	for {
		message, err := readMessage(l.server)
		if err != nil {
			return
		}
		l.mu.Lock()
		losing := l.losing
		var ended *Trip
		if message[0] == 'Z' && len(l.waiting) > 0 {
			l.trip = append(l.trip, l.waiting[0]...)
			if l.waiting = l.waiting[1:]; len(l.waiting) == 0 {
				ended, l.trip = &Trip{Conn: l.number, Statements: l.trip}, nil
			}
		}
		l.mu.Unlock()
		if losing != nil {
			if ended != nil && losing.fault == LoseServer {
				l.mu.Lock()
				l.losing = nil
				l.mu.Unlock()
				losing.happened(ended.Statements)
				_, _ = l.client.Write([]byte(lostServer))
				continue
			}
			if ended != nil {
				l.breakOff(losing)
				losing.happened(ended.Statements)
				return
			}
			continue
		}
		// Count the trip before the client gets the answer, because the test may call Take at once.
		if ended != nil {
			l.p.ended(*ended)
		}
		_, _ = l.client.Write(message) // the server continues even if the client has disconnected
	}
}

// lostServer is an ErrorResponse, and ReadyForQuery outside a transaction.
const lostServer = "E\x00\x00\x00\x36SERROR\x00VERROR\x00C08006\x00Mserver connection was lost\x00\x00" + "Z\x00\x00\x00\x05I"

func cString(b []byte) (text string, rest []byte) {
	end := bytes.IndexByte(b, 0)
	if end < 0 {
		return string(b), nil
	}
	return string(b[:end]), b[end+1:]
}
