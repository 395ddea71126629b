package redact

import (
	"fmt"
	"net/url"
	"strings"
)

// WithoutURLs returns an error's text with "[URL]" in place of the URLs that net/http puts into it. Their query and
// user may be secrets. It covers every *url.Error that the error wraps, also those of a joined error.
func WithoutURLs(err error) string { return hideURLs(err.Error(), err) }

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
