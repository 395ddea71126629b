package smtpvendor_test

import (
	"bufio"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/samekey/samekey/dispatcher"
	"github.com/samekey/samekey/dispatcher/smtpvendor"
)

// lines is a server with scripted replies that no real server can be made to send. "cut" cuts the connection, "cut
// after N" cuts it after N bytes of the mail's text.
type lines struct {
	net.Listener
	mu      sync.Mutex
	answers map[string]string
	ends    int // final dots that were read
	open    sync.WaitGroup
}

func startLines(t *testing.T) *lines {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &lines{Listener: listener}
	s.open.Go(func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			s.open.Go(func() { s.serve(c) })
		}
	})
	t.Cleanup(func() { _ = listener.Close(); s.open.Wait() })
	return s
}

// setAnswers sets what the server answers instead. A client of another test may be connected: ports are used again.
func (s *lines) setAnswers(answers map[string]string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answers = answers
}

func (s *lines) answer(to, otherwise string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if answer, ok := s.answers[to]; ok {
		return answer
	}
	return otherwise
}

func (s *lines) serve(c net.Conn) {
	defer func() { _ = c.Close() }()
	_ = c.SetDeadline(time.Now().Add(patience))
	_ = c.(*net.TCPConn).SetReadBuffer(4096)
	say := func(text string) bool {
		if text == "cut" {
			_ = c.(*net.TCPConn).SetLinger(0)
			return false
		}
		if text == "nothing" {
			return true
		}
		_, err := fmt.Fprintf(c, "%s\r\n", text)
		return err == nil
	}
	if !say(s.answer("connect", "220 ready")) {
		return
	}
	in := bufio.NewReader(c)
	for {
		line, err := in.ReadString('\n')
		if err != nil {
			return
		}
		verb, _, _ := strings.Cut(strings.TrimSpace(line), " ")
		otherwise := "250 ok"
		switch verb {
		case "DATA":
			otherwise = "354 go on"
		case "QUIT":
			otherwise = "221 bye"
		}
		if !say(s.answer(verb, otherwise)) {
			return
		}
		if verb != "DATA" || !strings.HasPrefix(s.answer("DATA", "354"), "354") {
			continue
		}
		if s.answer("text", "") == "cut" {
			_, _ = in.ReadString('\n')
			_ = c.(*net.TCPConn).SetLinger(0)
			return
		}
		for line != ".\r\n" {
			if line, err = in.ReadString('\n'); err != nil {
				return
			}
		}
		s.mu.Lock()
		s.ends++
		s.mu.Unlock()
		if !say(s.answer(".", "250 2.0.0 queued as 4XyZ")) {
			return
		}
	}
}

