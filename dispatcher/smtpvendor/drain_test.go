package smtpvendor_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/emersion/go-smtp"
	"github.com/jackc/pgx/v5"
	"github.com/wneessen/go-mail"

	"github.com/samekey/samekey/dispatcher"
	"github.com/samekey/samekey/dispatcher/smtpvendor"
	"github.com/samekey/samekey/outbox"
)

func TestMailIsSentOverTLSWithTheStoredMessageID(t *testing.T) {
	b, s := setup(t), startServer(t)
	id := b.insert()
	b.expect(b.worker(s.account(), policy, compose), delivered)
	b.wantHistory(id, "attempt:delivered:250 2.0.0")
	b.wantReference(id, b.messageID(id))
	mails, messageID := s.mails(), b.messageID(id)
	if len(mails) != 1 || !mails[0].secure || mails[0].user != "shop" || mails[0].from != "shop@example.com" || fmt.Sprint(mails[0].to) != "[bob@example.org archive@example.com]" {
		t.Fatalf("the server got %+v", mails)
	}
	if want := "<" + value[string](b, "select delivery_key::text from samekey.outbox") + "@example.com>"; messageID != want {
		t.Errorf("the Message-ID is %s, want %s", messageID, want)
	}
	for _, want := range []string{"Message-ID: " + messageID, "Subject: Receipt 17", "To: <bob@example.org>", "Date: "} {
		if !strings.Contains(mails[0].message, want+"\r\n") && !(want == "Date: " && strings.Contains(mails[0].message, want)) {
			t.Errorf("%q is not in\n%s", want, mails[0].message)
		}
	}
	if strings.Contains(mails[0].message, "archive") {
		t.Errorf("the blind copy is named in\n%s", mails[0].message)
	}
	// The stored message is the one that arrived.
	stored := value[string](b, "select convert_from(request, 'UTF8') from samekey.outbox_sends")
	if _, message, _ := strings.Cut(stored, "\n"); strings.TrimSuffix(message, "\r\n") != strings.TrimSuffix(mails[0].message, "\r\n") {
		t.Errorf("stored\n%q\narrived\n%q", message, mails[0].message)
	}
}

func TestMailBytesSurviveANewRelease(t *testing.T) {
	b, s := setup(t), startServer(t)
	s.data = []func(*smtp.Conn) error{says(451, smtp.EnhancedCode{4, 3, 0}, "later"), accepts}
	id := b.insert()
	b.expect(b.worker(s.account(), policy, compose), retried)
	b.elapse(time.Hour)
	b.expect(b.worker(s.account(), policy, func(context.Context, *dispatcher.Call, Receipt) (*mail.Msg, error) {
		return nil, errors.New("the next release composes nothing")
	}), delivered)
	b.wantHistory(id, "attempt:retry:451 4.3.0 attempt:delivered:250 2.0.0")
	if mails := s.mails(); len(mails) != 2 || mails[0].message != mails[1].message || fmt.Sprint(mails[0].to) != fmt.Sprint(mails[1].to) {
		t.Errorf("the attempts sent %+v", mails)
	}
}

// sentLog is a provider's log of sent mails.
type sentLog struct {
	asked []string
	has   bool
}

func (l *sentLog) find(_ context.Context, messageID string) (dispatcher.Outcome, error) {
	l.asked = append(l.asked, messageID)
	if l.has {
		return dispatcher.Delivered(dispatcher.Response{Code: "sent"}), nil
	}
	return dispatcher.Absent(dispatcher.Response{}), nil
}

// lookup makes a Delivery look up in the log.
func (l *sentLog) lookup(delivery *dispatcher.Delivery[Receipt]) {
	delivery.Lookup = smtpvendor.SentLog[Receipt](l.find)
}

func TestMailLostAfterItsEndIsFoundInTheLog(t *testing.T) {
	b, s, log := setup(t), startServer(t), &sentLog{has: true}
	s.data = []func(*smtp.Conn) error{drops}
	id := b.insert()
	d := b.worker(s.account(), policy, compose, log.lookup)
	b.expect(d, unknown)
	b.elapse(time.Minute)
	b.expect(d, delivered)
	b.wantHistory(id, "attempt:unknown:connection lookup:delivered:sent")
	b.wantReference(id, b.messageID(id))
	if n := len(s.mails()); n != 1 || len(log.asked) != 1 || log.asked[0] != b.messageID(id) {
		t.Errorf("%d mails; the log was searched for %q", n, log.asked)
	}
}

