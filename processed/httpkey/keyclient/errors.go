package keyclient

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"github.com/samekey/samekey/internal/keyheader"
	"github.com/samekey/samekey/internal/redact"
)

// ErrNotReplayable means that the request's body can be read only once, or that it has trailers, so it could not be
// sent again. Nothing was sent. Set Request.GetBody to a function that returns the same bytes each time, as
// http.NewRequest does for a bytes.Reader, bytes.Buffer and strings.Reader. If the body is too large for that, store it
// first, and send a reference to it.
var ErrNotReplayable = errors.New("keyclient: the body can be read only once: set Request.GetBody, as http.NewRequest does for a bytes.Reader, bytes.Buffer or strings.Reader")

// Error is every error of a POST or PATCH: there is no answer. If Attempts is above 0, the operation may have been
// done: call again with Key.
//
// Its text holds neither the key nor the query and user of the URL. The *url.Error that http.Client wraps around it
// does: log this error alone.
type Error struct {
	// Key is the value of the key's header as it was sent, or would have been sent. Empty if there was no valid one.
	Key string

	// Attempts counts the requests that were made. 0 means that nothing was sent, and that this call did not do the
	// operation. If a redirect is refused, the request before it was made, and was answered with the redirect.
	Attempts int

	// Err is the last cause: ErrNotReplayable, a *samekey.KeyError, the context's error, or Base's. Its own text may
	// hold what Error's does not.
	Err error

	text string // of Err, without secrets
}

func (e *Error) Error() string {
	if e.Attempts == 0 {
		return "keyclient: nothing was sent: " + e.text
	}
	return fmt.Sprintf("keyclient: gave up after attempt %d, and the operation may have been done: call again with the same key: %s", e.Attempts, e.text)
}

// GoString returns what Error does, so that %#v does not show the key.
func (e *Error) GoString() string { return e.Error() }

func (e *Error) Unwrap() error { return e.Err }

// Timeout reports whether the cause is a timeout.
func (e *Error) Timeout() bool {
	cause := (interface{ Timeout() bool })(nil)
	return errors.As(e.Err, &cause) && cause.Timeout()
}

func (c *call) failed(err error) *Error {
	return &Error{Key: c.key, Attempts: c.attempts, Err: err, text: c.shown(err)}
}

// shown returns the error's text without URLs, the key and the possibly secret parts of the request's URL.
func (c *call) shown(err error) string {
	return secrets(c.req, c.key).Text(strings.TrimPrefix(redact.WithoutURLs(err), "keyclient: "))
}

// shortestValue: a shorter value of the query occurs in too many texts.
const shortestValue = 6

// secrets returns what an error must not show.
func secrets(req *http.Request, key string) redact.Secrets {
	bare, _ := keyheader.Value([]string{key})
	hidden := redact.Secrets{}.With(key, bare)
	if req.URL == nil {
		return hidden
	}
	hidden = hidden.With(req.URL.RawQuery)
	if user := req.URL.User; user != nil {
		password, _ := user.Password()
		hidden = hidden.With(user.String(), user.Username(), url.User(user.Username()).String(), password, url.User(password).String())
	}
	hidden.Shortest = shortestValue
	for _, values := range req.URL.Query() {
		hidden = hidden.With(values...)
	}
	return hidden
}
