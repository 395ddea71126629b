package httpvendor

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/samekey/samekey/dispatcher"
)

// receiver is where a call goes, and what is this receiver's alone.
type receiver struct {
	base    *url.URL    // without a user
	header  http.Header // not to be changed
	signer  signer      // nil: calls are not signed
	secrets secrets     // struck out of its answers
}

// stored reports whether calls go to endpoints that are kept in the database.
func (c *Client) stored() bool { return c.dest.URL == "" && c.dest.Endpoint != "" }

// checkEndpoint holds what a destination says of endpoints against the rest of it.
func (c *Client) checkEndpoint(fail func(field, format string, args ...any)) {
	if c.dest.Endpoint == "" {
		return
	}
	var err error
	if c.endpointName, err = parseTemplate(c.dest.Endpoint, asText); err != nil {
		fail("Endpoint", "%v", err)
	}
	if !c.stored() {
		return
	}
	const each = "each has its own, see the package outbox/endpoints"
	if c.dest.Auth != (Auth{}) {
		fail("Auth", "would go to every endpoint: %s", each)
	}
	if c.header.Get("Authorization") != "" {
		fail("Headers", "would send Authorization to every endpoint: %s", each)
	}
	if len(c.dest.WebhookSecrets) > 0 {
		fail("WebhookSecrets", "would sign for every endpoint, so that each could pass for another's sender: %s", each)
	}
}

// withEndpoint is the option of actions that have endpoints, or nil.
func (c *Client) withEndpoint() dispatcher.Option {
	switch {
	case c.endpointName == nil:
		return nil
	case c.stored():
		return dispatcher.WithStoredEndpoint(c.nameEndpoint)
	}
	return dispatcher.WithEndpoint(c.nameEndpoint)
}

// nameEndpoint returns the name of a call's endpoint; empty where the template finds none.
func (c *Client) nameEndpoint(call *dispatcher.Call) string {
	named := *call
	if !strings.Contains(c.dest.Endpoint, "Payload") {
		named.Payload = nil // it need not be decoded
	}
	name, err := execute(c.endpointName, valuesOf(&named))
	if err != nil {
		return ""
	}
	return name
}

// receiver returns where a call goes. An error is for whoever keeps the endpoint, and holds nothing of it.
func (o *operation) receiver(call *dispatcher.Call) (receiver, error) {
	if !o.client.stored() {
		return receiver{base: o.client.base, header: o.header, signer: o.client.signer, secrets: o.secrets}, nil
	}
	if call.Endpoint == nil {
		return receiver{}, errors.New("the call has no endpoint: register the handler with the options that it came with")
	}
	const mend = "put the endpoint anew, then redrive"
	base, err := parseURL(call.Endpoint.URL)
	if err != nil {
		return receiver{}, fmt.Errorf("the endpoint's URL %w: %s", err, mend)
	}
	if o.client.reusing.Proxy != nil {
		if err := o.client.allowed.checkProxied(base); err != nil {
			return receiver{}, fmt.Errorf("the endpoint's URL %w: %s", err, mend)
		}
	}
	signer, hooks, err := newSigner(call.Endpoint.Secrets)
	switch {
	case err != nil:
		return receiver{}, fmt.Errorf("the list of the endpoint's secrets %w: %s", err, mend)
	case signer == nil && o.client.keyHeader == webhookID:
		return receiver{}, fmt.Errorf("the endpoint has no secret to sign with: %s", mend)
	}
	r := receiver{base: base, header: o.header.Clone(), signer: signer, secrets: o.secrets.with(slices.Concat(userSecrets(base), addressSecrets(base), hooks))}
	takeUser(r.base, r.header)
	return r, nil
}

// url adds an action's path and query, if it has any, to those of the receiver.
func (r receiver) url(path string) (*url.URL, error) {
	at := *r.base
	if path == "" {
		return &at, nil
	}
	ref, err := parsePath(path)
	if err != nil {
		return nil, err
	}
	at.Path = strings.TrimRight(r.base.Path, "/") + ref.Path
	at.RawPath = strings.TrimRight(r.base.EscapedPath(), "/") + ref.EscapedPath()
	at.RawQuery = strings.Trim(r.base.RawQuery+"&"+ref.RawQuery, "&")
	return &at, nil
}
