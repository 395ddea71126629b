package httpvendor

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"strings"
	"text/template"
	"time"

	"github.com/samekey/samekey/dispatcher"
	"github.com/samekey/samekey/internal/wirehttp"
)

// Destination is a vendor account that is reached over HTTP, or many receivers that are called alike. Name is required, and
// URL or Endpoint; the zero value of every other field is its default.
type Destination struct {
	// Name is the destination's in dispatcher.Policy.Destination and in errors: lowercase letters, digits, _ and -.
	Name string

	// URL is where the vendor is: http or https, a host, a path that those of the actions are added to, an escaped query that
	// each call is sent with. An international host is converted as browsers do (UTS #46). "user:password@" becomes basic authentication. TLS is always verified; there is no way to
	// turn that off.
	URL string

	// Endpoint is for many receivers behind one destination: a template, as an action's, of the name of the one that a call
	// goes to, such as {{.Part}}. Each has a lane of its own (dispatcher.WithEndpoint), so that one that hangs holds up no
	// other. Where URL is empty, its URL and secrets are what the package outbox/endpoints keeps under that name
	// (dispatcher.WithStoredEndpoint), with all that URL may hold; answers that mean [Gone] stop it; and the actions need a
	// Policy.Deadline. Auth, WebhookSecrets and a header Authorization, which would go to each of them, are refused then.
	// Default: there is one receiver.
	Endpoint string

	// Vendor is what is known of the vendor account: where the key goes, for how long it is remembered, what the same key
	// gets again. Presets such as [Stripe] fill it in. Where Key.Place is zero the key goes into the header
	// "Idempotency-Key", or that of Key.Name, and Replay is dispatcher.ReplayAnswer. No other setting and no header of an
	// intent can override the key. A key in a body makes every body that carries it a JSON object or a form. The
	// Message-ID is no place of a request: where a mail API takes no key, that is dispatcher.KeyNowhere. The key is kept with
	// an intent from its first attempt on; a header's name and Key.Quoted are not, so where they change, what may have been
	// sent under the former is looked up, else parked.
	Vendor dispatcher.Vendor

	// Rules give this vendor's answers their meaning; those of an action come first.
	Rules []Rule

	// JSONAnswers says that this vendor's answers with a body are JSON: a success or a refusal whose body is not, such as the
	// page of a proxy, is unknown, and so is one of more than 1 MiB; and no rule of a look-up fits such a page. Default: false.
	JSONAnswers bool

	// Lookup asks this vendor whether it acted: for the actions that have no look-up of their own, in Action.Lookup or
	// among their Options, but for reads, which are made again. Default: none.
	Lookup *Lookup

	// Headers are sent with each call. They win over an intent's headers of the same name.
	Headers map[string]string

	// Auth says who calls.
	Auth Auth

	// WebhookSecrets sign each call as Standard Webhooks has it, see [StandardWebhooks]: "whsec_" and the base64 of 24 to 64
	// bytes. With several, as while one is replaced by another, each call has a signature by each. They need the key in a
	// header, and sign it, the time of the attempt by this process's clock, and the body.
	WebhookSecrets []string

	// Limits are the destination's on this process.
	Limits dispatcher.Limits

	// CAFile holds further authorities, PEM, besides the system's. It is read once, by [New].
	CAFile string

	// Proxy is the URL of a proxy, http or https, for all calls. An action with Policy.ResendAbsent is then refused by Check: a
	// proxy can send late what it has taken. Default: none. HTTP_PROXY and its kin are not read:
	// they would decide, from outside of the configuration, who sees keys and credentials.
	Proxy string

	// AllowPrivate names the ranges that may be called beside public addresses. Every connection's address is checked after
	// the look-up of the name, before a byte is sent: a private, loopback, link-local, shared, multicast or reserved one,
	// and a cloud's metadata service, is refused unless it is in here, in any way of writing it. Behind a Proxy it is the
	// proxy's address that is checked, and the proxy that looks up the vendor's name; what it may reach is for the proxy to
	// say. An address that stands in a URL itself, an endpoint's too, is refused behind a proxy as well. Use such as
	// 10.20.0.0/16; 127.0.0.0/8 for tests.
	AllowPrivate []netip.Prefix

	// Secrets are texts of this destination that no answer may carry into the database, such as a token in Headers,
	// or in the headers of an action, in case the vendor echoes it: each is replaced by "[redacted]", in its URL- and
	// JSON-escaped forms too. The password of URL, what Auth and WebhookSecrets hold, and the credentials in an
	// Authorization header, the destination's or an action's, are added by themselves; and of an endpoint that is kept in
	// the database the secrets, the password, the path and the query. Those shorter than 6 bytes are ignored.
	Secrets []string

	resolver *net.Resolver // of tests; nil: the system's
}

