package httpkey

import (
	"errors"
	"fmt"
	"net/http"

	"github.com/samekey/samekey"
	"github.com/samekey/samekey/internal/keyheader"
)

// keyOf reads the request's key. present is false if the request has no key and needs none.
func (m *Middleware) keyOf(r *http.Request) (key samekey.Key, present bool, problem *Problem) {
	value, err := keyheader.Value(r.Header[m.o.Header])
	switch {
	case err == nil:
		key, problem = m.scoped(r, value)
		return key, true, problem
	case errors.Is(err, keyheader.ErrMissing) && m.o.Optional:
		key, problem = m.scoped(r, samekey.Mint()) // unknown to the client, so it cannot be repeated
		return key, false, problem
	}
	return samekey.Key{}, false, problemHeader(err, m.o.Header)
}

// scoped puts the value into the request's scope. Without a principal nothing is done: the fault is the service's, and
// so is the status.
func (m *Middleware) scoped(r *http.Request, value string) (samekey.Key, *Problem) {
	parts := m.o.Scope(r)
	if _, err := samekey.NewKey("any", parts...); err != nil {
		m.log(r, samekey.Key{}, fmt.Errorf("httpkey: Options.Scope must return the principal and the operation: put authentication outside this middleware: %w", err))
		return samekey.Key{}, &problemInternal
	}
	key, err := samekey.NewKey(value, parts...)
	if err != nil {
		return samekey.Key{}, problemKey(err)
	}
	return key, nil
}
