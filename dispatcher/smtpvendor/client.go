package smtpvendor

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/textproto"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/wneessen/go-mail/smtp"

	"github.com/samekey/samekey/dispatcher"
	"github.com/samekey/samekey/internal/wire"
)

// Vendor describes SMTP: the key goes into the Message-ID, by which no server deduplicates. [Delivery] sets it.
func Vendor() dispatcher.Vendor {
	return dispatcher.Vendor{Key: dispatcher.KeyRules{Place: dispatcher.KeyInMessageID}}
}

// Server is the mail server (relay) and the account that mails are sent with.
type Server struct {
	// Host is the server's name. Its certificate must be valid for this name. Required.
	Host string

	// Port is 587 by default, 465 with ImplicitTLS.
	Port int

	// ImplicitTLS starts the connection with TLS. Default: STARTTLS; if the server does not offer it, nothing is sent.
	ImplicitTLS bool

	// Plaintext sends without TLS, for a relay on this host. It is not allowed with ImplicitTLS or credentials.
	Plaintext bool

	// RootCAs are the certificate authorities for the server's certificate. Default: the system's.
	RootCAs *x509.CertPool

	// Username and Password are the credentials. Default: none.
	Username, Password string

	// Hello is the name in EHLO. Default: this host's name.
	Hello string
}

// Client sends mails to one server. It is safe for concurrent use and needs no Close.
type Client struct{ server Server }

// New makes a client. It connects to nothing. The error is dispatcher.ConfigErrors with every mistake, and never
// contains credentials.
func New(server Server) (*Client, error) {
	if server.Port == 0 {
		server.Port = 587
		if server.ImplicitTLS {
			server.Port = 465
		}
	}
	if server.Hello == "" {
		server.Hello, _ = os.Hostname()
	}
	if server.Hello == "" {
		server.Hello = "localhost"
	}
	var errs dispatcher.ConfigErrors
	fail := func(field, format string, args ...any) { errs.Add("smtpvendor.Server", field, format, args...) }
	if server.Host == "" || !isWord(server.Host) {
		fail("Host", "missing or not a host name")
	}
	if server.Port < 1 || server.Port > 65535 {
		fail("Port", "%d is outside the range 1 to 65535", server.Port)
	}
	if !isWord(server.Hello) {
		fail("Hello", "not a host name")
	}
	if server.Plaintext && server.ImplicitTLS {
		fail("Plaintext", "not allowed with ImplicitTLS")
	}
	if server.Plaintext && server.Username != "" {
		fail("Username", "not allowed with Plaintext: credentials are not sent without TLS")
	}
	if (server.Username == "") != (server.Password == "") {
		fail("Password", "set both Username and Password, or neither")
	}
	if err := errs.Err(); err != nil {
		return nil, err
	}
	return &Client{server}, nil
}

// isWord reports whether a text is visible ASCII.
func isWord(text string) bool {
	return !strings.ContainsFunc(text, func(r rune) bool { return r <= ' ' || r > '~' })
}

var (
	errNoEnd      = errors.New("smtpvendor: the end of the mail was not sent")
	errNoStartTLS = errors.New("smtpvendor: the server offers no STARTTLS")
	errNoAuth     = errors.New("smtpvendor: the server offers none of SCRAM-SHA-256, PLAIN and LOGIN")
)

// stage is how far an attempt got.
type stage string

const (
	atConnect stage = "connecting"
	atTLS     stage = "TLS"
	atHello   stage = "the greeting"
	atAuth    stage = "AUTH"
	atMail    stage = "MAIL"
	atRcpt    stage = "RCPT"
	atData    stage = "DATA"
	atText    stage = "the mail's text"
	atEnd     stage = "the mail's end"
)

