package httpvendor

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"text/template"
	"time"

	"github.com/samekey/samekey/dispatcher"
	"github.com/samekey/samekey/internal/wirehttp"
)

// Destination is a vendor account that is called over HTTP, or many receivers that are called alike. Name is required,
// and URL or Endpoint. The zero value of every other field is its default.
type Destination struct {
	// Name is the destination's name in policies and errors: lowercase letters, digits, _ and -.
	Name string

	// URL is where the vendor is: http or https, a host, a path to which those of the actions are added, and an escaped
	// query that each call is sent with. An international host name is converted as browsers do (UTS #46).
	// "user:password@" becomes basic authentication. TLS certificates are always verified.
	URL string

	// Endpoint is for many receivers behind one destination: a template, as in an action's Request, that makes the name
	// of the receiver of a call, such as {{.Part}}. A receiver that hangs does not delay the others
	// (dispatcher.Delivery.Endpoint). If URL is empty, the receiver's URL and secrets are what package outbox/endpoints
	// stores under that name (dispatcher.Delivery.StoredEndpoint). The URL may hold all that URL may. Answers that mean
	// dispatcher.Gone stop the receiver, and the actions need a Policy.Deadline. Auth, WebhookSecrets and a header
	// Authorization would go to each of the receivers, so they are refused. Default: one receiver.
	Endpoint string

	// Vendor describes the vendor account: where the key goes, how long the vendor remembers it, and what the same key
	// gets again. Presets such as [Stripe] fill it in. If Key.Place is zero, the key goes into the header
	// "Idempotency-Key", or into Key.Name, and Replay is dispatcher.ReplayAnswer. No other setting and no header of an
	// intent can replace the key. A key in a body makes every body that carries it a JSON object or a form.
	// KeyInMessageID is not a place in a request: use dispatcher.KeyNowhere for a mail API that takes no key. The key
	// is stored with an intent at its first attempt; a header's name and Key.Quoted are not, so if they change, an
	// intent that may have been sent before is looked up or parked.
	Vendor dispatcher.Vendor

	// Rules say what this vendor's answers mean. The rules of an action come first.
	Rules []Rule

	// JSONAnswers means that this vendor's answers with a body are JSON. Then a success or a refusal is unknown if its
	// body is not JSON, such as the page of a proxy, or is longer than 1 MiB, and no rule of a lookup matches such a
	// page. Default: false.
	JSONAnswers bool

	// Reference is the JSON Pointer of this vendor's own id in its answers, for the actions that have no Reference of
	// their own. Default: none.
	Reference string

	// RetryAfter is the JSON Pointer of a member of this vendor's answers that counts as the header Retry-After does, for
	// the actions that have no RetryAfter of their own. Default: none.
	RetryAfter string

	// Lookup asks this vendor whether it acted (reconciliation), for the actions that have no Lookup of their own. A
	// read is repeated instead. Default: none.
	Lookup *Lookup

	// Headers are sent with each call. They win over an intent's headers of the same name.
	Headers map[string]string

	// Auth authenticates the calls.
	Auth Auth

	// Credentials returns credentials that change, such as a token of a vault: see [Credentials] for what they replace. It
	// is called at the start of an attempt or lookup if there are none yet, if they are over, and after an answer that
	// means dispatcher.Denied, at most once a second. Shortly before they are over it is called while attempts go on with
	// what they have. One call runs at a time, in a goroutine of its own, and ctx ends after 30 s; attempts that wait for
	// it wait no longer than their own time. After an error, intents without credentials are unsent with the code
	// "credentials" and use no attempt. The error's text, without URLs and known secrets, is logged and stored: put no
	// secret into it. Default: the credentials do not change.
	Credentials func(ctx context.Context) (Credentials, error)

	// WebhookSecrets sign each call, by default as Standard Webhooks defines it, see [StandardWebhooks]: "whsec_" and the
	// base64 of 24 to 64 bytes, or "whsk_" and the base64 of an ed25519 private key (its seed of 32 bytes, or 64 bytes).
	// The key of the other forms of Signature is the text of the secret as it stands, with its "whsec_" if it has one.
	// With several, for a rotation, each call has a signature by each where the form has room for it. The form "standard"
	// needs the delivery key in a header, and covers that key, the time of the attempt by this process's clock, and the
	// body.
	WebhookSecrets []string

	// Signature lists the forms of the signature, for the secrets here and those of stored endpoints. All are sent, so
	// receivers can move from one to another. A secret signs in each form that it fits. Default: Standard Webhooks, if
	// there are secrets.
	Signature []Signature

	// Limits are the destination's limits.
	Limits dispatcher.Limits

	// HTTP2 lets reads, idempotent writes and lookups use HTTP/2, for a vendor that wants it: many calls share one
	// connection. Calls that may not be repeated keep HTTP/1.1, each on a connection of its own, so that a call that
	// times out can be taken back from the network. It needs a URL with https. A host that does not offer HTTP/2 is
	// called over HTTP/1.1, and asked for HTTP/2 again after 10 minutes. See the package comment for what a shared
	// connection guarantees. Default: false, HTTP/1.1.
	HTTP2 bool

	// CAFile holds further certificate authorities in PEM form, in addition to the system's. [New] reads it once.
	CAFile string

	// ClientCertFile and ClientKeyFile are a certificate and its key in PEM form that are shown to a vendor that asks for
	// one (mutual TLS), and to the server of Auth.OAuth2. They need a URL with https. Each new connection uses what the
	// files have then; open connections keep theirs. If the pair cannot be used, the former one stays in use, and one line
	// is logged. Default: none.
	ClientCertFile, ClientKeyFile string

	// Proxy is the URL of a proxy, http or https, for all calls. Check refuses Policy.ResendAbsent with it, since a
	// proxy can deliver a request late. Default: none. HTTP_PROXY and similar variables are not read: they would decide
	// from outside the configuration who sees keys and credentials.
	Proxy string

	// AllowPrivate lists ranges of addresses that may be called in addition to public ones. The address of each
	// connection is checked after the name is resolved, before a byte is sent: a private, loopback, link-local, shared,
	// multicast or reserved address, and a cloud's metadata service, is refused in any notation unless a range contains
	// it. With a Proxy, the proxy's address is checked, and the proxy resolves the vendor's name; configure there what
	// it may reach. An address in a URL itself, or in an endpoint's, is also refused with a proxy. Examples:
	// 10.20.0.0/16, or 127.0.0.0/8 in tests.
	AllowPrivate []netip.Prefix

	// Secrets are texts that no stored answer may contain, such as a token in Headers, in case the vendor echoes it.
	// Each is replaced by "[redacted]", also in its URL-escaped and JSON-escaped forms. These are always replaced: the
	// password in URL, the values in Auth and WebhookSecrets, the credentials in an Authorization header of the
	// destination or an action, and of a stored endpoint the secrets, the values of its headers, the password, the path
	// and the query. Texts shorter than 6 bytes are not replaced.
	Secrets []string

	resolver *net.Resolver // of tests; nil: the system's
}