func TestMailResendAfterTwoAbsentLookups(t *testing.T) {
	b, s, log := setup(t), startServer(t), &sentLog{}
	s.data = []func(*smtp.Conn) error{drops}
	id := b.insert()
	p := policy
	p.ResendAbsent = true
	d := b.worker(s.account(), p, compose, log.lookup)
	b.expect(d, unknown)
	for _, want := range []dispatcher.Summary{unknown, {Retried: 1, Unknown: 1}, unknown, parked} { // sent again, lost again, then parked
		b.elapse(time.Minute)
		b.expect(d, want)
	}
	b.wantHistory(id, "attempt:unknown:connection lookup:absent:absent lookup:absent:absent attempt:unknown:connection lookup:absent:absent lookup:absent:absent")
	mails := s.mails()
	if len(mails) != 2 || mails[0].message != mails[1].message || !strings.Contains(mails[1].message, "Message-ID: "+b.messageID(id)+"\r\n") {
		t.Errorf("the server got %+v", mails)
	}
}

func TestUnknownMailWithoutALogIsParked(t *testing.T) {
	hang := make(chan struct{})
	t.Cleanup(func() { close(hang) })
	for name, after := range map[string]func(*smtp.Conn) error{
		"the connection is cut": drops,
		"the answer never comes": func(*smtp.Conn) error {
			<-hang
			return nil
		},
		"the answer is neither yes nor no": says(354, smtp.NoEnhancedCode, "go on"),
	} {
		t.Run(name, func(t *testing.T) {
			b, s := setup(t), startServer(t)
			s.data = []func(*smtp.Conn) error{after}
			b.insert()
			p := policy
			p.Timeout = time.Second
			d := b.worker(s.account(), p, compose)
			b.expect(d, unknown)
			for _, want := range []dispatcher.Summary{parked, {}, {}} {
				b.elapse(24 * time.Hour)
				b.expect(d, want)
			}
			if n := len(s.mails()); n != 1 {
				t.Errorf("%d mails", n)
			}
		})
	}
}

func TestRejectedRecipientRefusesTheWholeMail(t *testing.T) {
	b, s := setup(t), startServer(t)
	s.rcpt = func(to string) error {
		if to == "archive@example.com" {
			return &smtp.SMTPError{Code: 550, EnhancedCode: smtp.EnhancedCode{5, 1, 1}, Message: "no such mailbox for shop"}
		}
		return nil
	}
	b.insert()
	var told dispatcher.Settled
	b.expect(b.worker(s.account(), policy, compose, func(delivery *dispatcher.Delivery[Receipt]) {
		delivery.Apply = func(_ context.Context, _ pgx.Tx, _ Receipt, settled dispatcher.Settled) error {
			told = settled
			return nil
		}
	}), refused)
	if told.Status != outbox.StatusRefused || told.Response.Code != "550 5.1.1" || string(told.Response.Body) != "5.1.1 no such mailbox for [redacted]" {
		t.Errorf("Apply got %+v %s", told, told.Response.Body)
	}
	if n := len(s.mails()); n != 0 {
		t.Errorf("%d mails", n)
	}
}

func TestServerThatAnswersTwiceGotOneMail(t *testing.T) {
	b, s := setup(t), startServer(t, func(srv *smtp.Server) { srv.TLSConfig = nil })
	s.data = []func(*smtp.Conn) error{twice}
	id := b.insert()
	d := b.worker(smtpvendor.Server{Host: s.host, Port: s.port, Plaintext: true}, policy, compose)
	b.expect(d, delivered)
	b.elapse(24 * time.Hour)
	b.expect(d, dispatcher.Summary{})
	b.wantHistory(id, "attempt:delivered:250 2.0.0")
	if n := len(s.mails()); n != 1 {
		t.Errorf("%d mails", n)
	}
}

