package smtpvendor_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/emersion/go-sasl"
	"github.com/emersion/go-smtp"
	"github.com/google/uuid"
	"github.com/wneessen/go-mail"
	"go.uber.org/goleak"

	"github.com/samekey/samekey/dispatcher"
	"github.com/samekey/samekey/dispatcher/smtpvendor"
	"github.com/samekey/samekey/internal/dbtest"
	"github.com/samekey/samekey/outbox"
	"github.com/samekey/samekey/samekeytest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	patience = dbtest.Patience
	password = "correct horse battery staple"
)

// got is a whole mail that a server received.
type got struct {
	from, user string
	to         []string
	message    string
	secure     bool
}

// server is a real SMTP server with scripted faults.
type server struct {
	host  string
	port  int
	roots *x509.CertPool

	mu       sync.Mutex
	received []got                      // with its final dot, whether it was accepted or not
	rcpt     func(to string) error      // the reply to RCPT
	data     []func(c *smtp.Conn) error // the replies to the final dots; the last one repeats
}

func startServer(t *testing.T, change ...func(*smtp.Server)) *server {
	t.Helper()
	s := &server{host: "127.0.0.1", data: []func(*smtp.Conn) error{accepts}}
	https := httptest.NewTLSServer(nil) // for its certificate
	https.Close()
	s.roots = x509.NewCertPool()
	s.roots.AddCert(https.Certificate())
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s.port = listener.Addr().(*net.TCPAddr).Port
	srv := smtp.NewServer(smtp.BackendFunc(func(c *smtp.Conn) (smtp.Session, error) { return &session{server: s, conn: c}, nil }))
	srv.Domain, srv.ErrorLog = "127.0.0.1", quiet{}
	srv.TLSConfig = &tls.Config{Certificates: https.TLS.Certificates}
	for _, fn := range change {
		fn(srv)
	}
	done := make(chan error, 1)
	go func() { done <- srv.Serve(listener) }()
	t.Cleanup(func() { _ = srv.Close(); <-done })
	return s
}

type quiet struct{}

func (quiet) Printf(string, ...any) {}
func (quiet) Println(...any)        {}

type session struct {
	server *server
	conn   *smtp.Conn
	mail   got
}

func (s *session) AuthMechanisms() []string { return []string{sasl.Plain} }
func (s *session) Auth(string) (sasl.Server, error) {
	return sasl.NewPlainServer(func(_, username, pass string) error {
		if username != "shop" || pass != password {
			return &smtp.SMTPError{Code: 535, EnhancedCode: smtp.EnhancedCode{5, 7, 8}, Message: "no: " + username + " " + pass}
		}
		s.mail.user = username
		return nil
	}), nil
}
func (s *session) Reset()        { s.mail = got{user: s.mail.user} }
func (s *session) Logout() error { return nil }
func (s *session) Mail(from string, _ *smtp.MailOptions) error {
	s.mail.from = from
	return nil
}
func (s *session) Rcpt(to string, _ *smtp.RcptOptions) error {
	s.server.mu.Lock()
	rcpt := s.server.rcpt
	s.server.mu.Unlock()
	if rcpt != nil {
		if err := rcpt(to); err != nil {
			return err
		}
	}
	s.mail.to = append(s.mail.to, to)
	return nil
}
func (s *session) Data(r io.Reader) error {
	message, err := io.ReadAll(r)
	if err != nil {
		return err
	}
	_, s.mail.secure = s.conn.TLSConnectionState()
	s.mail.message = string(message)
	s.server.mu.Lock()
	s.server.received = append(s.server.received, s.mail)
	answer := s.server.data[min(len(s.server.received), len(s.server.data))-1]
	s.server.mu.Unlock()
	return answer(s.conn)
}

func accepts(*smtp.Conn) error { return nil }

// drops cuts the connection after the final dot.
func drops(c *smtp.Conn) error {
	_ = c.Conn().Close()
	return errors.New("dropped")
}

// twice replies twice.
func twice(c *smtp.Conn) error {
	_, err := io.WriteString(c.Conn(), "250 2.0.0 once\r\n")
	return err
}

func says(code int, enhanced smtp.EnhancedCode, text string) func(*smtp.Conn) error {
	return func(*smtp.Conn) error { return &smtp.SMTPError{Code: code, EnhancedCode: enhanced, Message: text} }
}

func (s *server) mails() []got {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.received)
}

func (s *server) account() smtpvendor.Server {
	return smtpvendor.Server{Host: s.host, Port: s.port, RootCAs: s.roots, Username: "shop", Password: password, Hello: "worker.example"}
}

// Receipt is the payload that the order service inserted.
type Receipt struct {
	To     string `json:"to"`
	Number string `json:"number"`
	Text   string `json:"text"`
}

type composer = func(context.Context, *dispatcher.Call, Receipt) (*mail.Msg, error)

