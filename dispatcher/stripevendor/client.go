package stripevendor

import (
	"crypto/tls"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/stripe/stripe-go/v85"

	"github.com/samekey/samekey/dispatcher"
	"github.com/samekey/samekey/internal/wirehttp"
)

// Vendor describes the keys of Stripe's API v1 as Stripe documents them: they go unquoted into the header
// Idempotency-Key, have at most 255 characters, and may be forgotten after 24 hours. The same key gets the first answer
// again, also a 500; with other parameters it gets an error. [Delivery] sets it.
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
	// Key is the secret or restricted API key. Required. No error, log or row contains it.
	Key string

	// URL is where the API is; set it in tests. Default https://api.stripe.com.
	URL string

	// Proxy is the proxy for all connections. It sees the host's name and no content. HTTPS_PROXY and similar variables
	// are not read. Check refuses Policy.ResendAbsent with it, since a proxy can deliver a request late. Default: none.
	Proxy *url.URL
}

// Client makes calls to one account. It is safe for concurrent use and needs no Close: each call has its own
// connection.
type Client struct {
	key       string
	base      *url.URL
	transport *http.Transport
	stripe    *stripe.Client
}

// New makes a client. It connects to nothing. The error is dispatcher.ConfigErrors, and contains neither the key nor
// the URL.
func New(account Account) (*Client, error) {
	if account.URL == "" {
		account.URL = stripe.APIURL
	}
	var errs dispatcher.ConfigErrors
	if account.Key == "" || strings.ContainsFunc(account.Key, func(r rune) bool { return r <= ' ' || r > '~' }) {
		errs.Add("stripevendor.Account", "Key", "missing, or has a character that no API key has")
	}
	base, err := url.Parse(account.URL)
	if err != nil || base.Scheme != "https" && base.Scheme != "http" || base.Host == "" || strings.Trim(base.Path, "/") != "" || base.User != nil {
		errs.Add("stripevendor.Account", "URL", "must be https:// or http:// and a host, without a path")
	}
	if err := errs.Err(); err != nil {
		return nil, err
	}
	c := &Client{key: account.Key, base: base, transport: newTransport(account.Proxy)}
	// All four backends: calls to the others would use another HTTP client.
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

// newTransport uses no connection twice: net/http repeats a request with an Idempotency-Key if a reused connection
// turns out to be dead.
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