func TestWithoutVerifiedTLSNothingIsSent(t *testing.T) {
	for name, tc := range map[string]struct {
		server func(*smtp.Server)
		client func(*smtpvendor.Server)
		as     string
	}{
		"an unknown authority": {client: func(c *smtpvendor.Server) { c.RootCAs = nil }, as: "tls"},
		"another host's name":  {client: func(c *smtpvendor.Server) { c.Host = "localhost" }, as: "tls"},
		"no STARTTLS":          {server: func(s *smtp.Server) { s.TLSConfig, s.AllowInsecureAuth = nil, true }, as: "starttls"},
		"no TLS at all": {server: func(s *smtp.Server) { s.TLSConfig, s.AllowInsecureAuth = nil, true },
			client: func(c *smtpvendor.Server) { c.ImplicitTLS = true }, as: "tls"},
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t)
			s := startServer(t, func(srv *smtp.Server) {
				if tc.server != nil {
					tc.server(srv)
				}
			})
			at := s.account()
			if tc.client != nil {
				tc.client(&at)
			}
			id := b.insert()
			b.expect(b.worker(at, policy, compose), retried)
			b.wantHistory(id, "attempt:unsent:"+tc.as)
			if n := len(s.mails()); n != 0 {
				t.Errorf("%d mails", n)
			}
			if !value[bool](b, "select attempts_used = 0 and first_sent_at is null from samekey.outbox_queue") {
				t.Error("it counts as sent")
			}
		})
	}
}

func TestWrongPasswordUsesNoAttempt(t *testing.T) {
	b, s := setup(t), startServer(t)
	wrong := s.account()
	wrong.Password = "not the battery staple"
	id := b.insert()
	b.expect(b.worker(wrong, policy, compose), retried)
	b.wantHistory(id, "attempt:retry:535 5.7.8")
	if kept := b.dump(); strings.Contains(kept, wrong.Password) || strings.Contains(kept, "shop") || strings.Contains(kept, "no: ") {
		t.Errorf("credentials are kept: %s", kept)
	}
	b.elapse(time.Hour)
	b.expect(b.worker(s.account(), policy, compose), delivered)
}

func TestInjectedHeadersAndRecipientsAreDead(t *testing.T) {
	b, s := setup(t), startServer(t)
	byHand := func(set func(*mail.Msg, Receipt)) composer {
		return func(ctx context.Context, call *dispatcher.Call, r Receipt) (*mail.Msg, error) {
			m, err := compose(ctx, call, r)
			if err == nil {
				set(m, r)
			}
			return m, err
		}
	}
	for name, tc := range map[string]struct {
		fn     composer
		change func(*Receipt)
	}{
		"the subject":     {compose, func(r *Receipt) { r.Number = "17\r\nBcc: eve@example.net" }},
		"a bare LF":       {compose, func(r *Receipt) { r.Number = "17\nBcc: eve@example.net" }},
		"a NUL":           {compose, func(r *Receipt) { r.Number = "17\x01" }},
		"the address":     {compose, func(r *Receipt) { r.To = "bob@example.org>\r\nRCPT TO:<eve@example.net" }},
		"two addresses":   {compose, func(r *Receipt) { r.To = "bob@example.org, eve@example.net" }},
		"a header":        {byHand(func(m *mail.Msg, r Receipt) { m.SetGenHeader("X-Order", r.Text) }), func(r *Receipt) { r.Text = "a\r\nX: b" }},
		"a header's name": {byHand(func(m *mail.Msg, r Receipt) { m.SetGenHeader(mail.Header(r.Text), "x") }), func(r *Receipt) { r.Text = "Bcc" }},
		"preformatted": {byHand(func(m *mail.Msg, r Receipt) { m.SetGenHeaderPreformatted("X-Order", r.Text) }),
			func(r *Receipt) { r.Text = "a\r\nSubject: b" }},
		"an attachment's type": {byHand(func(m *mail.Msg, r Receipt) {
			_ = m.AttachReader("a", strings.NewReader("x"), mail.WithFileContentType(mail.ContentType(r.Text)))
		}), func(r *Receipt) { r.Text = "text/plain\r\nX: b" }},
		"an attachment's id": {byHand(func(m *mail.Msg, r Receipt) {
			_ = m.EmbedReader("a", strings.NewReader("x"), mail.WithFileContentID(r.Text))
		}), func(r *Receipt) { r.Text = "a>\r\nX: b" }},
		"a part's type": {byHand(func(m *mail.Msg, r Receipt) { m.AddAlternativeString(mail.ContentType(r.Text), "x") }),
			func(r *Receipt) { r.Text = "text/html\nX: b" }},
		// Some servers read it as the end of a line, and ".\r\n" after it as the end of the mail.
		"a bare CR": {byHand(func(m *mail.Msg, r Receipt) {
			m.SetBodyString(mail.TypeTextPlain, r.Text, mail.WithPartEncoding(mail.NoEncoding))
		}), func(r *Receipt) { r.Text = "a\r.\r\nMAIL FROM:<eve@example.net>" }},
		"nobody":  {func(context.Context, *dispatcher.Call, Receipt) (*mail.Msg, error) { return mail.NewMsg(), nil }, func(*Receipt) {}},
		"no mail": {func(context.Context, *dispatcher.Call, Receipt) (*mail.Msg, error) { return nil, nil }, func(*Receipt) {}},
	} {
		t.Run(name, func(t *testing.T) {
			b.T = t
			id := b.insert(tc.change)
			b.expect(b.worker(s.account(), policy, tc.fn), dead)
			b.wantHistory(id, "attempt:dead:render")
		})
	}
	b.T = t
	if n := len(s.mails()); n != 0 {
		t.Errorf("%d mails", n)
	}
	// Spaces, umlauts and long subjects are no injection.
	b.insert(func(r *Receipt) { r.Number = strings.Repeat("Größe 17, ", 40); r.To = "Bób <bob@example.org>" })
	b.expect(b.worker(s.account(), policy, compose), delivered)
}

