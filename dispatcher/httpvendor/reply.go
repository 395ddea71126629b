package httpvendor

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
)

// reply is an answer as rules see it.
type reply struct {
	status int
	header http.Header
	body   any  // decoded JSON, numbers as json.Number; nil if it is not JSON
	broken bool // the body broke off, or is longer than what was read of it: what it lacks is not known
	opaque bool // there is a body, and it is not JSON
}

func newReply(resp *http.Response, body []byte, broken bool) reply {
	r := reply{status: resp.StatusCode, header: resp.Header, broken: broken}
	if !broken {
		var err error
		r.body, err = decodeJSON(body)
		r.opaque = err != nil && len(body) > 0
	}
	return r
}

// byteOrderMark begins the text of some servers.
var byteOrderMark = []byte("\xef\xbb\xbf")

// decodeJSON reads one JSON value, and keeps the digits of numbers.
func decodeJSON(text []byte) (value any, err error) {
	decoder := json.NewDecoder(bytes.NewReader(bytes.TrimPrefix(text, byteOrderMark)))
	decoder.UseNumber()
	if err := decoder.Decode(&value); err != nil {
		return nil, errors.New("is not JSON")
	}
	if _, err := decoder.Token(); err != io.EOF {
		return nil, errors.New("has data after its JSON")
	}
	return value, nil
}

// The escapes of a part of a JSON Pointer.
var (
	unescape = strings.NewReplacer("~1", "/", "~0", "~")
	escape   = strings.NewReplacer("~", "~0", "/", "~1")
)

// find looks for the first value at the end of path for which is returns true, and returns its path without *. Members
// of an object are tried in the order of their names.
func find(at any, path []string, is func(any) bool) (where []string, ok bool) {
	if len(path) == 0 {
		return nil, at != nil && is(at)
	}
	for _, name := range children(at, path[0]) {
		if where, ok := find(valueAt(at, name), path[1:], is); ok {
			return append([]string{name}, where...), true
		}
	}
	return nil, false
}

// children are the names that a part of a pointer stands for, escaped as in a pointer.
func children(at any, name string) (names []string) {
	if name != "*" {
		return []string{name}
	}
	switch at := at.(type) {
	case map[string]any:
		for _, member := range slices.Sorted(maps.Keys(at)) {
			names = append(names, escape.Replace(member))
		}
	case []any:
		for i := range at {
			names = append(names, strconv.Itoa(i))
		}
	}
	return names
}

// valueAt is a member of an object or an element of an array, or nil.
func valueAt(at any, name string) any {
	switch at := at.(type) {
	case map[string]any:
		return at[unescape.Replace(name)]
	case []any:
		i, err := strconv.Atoi(name)
		if err == nil && i >= 0 && i < len(at) && strconv.Itoa(i) == name {
			return at[i]
		}
	}
	return nil
}

// textOf is a scalar's text.
func textOf(value any) (string, bool) {
	switch v := value.(type) {
	case string:
		return v, true
	case json.Number:
		return v.String(), true
	case bool:
		return strconv.FormatBool(v), true
	}
	return "", false
}
