package httpvendor

import (
	"encoding/base64"
	"net/http"
)

// Auth authenticates the calls of a destination in one of four ways, or not at all. It is sent with each call and
// lookup, is never stored with a rendered request, and is removed from answers as [Destination].Secrets are.
type Auth struct {
	// Bearer is the token of "Authorization: Bearer ...".
	Bearer string

	// User and Password are for basic authentication. If a vendor takes a key as the user, leave the password empty.
	User, Password string

	// Header and Value are a header that the vendor defines, such as X-Api-Key.
	Header, Value string

	// OAuth2 gets the token of "Authorization: Bearer ..." from an OAuth 2.0 server. It is kept in memory, and renewed a
	// tenth of its time before its end, at most a minute; one request at a time. An answer that means dispatcher.Denied
	// throws the token away. Without a token, intents are unsent with the code "credentials" and use no attempt.
	OAuth2 *OAuth2
}

// apply sets the header, and returns what is secret in it.
func (a Auth) apply(header http.Header, m mistakes) (secret []string) {
	name, value := "Authorization", ""
	ways := 0
	if a.Bearer != "" {
		value, secret = "Bearer "+a.Bearer, []string{a.Bearer}
		ways++
	}
	if a.User != "" || a.Password != "" {
		encoded := base64.StdEncoding.EncodeToString([]byte(a.User + ":" + a.Password))
		value, secret = "Basic "+encoded, []string{encoded, a.Password}
		if a.Password == "" {
			secret = []string{encoded, a.User}
		}
		ways++
	}
	if a.Header != "" || a.Value != "" {
		name, value, secret = http.CanonicalHeaderKey(a.Header), a.Value, []string{a.Value}
		ways++
	}
	if a.OAuth2 != nil {
		value, secret = "Bearer", []string{a.OAuth2.ClientSecret, a.OAuth2.basic()}
		ways++
	}
	switch {
	case ways == 0:
		return nil
	case ways > 1:
		m.add("Auth", "set only one of %s, %s, %s and %s", word("Bearer"), word("User"), word("Header"), word("OAuth2"))
		return nil
	case value == "":
		m.add("Auth.Value", "missing: %s needs a value", word("Header"))
		return nil
	}
	if err := checkHeader(name, value); err != nil {
		m.add("Auth", "%v", err)
	} else if header[name] != nil {
		m.add("Auth", "sets a header that %s also sets", word("Headers"))
	}
	if a.OAuth2 == nil { // there is no token yet
		header[name] = []string{value}
	}
	return secret
}
