package httpvendor

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
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

var unescape = strings.NewReplacer("~1", "/", "~0", "~")

// has reports whether there is a value at the end of path that is one of values.
func has(at any, path []string, values []string) bool {
	if len(path) == 0 {
		text, ok := textOf(at)
		return at != nil && (len(values) == 0 || ok && slices.Contains(values, text))
	}
	name, rest := unescape.Replace(path[0]), path[1:]
	switch at := at.(type) {
	case map[string]any:
		if name != "*" {
			return has(at[name], rest, values)
		}
		for _, member := range at {
			if has(member, rest, values) {
				return true
			}
		}
	case []any:
		if name != "*" {
			i, err := strconv.Atoi(name)
			return err == nil && i >= 0 && i < len(at) && strconv.Itoa(i) == name && has(at[i], rest, values)
		}
		return slices.ContainsFunc(at, func(element any) bool { return has(element, rest, values) })
	}
	return false
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