func TestOwnMessageIDIsReplacedAndDateKept(t *testing.T) {
	b, s := setup(t), startServer(t)
	id := b.insert()
	b.expect(b.worker(s.account(), policy, func(ctx context.Context, call *dispatcher.Call, r Receipt) (*mail.Msg, error) {
		m, err := compose(ctx, call, r)
		m.SetMessageIDWithValue("mine@example.com")
		m.SetDateWithValue(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))
		return m, err
	}), delivered)
	message := s.mails()[0].message
	if !strings.Contains(message, "Message-ID: "+b.messageID(id)) || strings.Contains(message, "mine@") || !strings.Contains(message, "Date: Fri, 02 Jan 2026 03:04:05 +0000") {
		t.Errorf("sent\n%s", message)
	}
}

func TestCheckRefusesClassesThatRepeatMails(t *testing.T) {
	c, err := smtpvendor.New(smtpvendor.Server{Host: "smtp.example.com"})
	if err != nil {
		t.Fatal(err)
	}
	for class, fine := range map[dispatcher.Class]bool{
		dispatcher.Read: false, dispatcher.IdempotentWrite: false, dispatcher.NonIdempotentWrite: true, dispatcher.IrreversibleWrite: true,
	} {
		d := dispatcher.New(nil, nil)
		dispatcher.Handle(d, sendReceipt, smtpvendor.Delivery(c, dispatcher.Policy{Class: class}, compose))
		if err := d.Check(); (err == nil) != fine {
			t.Errorf("%v: %v", class, err)
		}
	}
}

func TestMistakesInServers(t *testing.T) {
	_, err := smtpvendor.New(smtpvendor.Server{Host: "smtp example", Port: 70000, Plaintext: true, ImplicitTLS: true, Username: "s3cret", Hello: "a\r\nb"})
	want := `samekey: smtpvendor.Server: Host: missing or not a host name
samekey: smtpvendor.Server: Port: 70000 is outside the range 1 to 65535
samekey: smtpvendor.Server: Hello: not a host name
samekey: smtpvendor.Server: Plaintext: not allowed with ImplicitTLS
samekey: smtpvendor.Server: Username: not allowed with Plaintext: credentials are not sent without TLS
samekey: smtpvendor.Server: Password: set both Username and Password, or neither`
	if fmt.Sprint(err) != want {
		t.Errorf("New returns\n%v\nwant\n%s", err, want)
	}
}