// Client makes calls to one destination. It is safe for concurrent use.
type Client struct {
	dest      Destination
	account             // of the configuration; changing is what calls carry
	changing  *changing // nil: the credentials do not change
	keyHeader string    // canonical; empty: the key is not in a header
	lookup    *lookup

	endpointName *template.Template // nil: there is one receiver
	allowed      allowList
	forms        []Signature     // of signatures, with their defaults
	shared       *wirehttp.HTTP2 // several calls at once on each connection; nil: not used
	reusing      *http.Transport // keeps connections and uses them again
	single       *http.Transport // each call has a connection of its own

	mistakes dispatcher.ConfigErrors
}

// New checks a destination, reads its CAFile, and makes a client. It connects to nothing.
//
// The error is dispatcher.ConfigErrors with every mistake. It never contains the URL or a header's value. The client is
// not nil even then, so that the destination's actions can be checked as well: [Delivery] passes the mistakes on, and
// dispatcher.Dispatcher.Check returns them.
func New(dest Destination) (*Client, error) {
	c := &Client{dest: dest}
	m := c.check()
	if dest.Credentials != nil || dest.Auth.OAuth2 != nil {
		c.changing = &changing{of: c, pause: fetchPause}
	}
	c.connect(m)
	return c, c.mistakes.Err()
}

