package keyclient

import (
	"cmp"
	"errors"
	"net/http"
	"net/url"
	"strings"

	"github.com/samekey/samekey"
	"github.com/samekey/samekey/internal/keyheader"
)

// keyOf returns the value of the key's header: the request's own, that of the request that was redirected here, or a
// new one.
func (t *Transport) keyOf(req *http.Request) (string, error) {
	values := headerValues(req, t.Header)
	if req.Response != nil {
		first := start(req)
		if first == nil {
			return "", errUnknownRedirect
		}
		if !sameOrigin(first.URL, req.URL) {
			return "", errRedirect
		}
		if len(values) == 0 {
			if values = headerValues(first, t.Header); len(values) == 0 {
				return "", errUnknownRedirect
			}
		}
	}
	if len(values) == 0 {
		if t.Quoted {
			return keyheader.Quoted(samekey.Mint())
		}
		return samekey.Mint(), nil
	}
	value, err := keyheader.Value(values)
	switch {
	case errors.Is(err, keyheader.ErrSeveral):
		return "", &samekey.KeyError{Field: "value", Reason: "is in the request twice", Do: "set the header " + t.Header + " once, to one key"}
	case err != nil:
		return "", &samekey.KeyError{Field: "value", Reason: "starts with a quote and is not one quoted string", Do: `send it bare, or between two quotes with \" and \\ inside`}
	}
	if err := (samekey.Key{Scope: "client", Value: value}).Validate(); err != nil {
		return "", err
	}
	return values[0], nil
}

var (
	errRedirect        = errors.New("redirected to another scheme or host, which must not receive the key and body: if you trust it, call its URL directly")
	errUnknownRedirect = errors.New("redirected by an answer without its request and key: nothing between http.Client and the Transport may change Response.Request")
)

// headerValues returns the header's values, however its name is spelled.
func headerValues(req *http.Request, name string) (values []string) {
	for spelled, v := range req.Header {
		if strings.EqualFold(spelled, name) {
			values = append(values, v...)
		}
	}
	return values
}

// withoutHeader returns a copy of req without the header.
func withoutHeader(req *http.Request, name string) *http.Request {
	out := req.Clone(req.Context())
	if out.Header == nil {
		out.Header = http.Header{}
	}
	for spelled := range out.Header {
		if strings.EqualFold(spelled, name) {
			delete(out.Header, spelled)
		}
	}
	return out
}

// withoutStrayKey returns req, or a copy without the key that http.Client would carry to another host.
func (t *Transport) withoutStrayKey(req *http.Request) *http.Request {
	name := cmp.Or(t.Header, defaultHeader)
	if req.Response == nil || len(headerValues(req, name)) == 0 {
		return req
	}
	if first := start(req); first != nil && sameOrigin(first.URL, req.URL) {
		return req
	}
	return withoutHeader(req, name)
}

// start returns the first request of a chain of redirects, or nil.
func start(req *http.Request) *http.Request {
	for req != nil && req.Response != nil {
		req = req.Response.Request
	}
	return req
}

func sameOrigin(a, b *url.URL) bool {
	return strings.EqualFold(a.Scheme, b.Scheme) && strings.EqualFold(a.Hostname(), b.Hostname()) && port(a) == port(b)
}

func port(u *url.URL) string {
	switch explicit := u.Port(); {
	case explicit != "":
		return explicit
	case strings.EqualFold(u.Scheme, "https"):
		return "443"
	}
	return "80"
}
