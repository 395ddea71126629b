package main

import (
	"fmt"
	"net/url"
	"slices"
	"strings"
)

// knownHosts are the API hosts of vendors that have a preset, by preset. A name that begins with a dot matches all
// hosts below it.
var knownHosts = map[string][]string{
	"stripe":   {"api.stripe.com"},
	"adyen":    {".adyen.com", ".adyenpayments.com"},
	"paypal":   {".paypal.com"},
	"square":   {"connect.squareup.com", "connect.squareupsandbox.com"},
	"checkout": {"api.checkout.com", ".checkout.com"},
	"resend":   {"api.resend.com"},
	"mail":     {"api.postmarkapp.com", "api.sendgrid.com", "api.mailgun.net", "api.eu.mailgun.net"},
}

// presetOf returns the preset for the host of a URL, or "".
func presetOf(address string) string {
	u, err := url.Parse(address)
	if err != nil {
		return ""
	}
	host := strings.ToLower(u.Hostname())
	for preset, hosts := range knownHosts {
		if slices.ContainsFunc(hosts, func(known string) bool {
			return host == known || strings.HasPrefix(known, ".") && strings.HasSuffix(host, known)
		}) {
			return preset
		}
	}
	return ""
}

// warn adds a warning for each destination that calls a known vendor without the vendor's preset. That is allowed, but
// the worker then judges answers by the general rules only, and sends JSON to a vendor that may want forms. It also
// adds one for each key window that is longer than the preset's.
func (c *config) warn(r *reader) {
	for _, dest := range c.destinations {
		if dest.window > 0 && dest.Vendor.Window > dest.window {
			path := join(dest.at.path, "key_window")
			c.warnings = append(c.warnings, fmt.Sprintf("%s:%d: %s is longer than the %.0f h of the preset. If the vendor forgets keys earlier "+
				"than the file states, a repeated call has a second effect. Leave the field out unless your account has a longer window",
				r.file, r.lineOf(path, dest.at.line), path, dest.window.Hours()))
		}
		want := presetOf(dest.URL)
		if want == "" || dest.preset == want || dest.preset == noPreset {
			continue
		}
		line := r.lineOf(join(dest.at.path, "url"), dest.at.line)
		c.warnings = append(c.warnings, fmt.Sprintf("%s:%d: %s.url is a known host, and the destination does not have `preset: %s`. Without the preset, "+
			"samekey does not know where this vendor takes the key, how long it remembers it, and what its answers mean. "+
			"Set the preset, or `preset: %s` if the file says all of this", r.file, line, dest.at.path, want, noPreset))
	}
}