// check checks the destination, and makes of it what calls carry.
func (c *Client) check() mistakes {
	dest := c.dest
	c.account = account{base: &url.URL{}, header: http.Header{}}
	m := mistakes{all: &c.mistakes, item: fmt.Sprintf("destination %q", dest.Name)}
	if dest.Name == "" {
		m.add("Name", "missing")
	}
	if !c.stored() {
		if base, err := parseURL(dest.URL); err != nil {
			m.add("URL", "%v", err)
		} else {
			c.base = base
		}
	}
	c.setKey(m)
	hooks := c.setSigner(m)
	c.setHeaders(c.header, dest.Headers, m)
	credentials := c.setAuth(m)
	c.setEndpoint(m)
	for i, rule := range dest.Rules {
		rule.check(m.at("Rules", i), ofSends)
	}
	checkPointer(m, "Reference", dest.Reference, "/id")
	checkPointer(m, "RetryAfter", dest.RetryAfter, "/error/retry_in")
	if dest.Lookup != nil {
		c.lookup = newLookup(*dest.Lookup, m.in("Lookup"))
	}
	c.allowed = newAllowList(dest.AllowPrivate, m)
	if dest.Auth.OAuth2 != nil {
		dest.Auth.OAuth2.check(c.allowed, m.in("Auth.OAuth2"))
	}
	if err := c.allowed.checkURL(c.base); err != nil {
		m.add("URL", "%v: add its range to %s if it is intended", err, word("AllowPrivate"))
	}
	c.secrets = newSecrets(c.base, c.header, dest.Secrets).With(credentials...).With(hooks...)
	takeUser(c.base, c.header)
	return m
}

// setKey decides where the key goes. The dispatcher checks the rest of the vendor's description.
func (c *Client) setKey(m mistakes) {
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
		if err := checkHeader(v.Key.Name, ""); err != nil && v.Key.Name != "" {
			m.add("Vendor.Key.Name", "%v", err)
		}
	case dispatcher.KeyInMessageID:
		m.add("Vendor.Key.Place", "not %s: an HTTP request has no Message-ID", word("KeyInMessageID"))
	}
	if v.Replay == 0 && v.Key.Place != dispatcher.KeyNowhere {
		v.Replay = dispatcher.ReplayAnswer
	}
}

// setAuth adds the credentials to the headers, and returns what is secret in them.
func (c *Client) setAuth(m mistakes) (secret []string) {
	if what := c.carries(c.dest.Auth.Header); what != "" {
		m.add("Auth.Header", "carries the %s and cannot be set", what)
	}
	return c.dest.Auth.apply(c.header, m)
}

// setSigner makes the signer of webhooks, and returns what is secret in it.
func (c *Client) setSigner(m mistakes) (secret []string) {
	before := len(c.mistakes)
	sets := map[string]bool{c.keyHeader: c.keyHeader != ""}
	standard := len(c.dest.Signature) == 0
	for i, form := range c.dest.Signature {
		form.check(m.at("Signature", i))
		c.forms = append(c.forms, form.normal())
		standard = standard || form.normal().Form == formStandard
		for _, name := range form.normal().headers() {
			if sets[name] {
				m.at("Signature", i).add("Header", "%s carries the delivery key or another signature: choose another header", name)
			}
			sets[name] = true
		}
	}
	if standard && c.forms == nil {
		c.forms = []Signature{Signature{}.normal()}
	}
	if len(c.mistakes) > before {
		return c.dest.WebhookSecrets // what is wrong with them depends on the forms
	}
	var err error
	c.signer, secret, err = newSigner(c.forms, c.dest.WebhookSecrets)
	switch {
	case err != nil:
		m.add("WebhookSecrets", "%v", err)
	case c.signer != nil && standard && c.keyHeader == "":
		m.add("WebhookSecrets", "needs the key in a header, by which the receiver recognizes a repeated webhook: see %s", word("Vendor.Key"))
	case c.signer == nil && c.mustSign() && !c.stored() && c.dest.Credentials == nil:
		m.add("WebhookSecrets", "missing: a receiver accepts only what is signed")
	}
	return secret
}

// mustSign reports whether nothing may be sent without a signature.
func (c *Client) mustSign() bool { return c.keyHeader == webhookID || len(c.dest.Signature) > 0 }

