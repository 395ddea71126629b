package smtpvendor

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/wneessen/go-mail/smtp"

	"github.com/samekey/samekey/internal/wire"
)

// A process that is stopped past its lease and then continues must not finish a mail that another worker may have sent.
// A mail without its end is unsent, not unknown. The socket's deadline does not ensure that, because its timer fires
// some time after the process continues.
func TestMailStoppedPastTheDeadlineHasNoEnd(t *testing.T) {
	for name, tc := range map[string]struct {
		left time.Duration
		text []byte
	}{
		"before its text":           {0, []byte("Subject: hello\r\n\r\nhello\r\n")},
		"in the middle of its text": {300 * time.Millisecond, bytes.Repeat([]byte("a long line of a long mail\r\n"), 1<<20)}, // more than the socket buffers hold
	} {
		t.Run(name, func(t *testing.T) {
			listener, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = listener.Close() }()
			raw, err := net.Dial("tcp", listener.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = raw.Close() }()
			other, err := listener.Accept()
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = other.Close() }()
			_, _ = fmt.Fprint(other, "220 ready\r\n250 hello\r\n250 sender\r\n354 go on\r\n")
			at := &struct{ net.Conn }{raw}
			session, err := smtp.NewClient(at, "127.0.0.1")
			if err == nil {
				err = session.Mail("<shop@example.com>")
			}
			if err != nil {
				t.Fatal(err)
			}
			text, err := session.Data()
			if err != nil {
				t.Fatal(err)
			}
			timed, cancel := context.WithTimeout(t.Context(), tc.left)
			defer cancel()
			out := wire.New(timed)
			at.Conn = out.Hold(raw)
			deadline, _ := timed.Deadline()
			_ = raw.SetReadDeadline(deadline)
			seen := make(chan string, 1)
			go func() {
				<-timed.Done()
				all, _ := io.ReadAll(other)
				seen <- string(all)
			}()
			_, err = finish(text, out, tc.text)
			_ = raw.Close()
			_, mail, _ := strings.Cut(<-seen, "DATA\r\n")
			// The reset drops bytes that were written and still queued, so the server may see fewer bytes than were
			// written, but never more.
			if !errors.Is(err, errNoEnd) || len(mail) >= len(tc.text) || len(mail) > out.Written() {
				t.Errorf("the server saw %d bytes of the mail, %d are counted, %v", len(mail), out.Written(), err)
			}
		})
	}
}