// Client makes calls to one destination. It is safe for concurrent use.
type Client struct {
	dest      Destination
	base      *url.URL
	header    http.Header
	keyHeader string // canonical; empty: the key is in none
	lookup    *lookup

	endpointName *template.Template // nil: there is one receiver
	secrets      secrets
	allowed      allowList
	signer       signer          // nil: calls are not signed
	reusing      *http.Transport // connections are kept and used again
	single       *http.Transport // each call has a connection of its own
}

// New checks a destination, reads its CAFile, and makes a client. The error holds every mistake at once; it never
// holds the URL or a value of a header. Nothing is connected yet.
func New(dest Destination) (*Client, error) {
	c := &Client{dest: dest}
	var errs []error
	fail := func(field, format string, args ...any) {
		errs = append(errs, fmt.Errorf("httpvendor: %s: %s %s", dest.Name, field, fmt.Sprintf(format, args...)))
	}
	if dest.Name == "" {
		fail("Name", "is missing")
	}
	var err error
	c.base = &url.URL{}
	if !c.stored() {
		if base, err := parseURL(dest.URL); err != nil {
			fail("URL", "%v", err)
		} else {
			c.base = base
		}
	}
	if err := c.setKey(); err != nil {
		fail("Vendor", "%v", err)
	}
	if c.header, err = operatorHeader(dest.Headers, c.keyHeader); err != nil {
		fail("Headers", "%v", err)
	}
	credentials, err := dest.Auth.apply(c.header)
	if err != nil {
		fail("Auth", "%v", err)
	}
	if c.keyHeader != "" && http.CanonicalHeaderKey(dest.Auth.Header) == c.keyHeader {
		fail("Auth", "has the delivery key's header")
	}
	var hooks []string
	if c.signer, hooks, err = newSigner(dest.WebhookSecrets); err != nil {
		fail("WebhookSecrets", "%v", err)
	} else if c.signer != nil && c.keyHeader == "" {
		fail("WebhookSecrets", "need the key in a header, by which the receiver knows what comes twice")
	} else if c.signer == nil && c.keyHeader == webhookID && !c.stored() {
		fail("WebhookSecrets", "is missing: a receiver of Standard Webhooks takes nothing that is not signed")
	}
	c.checkEndpoint(fail)
	for i, rule := range dest.Rules {
		if err := rule.check(true); err != nil {
			fail("Rules", "number %d: %v", i+1, err)
		}
	}
	if dest.Lookup != nil {
		if c.lookup, err = newLookup(*dest.Lookup); err != nil {
			fail("Lookup", "%v", err)
		}
	}
	if c.allowed, err = newAllowList(dest.AllowPrivate); err != nil {
		fail("AllowPrivate", "%v", err)
	}
	roots, err := authorities(dest.CAFile)
	if err != nil {
		fail("CAFile", "%v", err)
	}
	proxy, err := proxyURL(dest.Proxy)
	if err != nil {
		fail("Proxy", "%v", err)
	}
	if err := c.allowed.checkURL(c.base); err != nil {
		fail("URL", "%v", err)
	}
	if proxy != nil {
		if err := c.allowed.checkURL(proxy); err != nil {
			fail("Proxy", "%v", err)
		}
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	c.secrets = newSecrets(c.base, c.header, dest.Secrets).with(credentials).with(hooks)
	takeUser(c.base, c.header)
	dialer := c.allowed.dialer(dest.resolver)
	c.reusing = newTransport(dialer, roots, proxy, max(c.dest.Limits.Concurrency, 32))
	c.single = newTransport(dialer, roots, proxy, 0)
	return c, nil
}

// setKey fills in where the key goes. What the dispatcher checks of the description is not checked here.
func (c *Client) setKey() error {
	v := &c.dest.Vendor
	if v.Key.Place == 0 {
		v.Key.Place = dispatcher.KeyInHeader
		if v.Key.Name == "" {
			v.Key.Name = "Idempotency-Key"
		}
	}
	switch v.Key.Place {
	case dispatcher.KeyInHeader:
		c.keyHeader = http.CanonicalHeaderKey(v.Key.Name)
		if err := checkHeader(c.keyHeader, ""); err != nil {
			return fmt.Errorf("Key.Name: %w", err)
		}
	case dispatcher.KeyInMessageID:
		return errors.New("Key.Place is the Message-ID, and a request over HTTP has none")
	}
	if v.Replay == 0 && v.Key.Place != dispatcher.KeyNowhere {
		v.Replay = dispatcher.ReplayAnswer
	}
	return nil
}

// Vendor is the description that the client goes by: the destination's, with its defaults. [Client.Register] tells the
// dispatcher; who uses [Client.Handler] does it with dispatcher.Vendor.
func (c *Client) Vendor() dispatcher.Vendor { return c.dest.Vendor }

// Close closes the connections that are idle. Calls under way go on.
func (c *Client) Close() {
	c.reusing.CloseIdleConnections()
	c.single.CloseIdleConnections()
}

// idleTimeout is shorter than what usual servers and balancers allow an idle connection (60 s and more), so that it is
// this side that closes it: a connection that the other side closes just as a request goes out leaves an unknown outcome.
const idleTimeout = 30 * time.Second

func newTransport(dialer *net.Dialer, roots *x509.CertPool, proxy *url.URL, idle int) *http.Transport {
	t := &http.Transport{
		DialContext:         dialer.DialContext,
		TLSClientConfig:     &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12},
		TLSHandshakeTimeout: 10 * time.Second,
		DisableKeepAlives:   idle == 0,
		MaxIdleConns:        idle,
		MaxIdleConnsPerHost: idle,
		IdleConnTimeout:     idleTimeout,
	}
	wirehttp.Guard(t)
	if proxy != nil {
		t.Proxy = http.ProxyURL(proxy)
	}
	return t
}