// carries returns what samekey writes into a header, or "" if it is not samekey's.
func (c *Client) carries(name string) string {
	name = http.CanonicalHeaderKey(name)
	switch name {
	case "":
		return ""
	case c.keyHeader:
		return "delivery key"
	}
	for _, form := range c.forms {
		if slices.Contains(form.headers(), name) && (c.stored() || c.mustSign() || len(c.dest.WebhookSecrets) > 0) {
			return "signature"
		}
	}
	return ""
}

// connect makes the transports.
func (c *Client) connect(m mistakes) {
	roots, err := authorities(c.dest.CAFile)
	if err != nil {
		m.add("CAFile", "%v", err)
	}
	config := &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
	c.setClientCert(config, m)
	var proxy *url.URL
	if c.dest.Proxy != "" {
		if proxy, err = parseURL(c.dest.Proxy); err == nil {
			err = c.allowed.checkURL(proxy)
		}
		if err != nil {
			m.add("Proxy", "%v", err)
		}
	}
	dialer := c.allowed.dialer(c.dest.resolver)
	switch {
	case c.dest.HTTP2 && c.stored():
		m.add("HTTP2", "not allowed without %s: each stored endpoint is a host of its own, and is called over HTTP/1.1", word("URL"))
	case c.dest.HTTP2 && c.base.Scheme == "http":
		m.add("HTTP2", "needs a %s with https://", word("URL"))
	case c.dest.HTTP2 && c.base.Scheme == "https":
		address := net.JoinHostPort(c.base.Hostname(), cmp.Or(c.base.Port(), "443"))
		c.shared = wirehttp.NewHTTP2(transport(dialer, config, proxy), address)
	}
	c.reusing = newTransport(dialer, config, proxy, max(c.dest.Limits.Concurrency, 32))
	c.single = newTransport(dialer, config, proxy, 0)
}

// setClientCert has connections show the client certificate.
func (c *Client) setClientCert(config *tls.Config, m mistakes) {
	certFile, keyFile := c.dest.ClientCertFile, c.dest.ClientKeyFile
	switch {
	case certFile == "" && keyFile == "":
		return
	case keyFile == "":
		m.add("ClientKeyFile", "missing: the certificate needs its key")
		return
	case certFile == "":
		m.add("ClientCertFile", "missing: the key needs its certificate")
		return
	case c.base.Scheme == "http":
		m.add("ClientCertFile", "needs a %s with https://", word("URL"))
		return
	}
	cert, err := newClientCert(c.dest.Name, certFile, keyFile)
	if err != nil {
		m.add("ClientCertFile", "%v", err)
		return
	}
	config.GetClientCertificate = cert.get
}

// Register declares the destination and its limits.
func (c *Client) Register(d *dispatcher.Dispatcher) {
	d.Destination(c.dest.Name, c.dest.Limits)
	d.Vendor(c.dest.Name, c.dest.Vendor)
}

// Close closes idle connections, and ends a call of Destination.Credentials. Calls to the vendor that are in progress
// continue.
func (c *Client) Close() {
	if c.changing != nil {
		c.changing.close()
	}
	if c.shared != nil {
		c.shared.CloseIdleConnections()
	}
	c.reusing.CloseIdleConnections()
	c.single.CloseIdleConnections()
}

// idleTimeout is shorter than the 60 s and more that servers and load balancers usually allow an idle connection, so
// that this side closes it. If the other side closes it just as a request is sent, the outcome is unknown.
const idleTimeout = 30 * time.Second

// newTransport makes a transport for HTTP/1.1 that keeps up to idle connections.
func newTransport(dialer *net.Dialer, config *tls.Config, proxy *url.URL, idle int) *http.Transport {
	t := transport(dialer, config, proxy)
	t.DisableKeepAlives, t.MaxIdleConns, t.MaxIdleConnsPerHost = idle == 0, idle, idle
	wirehttp.Guard(t)
	return t
}

func transport(dialer *net.Dialer, config *tls.Config, proxy *url.URL) *http.Transport {
	t := &http.Transport{
		DialContext:         dialer.DialContext,
		TLSClientConfig:     config.Clone(),
		TLSHandshakeTimeout: 10 * time.Second,
		IdleConnTimeout:     idleTimeout,
	}
	if proxy != nil {
		t.Proxy = http.ProxyURL(proxy)
	}
	return t
}

// authorities returns the system's certificate authorities and those of the file. Nil means the system's.
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
		return nil, fmt.Errorf("%s contains no certificate in PEM form", file)
	}
	return pool, nil
}
