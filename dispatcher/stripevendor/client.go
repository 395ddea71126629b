package stripevendor

import (
	"crypto/tls"
	"errors"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/stripe/stripe-go/v85"

	"github.com/samekey/samekey/dispatcher"
	"github.com/samekey/samekey/internal/wirehttp"
)

// Vendor is what Stripe's documents say of keys in its API v1: they go bare into the header Idempotency-Key, have at most
// 255 characters, may be forgotten after 24 hours, and get the first answer again, a 500 too; with other
// parameters they get an error. [Handle] registers it.
func Vendor() dispatcher.Vendor {
	return dispatcher.Vendor{
		Key:      dispatcher.KeyRules{Place: dispatcher.KeyInHeader, Name: keyHeader, MaxLength: 255},
		Window:   24 * time.Hour,
		Replay:   dispatcher.ReplayAnswer,
		Mismatch: dispatcher.MismatchRefused,
	}
}

const keyHeader = "Idempotency-Key"

// Account is a Stripe account.
type Account struct {
	// Key is the secret or restricted API key. Required. It is in no error, log or row.
	Key string

	// URL is where the API is: a server of your own in tests. Default https://api.stripe.com.
	URL string

	// Proxy is where connections go through; it sees the host's name, and nothing of what is said to it. HTTPS_PROXY and its
	// like are not read. Check refuses Policy.ResendAbsent with it, since a proxy can send late what it has taken. Default: none.
	Proxy *url.URL
}

// Client makes calls to one account. It is safe for concurrent use, and has nothing to close: each call's connection ends
// with it.
type Client struct {
	key       string
	base      *url.URL
	transport *http.Transport
	stripe    *stripe.Client
}

// New makes a client. Nothing is connected yet. Errors hold neither the key nor the URL.
func New(account Account) (*Client, error) {
	if account.URL == "" {
		account.URL = stripe.APIURL
	}
	base, err := url.Parse(account.URL)
	switch {
	case strings.TrimSpace(account.Key) == "" || strings.ContainsFunc(account.Key, func(r rune) bool { return r <= ' ' || r > '~' }):
		return nil, errors.New("stripevendor: Account.Key is missing, or has characters that no API key has")
	case err != nil || base.Scheme != "https" && base.Scheme != "http" || base.Host == "" || strings.Trim(base.Path, "/") != "" || base.User != nil:
		return nil, errors.New("stripevendor: Account.URL must be https:// or http:// and a host, with no path")
	}
	c := &Client{key: account.Key, base: base, transport: newTransport(account.Proxy)}
	// All four, or calls to the others would leave by a client that is not ours.
	backends := stripe.NewBackendsWithConfig(&stripe.BackendConfig{
		HTTPClient: &http.Client{
			Transport:     roundTripper(c.roundTrip),
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
		LeveledLogger:     &stripe.LeveledLogger{Level: stripe.LevelNull},
		MaxNetworkRetries: stripe.Int64(0),
		EnableTelemetry:   stripe.Bool(false),
		URL:               stripe.String(strings.TrimSuffix(account.URL, "/")),
	})
	c.stripe = stripe.NewClient(account.Key, stripe.WithBackends(backends))
	return c, nil
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// newTransport uses no connection twice: net/http sends a request with an Idempotency-Key again by itself when a reused
// connection turns out dead.
func newTransport(proxy *url.URL) *http.Transport {
	t := &http.Transport{
		DisableKeepAlives:   true,
		TLSClientConfig:     &tls.Config{MinVersion: tls.VersionTLS12},
		TLSHandshakeTimeout: 10 * time.Second,
	}
	wirehttp.Guard(t)
	if proxy != nil {
		t.Proxy = http.ProxyURL(proxy)
	}
	return t
}