// compose is a user's function. Its mail has an attachment, so its boundaries are random.
func compose(_ context.Context, _ *dispatcher.Call, r Receipt) (*mail.Msg, error) {
	m := mail.NewMsg()
	if err := errors.Join(m.From("Shop <shop@example.com>"), m.To(r.To), m.Bcc("archive@example.com")); err != nil {
		return nil, err
	}
	m.Subject("Receipt " + r.Number)
	m.SetBodyString(mail.TypeTextPlain, r.Text)
	return m, m.AttachReader("receipt.txt", strings.NewReader(r.Text+"\n.\n..\n"))
}

// bundle is a test's environment.
type bundle struct {
	*testing.T
	db   *samekeytest.DB
	ctx  context.Context //nolint:containedctx // of the test
	keys int
}

func setup(t *testing.T) *bundle {
	t.Helper()
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	t.Cleanup(cancel)
	return &bundle{T: t, db: samekeytest.NewDB(t), ctx: ctx}
}

var sendReceipt = outbox.NewAction[Receipt]("send_receipt")

var policy = dispatcher.Policy{
	Class: dispatcher.NonIdempotentWrite, Destination: "mail", Timeout: 5 * time.Second, Backoff: time.Hour, MaxBackoff: time.Hour,
}

// worker is a process of one release.
func (b *bundle) worker(at smtpvendor.Server, p dispatcher.Policy, fn composer, with ...func(*dispatcher.Delivery[Receipt])) *dispatcher.Dispatcher {
	b.Helper()
	c, err := smtpvendor.New(at)
	if err != nil {
		b.Fatal(err)
	}
	d := dispatcher.New(b.db.Pool, &dispatcher.Config{Logger: slog.New(slog.DiscardHandler)})
	d.Destination("mail", dispatcher.Limits{})
	delivery := smtpvendor.Delivery(c, p, fn)
	for _, change := range with {
		change(&delivery)
	}
	dispatcher.Handle(d, sendReceipt, delivery)
	return d
}

func (b *bundle) insert(change ...func(*Receipt)) uuid.UUID {
	b.Helper()
	b.keys++
	receipt := Receipt{To: "bob@example.org", Number: "17", Text: "Thank you.\n.\nBye"}
	for _, fn := range change {
		fn(&receipt)
	}
	return dbtest.Insert(b, b.db, outbox.Intent{Key: dbtest.Key(b, fmt.Sprintf("order-%d", b.keys)), Action: "send_receipt", Payload: receipt})
}

func (b *bundle) expect(d *dispatcher.Dispatcher, want dispatcher.Summary) {
	b.Helper()
	sum, err := d.Drain(b.ctx)
	if err != nil {
		b.Fatal(err)
	}
	if sum != want {
		b.Fatalf("the drain returned %+v, want %+v; %s", sum, want, b.dump())
	}
}

func (b *bundle) elapse(d time.Duration) { b.Helper(); samekeytest.Elapse(b, b.db, d) }

// postpone keeps retries, which come due at random times, out of the next row's drain.
func (b *bundle) postpone() {
	b.Helper()
	dbtest.Exec(b, b.db, "update samekey.outbox_queue set due_at = due_at + interval '1 day'")
}

func value[T any](b *bundle, sql string, args ...any) T {
	b.Helper()
	return dbtest.Value[T](b, b.db, sql, args...)
}

// wantHistory compares an intent's timeline, as "event:outcome:code".
// wantReference compares what outbox.List finds an intent by.
func (b *bundle) wantReference(id uuid.UUID, want string) {
	b.Helper()
	page, err := outbox.List(b.Context(), b.db, outbox.Filter{Reference: want})
	if err != nil || len(page.Entries) != 1 || page.Entries[0].ID != id {
		b.Errorf("the reference %s finds %+v, %v", want, page.Entries, err)
	}
}

func (b *bundle) wantHistory(id uuid.UUID, want string) {
	b.Helper()
	history := dbtest.History(b, b.db, id)
	if history != want {
		b.Fatalf("the intent's history is\n\t%s\nwant\n\t%s\n%s", history, want, b.dump())
	}
}

// dump returns everything that is stored about attempts.
func (b *bundle) dump() string {
	b.Helper()
	return value[string](b, `select coalesce(string_agg(concat_ws(' | ', event, outcome, code, error, convert_from(response, 'UTF8')), E'\n' order by id), '')
		from samekey.outbox_history`)
}

// messageID returns the Message-ID that was stored before the first send.
func (b *bundle) messageID(id uuid.UUID) string {
	b.Helper()
	return value[string](b, "select message_id from samekey.outbox_sends where intent_id = $1", id)
}

var (
	delivered = dispatcher.Summary{Delivered: 1}
	refused   = dispatcher.Summary{Refused: 1}
	retried   = dispatcher.Summary{Retried: 1}
	unknown   = dispatcher.Summary{Unknown: 1}
	parked    = dispatcher.Summary{Parked: 1}
	dead      = dispatcher.Summary{Dead: 1}
)
