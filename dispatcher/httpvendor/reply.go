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
	"time"

	"github.com/samekey/samekey/internal/retryafter"
)

// reply is an answer as rules see it.
type reply struct {
	answer
	status int
	header http.Header
	json   any           // the decoded body, numbers as json.Number; nil if it is not JSON, or broken
	opaque bool          // there is a body, and it is not JSON
	text   []byte        // the body up to the cap, for rules about its text
	wait   time.Duration // that the answer asks for. The dispatcher cuts it
	waits  bool          // it asks for one
}

func (o *operation) newReply(resp *http.Response, a answer) reply {
	r := reply{answer: a, status: resp.StatusCode, header: resp.Header, text: a.body[:min(len(a.body), o.limit)]}
	if a.broken == nil {
		var err error
		r.json, err = decodeJSON(a.body)
		r.opaque = err != nil && len(a.body) > 0
	}
	var also []string
	if o.retryAfter != "" {
		if text, ok := textAt(r.json, o.retryAfter, nil); ok {
			also = append(also, text)
		}
	}
	r.wait, r.waits = retryafter.Read(resp.Header, time.Now(), also...)
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