// send makes one attempt. It returns the stage at which the attempt ended, and the server's last reply after a success.
func (c *Client) send(ctx context.Context, q *letter) (at stage, said string, err error) {
	raw, err := new(net.Dialer).DialContext(ctx, "tcp", net.JoinHostPort(c.server.Host, strconv.Itoa(c.server.Port)))
	if err != nil {
		return atConnect, "", err
	}
	if deadline, ok := ctx.Deadline(); ok {
		_ = raw.SetDeadline(deadline)
	}
	out := wire.New(ctx)
	held := out.Hold(raw)
	defer func() {
		if said := new(textproto.Error); errors.As(err, &said) {
			out.Answered()
		}
		out.End() // drops what is queued of an attempt without its last reply
		_ = held.Close()
	}()
	defer context.AfterFunc(ctx, func() { out.End() })()

	session, at, err := c.open(ctx, held)
	if err != nil {
		return at, "", err
	}
	session.SkipSMTPUTF8(isWord(q.From + strings.Join(q.To, "")))
	if err := session.Mail("<" + q.From + ">"); err != nil {
		return atMail, "", err
	}
	for _, to := range q.To {
		if err := session.Rcpt("<" + to + ">"); err != nil {
			farewell(session, raw, out)
			return atRcpt, "", err
		}
	}
	text, err := session.Data()
	if err != nil {
		return atData, "", err
	}
	if said, err = finish(text, out, q.message); err != nil {
		if errors.Is(err, errNoEnd) {
			return atText, "", err
		}
		return atEnd, "", err
	}
	farewell(session, raw, out) // its result does not matter: the mail was accepted
	return atEnd, said, nil
}

// farewellTime is how long a server may take to answer QUIT. The outcome is known by then, but is recorded only after
// it.
const farewellTime = 500 * time.Millisecond

func farewell(session *smtp.Client, raw net.Conn, out *wire.Wire) {
	_ = raw.SetDeadline(time.Now().Add(farewellTime))
	_ = session.Quit()
	out.Answered() // everything that matters was answered before
}

// finish writes the text and its end. The error is errNoEnd if the end was provably not sent: bytes of the text are
// never taken for the end, and all of them are sent before it.
func finish(text io.WriteCloser, out *wire.Wire, message []byte) (said string, err error) {
	if _, err := text.Write(message); err != nil {
		return "", fmt.Errorf("%w: %w", errNoEnd, err)
	}
	before := out.Written()
	err = text.Close()
	switch nothing := out.Written() == before; {
	case nothing && err == nil:
		return "", fmt.Errorf("%w, and yet the server answered", errNoEnd)
	case nothing:
		return "", fmt.Errorf("%w: %w", errNoEnd, err)
	case err != nil:
		return "", err
	}
	if data, ok := text.(*smtp.DataCloser); ok {
		said = data.ServerResponse()
	}
	return said, nil
}

// open prepares a connection for a mail: TLS, EHLO and AUTH.
func (c *Client) open(ctx context.Context, to net.Conn) (session *smtp.Client, at stage, err error) {
	config := &tls.Config{ServerName: c.server.Host, RootCAs: c.server.RootCAs, MinVersion: tls.VersionTLS12}
	if c.server.ImplicitTLS {
		secure := tls.Client(to, config)
		if err := secure.HandshakeContext(ctx); err != nil {
			return nil, atTLS, err
		}
		to = secure
	}
	if session, err = smtp.NewClient(to, c.server.Host); err != nil {
		return nil, atHello, err
	}
	if err := session.Hello(c.server.Hello); err != nil {
		return nil, atHello, err
	}
	if !c.server.ImplicitTLS && !c.server.Plaintext {
		if offered, _ := session.Extension("STARTTLS"); !offered {
			return nil, atTLS, errNoStartTLS
		}
		if err := session.StartTLS(config); err != nil {
			return nil, atTLS, err
		}
	}
	if c.server.Username == "" {
		return session, "", nil
	}
	auth, err := c.auth(session)
	if err == nil {
		err = session.Auth(auth)
	}
	return session, atAuth, err
}

// auth picks the best mechanism that the server offers.
func (c *Client) auth(session *smtp.Client) (smtp.Auth, error) {
	_, offer := session.Extension("AUTH")
	offered := map[string]bool{}
	for _, name := range strings.Fields(strings.ToUpper(offer)) {
		offered[name] = true
	}
	switch s := c.server; {
	case offered["SCRAM-SHA-256"]:
		return smtp.ScramSHA256Auth(s.Username, s.Password), nil
	case offered["PLAIN"]:
		return smtp.PlainAuth("", s.Username, s.Password, s.Host, false), nil
	case offered["LOGIN"]:
		return smtp.LoginAuth(s.Username, s.Password, s.Host, false), nil
	}
	return nil, errNoAuth
}
