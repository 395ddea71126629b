package httpvendor

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/samekey/samekey/dispatcher"
)

// Destination is a vendor account that is reached over HTTP. Name and URL are required; the zero value of every other
// field is its default.
type Destination struct {
	// Name is the destination's in dispatcher.Policy.Destination and in errors: lowercase letters, digits, _ and -.
	Name string

	// URL is where the vendor is: http or https, a host, a path that those of the actions are added to, a query that
	// each call is sent with. "user:password@" becomes basic authentication. TLS is always verified; there is no way to
	// turn that off.
	URL string

	// KeyHeader carries the delivery key, a UUID in its 36 characters. No other setting and no header of an intent can
	// override it. Default "Idempotency-Key".
	KeyHeader string

	// Headers are sent with each call. They win over an intent's headers of the same name.
	Headers map[string]string

	// KeyWindow is how long this vendor remembers a key: the default of its idempotent writes' policies.
	KeyWindow time.Duration

	// Limits are the destination's on this process.
	Limits dispatcher.Limits

	// CAFile holds further authorities, PEM, besides the system's. It is read once, by [New].
	CAFile string

	// Proxy is the URL of a proxy, http or https, for all calls. Default: none. HTTP_PROXY and its kin are not read:
	// they would decide, from outside of the configuration, who sees keys and credentials.
	Proxy string

	// Secrets are texts of this destination that no answer may carry into the database, such as a token in Headers,
	// or in the headers of an action, in case the vendor echoes it: each is replaced by "[redacted]", in its URL- and
	// JSON-escaped forms too. The password of URL and the credentials in an Authorization header, the destination's or an
	// action's, are added by themselves. Those shorter than 6 bytes are ignored.
	Secrets []string
}

// Client makes calls to one destination. It is safe for concurrent use.
type Client struct {
	dest    Destination
	base    *url.URL
	header  http.Header
	secrets secrets
	reusing *http.Transport // connections are kept and used again
	single  *http.Transport // each call has a connection of its own
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
	if c.base, err = parseURL(dest.URL); err != nil {
		fail("URL", "%v", err)
		c.base = &url.URL{}
	}
	if c.dest.KeyHeader == "" {
		c.dest.KeyHeader = "Idempotency-Key"
	}
	c.dest.KeyHeader = http.CanonicalHeaderKey(c.dest.KeyHeader)
	if err := checkHeader(c.dest.KeyHeader, ""); err != nil {
		fail("KeyHeader", "%v", err)
	}
	if c.header, err = operatorHeader(dest.Headers, c.dest.KeyHeader); err != nil {
		fail("Headers", "%v", err)
	}
	if dest.KeyWindow < 0 {
		fail("KeyWindow", "%v is negative", dest.KeyWindow)
	}
	roots, err := authorities(dest.CAFile)
	if err != nil {
		fail("CAFile", "%v", err)
	}
	proxy, err := proxyURL(dest.Proxy)
	if err != nil {
		fail("Proxy", "%v", err)
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	c.secrets = newSecrets(c.base, c.header, dest.Secrets)
	takeUser(c.base, c.header)
	c.reusing = newTransport(roots, proxy, max(c.dest.Limits.Concurrency, 32))
	c.single = newTransport(roots, proxy, 0)
	return c, nil
}

// Close closes the connections that are idle. Calls under way go on.
func (c *Client) Close() {
	c.reusing.CloseIdleConnections()
	c.single.CloseIdleConnections()
}

// idleTimeout is shorter than what usual servers and balancers allow an idle connection (60 s and more), so that it is
// this side that closes it: a connection that the other side closes just as a request goes out leaves an unknown outcome.
const idleTimeout = 30 * time.Second

func newTransport(roots *x509.CertPool, proxy *url.URL, idle int) *http.Transport {
	t := &http.Transport{
		DialContext:            dial,
		TLSClientConfig:        &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12},
		TLSHandshakeTimeout:    10 * time.Second,
		DisableKeepAlives:      idle == 0,
		MaxIdleConns:           idle,
		MaxIdleConnsPerHost:    idle,
		IdleConnTimeout:        idleTimeout,
		MaxResponseHeaderBytes: 256 << 10,
		Protocols:              new(http.Protocols),
	}
	t.Protocols.SetHTTP1(true)
	if proxy != nil {
		t.Proxy = http.ProxyURL(proxy)
	}
	return t
}

// parseURL returns an error without the URL's text.
func parseURL(text string) (*url.URL, error) {
	u, err := url.Parse(text)
	switch {
	case text == "":
		return nil, errors.New("is missing")
	case err != nil:
		return nil, errors.New("is not a valid URL")
	case u.Scheme != "http" && u.Scheme != "https":
		return nil, errors.New("must begin with https:// or http://")
	case u.Hostname() == "":
		return nil, errors.New("has no host")
	case u.Fragment != "":
		return nil, errors.New("has a fragment (#...), which is never sent")
	}
	return u, nil
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
