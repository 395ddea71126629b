package httpvendor

import (
	"encoding/base64"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/samekey/samekey/internal/redact"
	"github.com/samekey/samekey/internal/webhook"
)

// setHeaders adds headers from the configuration to header, in the order of their names.
func (c *Client) setHeaders(header http.Header, values map[string]string, m mistakes) {
	seen := map[string]bool{}
	for _, name := range slices.Sorted(maps.Keys(values)) {
		canonical := http.CanonicalHeaderKey(name)
		field := fmt.Sprintf("Headers[%q]", name)
		if err := checkHeader(name, values[name]); err != nil {
			m.add(field, "%v", err)
		} else if what := c.carries(name); what != "" {
			m.add(field, "carries the %s and cannot be set", what)
		} else if seen[canonical] {
			m.add(field, "set twice")
		}
		seen[canonical] = true
		header[canonical] = []string{values[name]}
	}
}

// actionHeaders are the headers of an action.
func (c *Client) actionHeaders(values map[string]string, m mistakes) http.Header {
	header := http.Header{}
	c.setHeaders(header, values, m)
	if c.stored() && header.Get("Authorization") != "" {
		m.add(`Headers["Authorization"]`, "would be sent to every endpoint")
	}
	return header
}

// checkHeader returns an error that may hold the name, cleaned, and never the value.
func checkHeader(name, value string) error { return webhook.CheckHeader(name, value) }

// takeUser moves "user:password@" from a URL to a header, so that no later URL holds it.
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

// shortestSecret is the length in bytes from which a text is removed from answers.
const shortestSecret = 6

func newSecrets(base *url.URL, header http.Header, named []string) redact.Secrets {
	return redact.Secrets{Shortest: shortestSecret}.With(slices.Concat(named, credentials(header), userSecrets(base))...)
}

// userSecrets are what "user:password@" of a URL holds.
func userSecrets(base *url.URL) []string {
	password, ok := base.User.Password()
	if !ok {
		return nil
	}
	return []string{password, base64.StdEncoding.EncodeToString([]byte(base.User.Username() + ":" + password))}
}

// longSegment is the length from which a part of a path counts as a secret by itself.
const longSegment = 16

// addressSecrets are what else may be secret in the URL of a receiver, which often has no other credentials: its path,
// the long parts of the path, its query, and the values of the query. Pages such as "Cannot POST /hooks/..." repeat
// them.
func addressSecrets(base *url.URL) []string {
	out := []string{strings.TrimRight(base.Path, "/"), strings.TrimRight(base.EscapedPath(), "/"), base.RawQuery}
	for segment := range strings.SplitSeq(base.Path, "/") {
		if len(segment) >= longSegment {
			out = append(out, segment)
		}
	}
	for _, values := range base.Query() {
		out = append(out, values...)
	}
	return out
}

// credentials are what an Authorization header holds.
func credentials(header http.Header) []string {
	authorization := header.Get("Authorization")
	_, bare, _ := strings.Cut(authorization, " ")
	return []string{authorization, bare}
}
