package httpvendor

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/samekey/samekey/dispatcher"
	"github.com/samekey/samekey/internal/redact"
	"github.com/samekey/samekey/internal/webhook"
)

// receiver is where a call goes, with what belongs to this receiver alone.
type receiver struct {
	base    *url.URL       // without a user
	header  http.Header    // not to be changed
	signer  *signer        // nil: calls are not signed
	secrets redact.Secrets // removed from its answers
}

// stored reports whether calls go to endpoints that the database stores.
func (c *Client) stored() bool { return c.dest.URL == "" && c.dest.Endpoint != "" }

// setEndpoint parses the template of endpoint names, and refuses what would go to every endpoint.
func (c *Client) setEndpoint(m mistakes) {
	if c.dest.Endpoint == "" {
		return
	}
	var err error
	if c.endpointName, err = parseTemplate(c.dest.Endpoint, asText); err != nil {
		m.add("Endpoint", "%v", err)
	}
	if !c.stored() {
		return
	}
	const each = "each endpoint has its own, see package outbox/endpoints"
	if c.dest.Auth != (Auth{}) {
		m.add("Auth", "would be sent to every endpoint: %s", each)
	} else if c.header.Get("Authorization") != "" {
		m.add(`Headers["Authorization"]`, "would be sent to every endpoint: %s", each)
	}
	if len(c.dest.WebhookSecrets) > 0 {
		m.add("WebhookSecrets", "would sign for every endpoint, so each could impersonate the sender to the others: %s", each)
	}
}

// nameEndpoint returns the name of a call's endpoint. It is empty if the template fails.
func (c *Client) nameEndpoint(call *dispatcher.Call) string {
	named := *call
	if !strings.Contains(c.dest.Endpoint, "Payload") {
		named.Payload = nil // is not decoded
	}
	name, err := execute(c.endpointName, valuesOf(&named))
	if err != nil {
		return ""
	}
	return name
}

// receiver returns where a call goes with the credentials of account. An error is for the owner of the endpoint, and
// contains nothing of it.
func (o *operation) receiver(call *dispatcher.Call, with *account) (receiver, error) {
	of := o.carrying(with, call.Action)
	if !o.client.stored() {
		return of, nil
	}
	if call.Endpoint == nil {
		return receiver{}, errors.New("the call has no endpoint: register the Delivery as it was made")
	}
	const correct = "correct the endpoint, then redrive"
	base, err := parseURL(call.Endpoint.URL)
	if err != nil {
		return receiver{}, fmt.Errorf("the endpoint's URL %w: %s", err, correct)
	}
	if o.client.reusing.Proxy != nil {
		if err := o.client.allowed.checkProxied(base); err != nil {
			return receiver{}, fmt.Errorf("the endpoint's URL %w: %s", err, correct)
		}
	}
	signer, hooks, err := newSigner(o.client.forms, call.Endpoint.Secrets)
	switch {
	case err != nil:
		return receiver{}, fmt.Errorf("the endpoint's secrets: %w: %s", err, correct)
	case signer == nil && o.client.mustSign():
		return receiver{}, fmt.Errorf("the endpoint has no secret to sign with: %s", correct)
	}
	r := receiver{base: base, header: of.header.Clone(), signer: signer}
	own := http.Header{}
	for name, value := range call.Endpoint.Headers {
		err := webhook.CheckReceiverHeader(name, value)
		if what := o.client.carries(name); what != "" && err == nil {
			err = fmt.Errorf("%q carries the %s and cannot be set", name, what)
		}
		if err != nil {
			return receiver{}, fmt.Errorf("the endpoint's headers: %w: %s", err, correct)
		}
		own.Set(name, value)
		hooks = append(hooks, value)
	}
	maps.Copy(r.header, own)
	r.secrets = of.secrets.With(slices.Concat(userSecrets(base), addressSecrets(base), hooks, credentials(own))...)
	takeUser(r.base, r.header)
	return r, nil
}

// url adds an action's path and query to those of the receiver.
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
