package httpkey

import (
	"fmt"
	"net/http"
	"strings"

	"github.com/dunglas/httpsfv"

	"github.com/samekey/samekey"
)

// keyOf reads the request's key. present is false where there is none, and none
// is needed.
func (m *Middleware) keyOf(r *http.Request) (key samekey.Key, present bool, problem *Problem) {
	value, problem := keyValue(r.Header[m.o.Header])
	if problem != nil {
		if problem.Type == TypeKeyMissing && m.o.Optional {
			return m.unknownKey(r)
		}
		named := *problem
		named.Detail = strings.ReplaceAll(named.Detail, "%s", m.o.Header)
		return samekey.Key{}, false, &named
	}
	key, problem = m.scoped(r, value)
	return key, true, problem
}

// keyValue returns the key in the header's values: bare, or as a string of RFC
// 9651, which is the same value. Nothing is trimmed from it.
func keyValue(values []string) (string, *Problem) {
	switch {
	case len(values) == 0:
		return "", &problemMissing
	case len(values) > 1:
		return "", &problemTwice
	}
	value := values[0]
	if !strings.HasPrefix(value, `"`) {
		if strings.Contains(value, ",") { // a list, as proxies make of two headers
			return "", &problemTwice
		}
		return value, nil
	}
	item, err := httpsfv.UnmarshalItem(values)
	if err != nil {
		if list, err := httpsfv.UnmarshalList(values); err == nil && len(list) > 1 {
			return "", &problemTwice
		}
		return "", &problemQuoting
	}
	if text, ok := item.Value.(string); ok && len(item.Params.Names()) == 0 {
		return text, nil
	}
	return "", &problemQuoting
}

// scoped puts the value into the request's scope. Without a principal nothing is
// done: the fault is the service's, and so is the status.
func (m *Middleware) scoped(r *http.Request, value string) (samekey.Key, *Problem) {
	parts := m.o.Scope(r)
	if _, err := samekey.NewKey("any", parts...); err != nil || len(parts) < 2 {
		if err == nil {
			err = fmt.Errorf("it has %d part", len(parts))
		}
		m.log(r, samekey.Key{}, fmt.Errorf("httpkey: Options.Scope must name the principal and the operation, put authentication before the middleware: %w", err))
		return samekey.Key{}, &problemInternal
	}
	key, err := samekey.NewKey(value, parts...)
	if err != nil {
		return samekey.Key{}, problemKey(err)
	}
	return key, nil
}

// unknownKey is that of a request without one: nobody can repeat it.
func (m *Middleware) unknownKey(r *http.Request) (samekey.Key, bool, *Problem) {
	key, problem := m.scoped(r, samekey.Mint())
	return key, false, problem
}