// Each row of the table in the package comment, over a socket and through a drain.
func TestRepliesOfServers(t *testing.T) {
	b, s := setup(t), startLines(t)
	p := policy
	p.SettlingDelay = time.Hour
	d := b.worker(smtpvendor.Server{Host: "127.0.0.1", Port: s.Addr().(*net.TCPAddr).Port, Plaintext: true}, p, compose)
	long := func(r *Receipt) { r.Text = strings.Repeat("a long line of a long mail\n", 20_000) } // more than the socket buffers hold
	for name, tc := range map[string]struct {
		answers map[string]string
		change  func(*Receipt)
		want    dispatcher.Summary
		as      string // the history's outcome and code
	}{
		"accepted":                  {nil, nil, delivered, "delivered:250 2.0.0"},
		"accepted, and QUIT is not": {map[string]string{"QUIT": "cut"}, nil, delivered, "delivered:250 2.0.0"},
		"no greeting":               {map[string]string{"connect": "cut"}, nil, retried, "unsent:connection"},
		"busy":                      {map[string]string{"connect": "421 4.3.2 busy"}, nil, retried, "retry:421 4.3.2"},
		"not for you":               {map[string]string{"connect": "554 5.7.1 your address is listed"}, nil, retried, "retry:554 5.7.1"},
		"no SMTP":                   {map[string]string{"connect": "HTTP/1.1 400 Bad Request"}, nil, retried, "unsent:protocol"},
		"EHLO later":                {map[string]string{"EHLO": "451 later", "HELO": "451 later"}, nil, retried, "retry:451"},
		"EHLO never":                {map[string]string{"EHLO": "550 no", "HELO": "550 no"}, nil, retried, "retry:550"},
		"MAIL later":                {map[string]string{"MAIL": "452 4.3.1 full"}, nil, retried, "retry:452 4.3.1"},
		"MAIL never":                {map[string]string{"MAIL": "553 5.1.8 no such sender"}, nil, dead, "dead:553 5.1.8"},
		"MAIL and cut":              {map[string]string{"MAIL": "cut"}, nil, retried, "unsent:connection"},
		"RCPT greylisted":           {map[string]string{"RCPT": "450 4.7.1 greylisted"}, nil, retried, "retry:450 4.7.1"},
		"RCPT forwarded":            {map[string]string{"RCPT": "251 will forward"}, nil, delivered, "delivered:250 2.0.0"},
		"RCPT unknown":              {map[string]string{"RCPT": "550 5.1.1 unknown"}, nil, refused, "refused:550 5.1.1"},
		"RCPT without details":      {map[string]string{"RCPT": "550 unknown"}, nil, refused, "refused:550"},
		"RCPT relay denied":         {map[string]string{"RCPT": "554 5.7.1 relay access denied"}, nil, dead, "dead:554 5.7.1"},
		"RCPT without AUTH":         {map[string]string{"RCPT": "530 authentication required"}, nil, dead, "dead:530"},
		"DATA later":                {map[string]string{"DATA": "451 4.3.0 later"}, nil, retried, "retry:451 4.3.0"},
		"DATA never":                {map[string]string{"DATA": "554 5.5.1 no valid recipients"}, nil, dead, "dead:554 5.5.1"},
		"DATA answered out of turn": {map[string]string{"DATA": "250 ok"}, nil, retried, "unsent:250"},
		"cut before its end":        {map[string]string{"text": "cut"}, long, retried, "unsent:connection"},
		"later after its end":       {map[string]string{".": "451 4.3.0 later"}, nil, retried, "retry:451 4.3.0"},
		"never after its end":       {map[string]string{".": "554 5.7.1 spam"}, nil, dead, "dead:554 5.7.1"},
		"cut after its end":         {map[string]string{".": "cut"}, nil, unknown, "unknown:connection"},
		"nonsense after its end":    {map[string]string{".": "what?"}, nil, unknown, "unknown:protocol"},
		"354 after its end":         {map[string]string{".": "354 go on"}, nil, unknown, "unknown:354"},
		"another yes after its end": {map[string]string{".": "252 perhaps"}, nil, unknown, "unknown:252"},
	} {
		t.Run(name, func(t *testing.T) {
			b.T = t
			s.mu.Lock()
			s.answers, s.ends = tc.answers, 0
			s.mu.Unlock()
			change := tc.change
			if change == nil {
				change = func(*Receipt) {}
			}
			id := b.insert(change)
			b.expect(d, tc.want)
			b.postpone()
			b.wantHistory(id, "attempt:"+tc.as)
			if text := value[string](b, "select coalesce(string_agg(error, ''), '') from samekey.outbox_history"); strings.Contains(text, "listed") || strings.Contains(text, "bob@") {
				t.Errorf("an error quotes the server or the payload: %s", text)
			}
			if tc.want == unknown {
				return
			}
			// An intent that is not unknown counts as unsent or is finished: a mail that may be sent again was not
			// accepted.
			if n := value[int](b, "select count(*)::int from samekey.outbox_queue where id = $1 and (first_sent_at is not null or attempts_used > 1)", id); n != 0 {
				t.Error("it counts as sent")
			}
		})
	}
}

// An accepted mail is settled at once: a worker that is killed while it waits for the reply to QUIT leaves nothing
// unknown.
func TestUnansweredQUITDelaysNothing(t *testing.T) {
	b, s := setup(t), startLines(t)
	s.setAnswers(map[string]string{"QUIT": "nothing"})
	p := policy
	p.Timeout = patience // a busy machine takes seconds
	id := b.insert()
	began := time.Now()
	b.expect(b.worker(smtpvendor.Server{Host: "127.0.0.1", Port: s.Addr().(*net.TCPAddr).Port, Plaintext: true}, p, compose), delivered)
	if took := time.Since(began); took > p.Timeout/2 {
		t.Errorf("it took %v", took)
	}
	b.wantHistory(id, "attempt:delivered:250 2.0.0")
}

func TestUnreachableServerIsUnsent(t *testing.T) {
	b := setup(t)
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = free.Close()
	for host, as := range map[string]string{"127.0.0.1": "connection", "smtp.invalid": "dns"} {
		id := b.insert()
		b.expect(b.worker(smtpvendor.Server{Host: host, Port: free.Addr().(*net.TCPAddr).Port}, policy, compose), retried)
		b.wantHistory(id, "attempt:unsent:"+as)
	}
}