func proxyURL(text string) (*url.URL, error) {
	if text == "" {
		return nil, nil
	}
	return parseURL(text)
}

// authorities are the system's and those of the file. Nil means the system's.
func authorities(file string) (*x509.CertPool, error) {
	if file == "" {
		return nil, nil
	}
	pem, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	pool, err := x509.SystemCertPool()
	if err != nil {
		pool = x509.NewCertPool()
	}
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("%s holds no certificate in PEM form", file)
	}
	return pool, nil
}

// takeUser turns "user:password@" into a header, so that it is in no URL from here on.
func takeUser(u *url.URL, header http.Header) {
	if u.User == nil {
		return
	}
	if header.Get("Authorization") == "" {
		password, _ := u.User.Password()
		req := http.Request{Header: header}
		req.SetBasicAuth(u.User.Username(), password)
	}
	u.User = nil
}

// operatorHeader checks headers that come from the configuration.
func operatorHeader(values map[string]string, keyHeader string) (http.Header, error) {
	header := http.Header{}
	var errs []error
	for name, value := range values {
		canonical := http.CanonicalHeaderKey(name)
		if err := checkHeader(name, value); err != nil {
			errs = append(errs, err)
		} else if canonical == keyHeader {
			errs = append(errs, fmt.Errorf("%q is the delivery key's header and cannot be set", name))
		} else if header[canonical] != nil {
			errs = append(errs, fmt.Errorf("%q is there twice", name))
		}
		header[canonical] = []string{value}
	}
	return header, errors.Join(errs...)
}

// reserved are the headers that say how a request is framed or forwarded, which net/http decides.
var reserved = map[string]bool{
	"Host": true, "Content-Length": true, "Transfer-Encoding": true, "Connection": true, "Keep-Alive": true, "Te": true,
	"Trailer": true, "Upgrade": true, "Expect": true, "Accept-Encoding": true, "Proxy-Connection": true,
	"Proxy-Authorization": true, "Proxy-Authenticate": true,
}

// checkHeader returns an error that holds the name, cleaned, and never the value.
func checkHeader(name, value string) error {
	const token = "!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
	if name == "" || len(name) > 255 || strings.Trim(name, token) != "" {
		return fmt.Errorf("%.40q is not the name of a header", name)
	}
	if reserved[http.CanonicalHeaderKey(name)] {
		return fmt.Errorf("%q cannot be set: it belongs to the connection", name)
	}
	for i := range len(value) {
		if b := value[i]; b < ' ' && b != '\t' || b == 0x7f {
			return fmt.Errorf("the value of %q has a control character at byte %d", name, i)
		}
	}
	return nil
}
