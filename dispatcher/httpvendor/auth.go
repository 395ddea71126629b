package httpvendor

import (
	"encoding/base64"
	"errors"
	"net/http"
)

// Auth is how a destination is convinced of who calls: one of the three, or nothing. It goes onto the wire with each call
// and look-up, is never stored with a rendered request, and is struck out of answers as [Destination.Secrets] are.
type Auth struct {
	// Bearer is the token of "Authorization: Bearer ...".
	Bearer string

	// User and Password are of basic authentication. Where a vendor takes a key as the user, the password stays empty.
	User, Password string

	// Header and Value are a header of the vendor's own, such as X-Api-Key.
	Header, Value string
}

// apply sets the header. What it returns is secret.
func (a Auth) apply(header http.Header) (secret []string, err error) {
	name, value, ways := "Authorization", "", 0
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
	switch {
	case ways == 0:
		return nil, nil
	case ways > 1:
		return nil, errors.New("has more than one of bearer, basic and header")
	case value == "":
		return nil, errors.New("has a header without a value")
	}
	if err := checkHeader(name, value); err != nil {
		return nil, err
	}
	if header[name] != nil {
		return nil, errors.New("sets a header that Headers sets too")
	}
	header[name] = []string{value}
	return secret, nil
}
