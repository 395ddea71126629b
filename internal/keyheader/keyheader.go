// Package keyheader reads the HTTP header that carries an idempotency key: bare, as at Stripe, or as a string of RFC
// 9651 in double quotes, as in the IETF's draft. Both are the same value.
package keyheader

import (
	"errors"
	"strings"

	"github.com/dunglas/httpsfv"
)

// What is wrong with a header. The errors hold nothing of it.
var (
	ErrMissing = errors.New("there is no key")
	ErrSeveral = errors.New("there is more than one key")
	errQuoting = errors.New("the key starts with a quote and is not one quoted string without parameters")
)

// Value returns the key in all the header's values. It trims nothing, and does not apply samekey's rules for keys. A
// comma outside quotes makes a list, because a proxy joins two headers that way.
func Value(values []string) (string, error) {
	switch {
	case len(values) == 0:
		return "", ErrMissing
	case len(values) > 1:
		return "", ErrSeveral
	case !strings.HasPrefix(values[0], `"`):
		if strings.Contains(values[0], ",") {
			return "", ErrSeveral
		}
		return values[0], nil
	}
	item, err := httpsfv.UnmarshalItem(values)
	if err != nil {
		if list, err := httpsfv.UnmarshalList(values); err == nil && len(list) > 1 {
			return "", ErrSeveral
		}
		return "", errQuoting
	}
	text, ok := item.Value.(string)
	if !ok || len(item.Params.Names()) > 0 {
		return "", errQuoting
	}
	return text, nil
}

// Quoted returns the value as a string of RFC 9651.
func Quoted(value string) (string, error) {
	return httpsfv.Marshal(httpsfv.NewItem(value))
}
