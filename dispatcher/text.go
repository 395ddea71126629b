package dispatcher

import (
	"fmt"
	"net/url"
	"strings"
	"unicode/utf8"
)

// clean makes any text fit for a text column: Postgres refuses NUL and broken UTF-8 (one such byte in an error's text
// would otherwise cost the whole batch that it is settled in), and the columns have limits. It cuts between runes.
func clean(text string, limit int) string {
	text = strings.ToValidUTF8(strings.ReplaceAll(text, "\x00", "\uFFFD"), "\uFFFD")
	if len(text) <= limit {
		return text
	}
	for limit > 0 && !utf8.RuneStart(text[limit]) {
		limit--
	}
	return text[:limit]
}

const (
	codeLimit  = 128
	errorLimit = 4096
	typeLimit  = 255

	referenceLimit = 255
)

// withoutURL is an error's text without the URLs that net/http puts into it: query and user may be secrets.
func withoutURL(err error) string { return hideURLs(err.Error(), err) }

// hideURLs replaces the URLs of an error, and of all errors that it wraps, in a text.
func hideURLs(text string, err error) string {
	if request, ok := err.(*url.Error); ok && request.URL != "" { //nolint:errorlint // the walk unwraps
		text = strings.ReplaceAll(strings.ReplaceAll(text, fmt.Sprintf("%q", request.URL), "[URL]"), request.URL, "[URL]")
	}
	switch err := err.(type) { //nolint:errorlint // it unwraps one level
	case interface{ Unwrap() error }:
		return hideURLs(text, err.Unwrap())
	case interface{ Unwrap() []error }:
		for _, wrapped := range err.Unwrap() {
			text = hideURLs(text, wrapped)
		}
	}
	return text
}
