package keyclient

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/samekey/samekey/internal/keyheader"
)

// ErrNotReplayable means that the request could not be sent again: the request's body can be
// read only once, or it has trailers. Nothing was sent. Set
// Request.GetBody to a function that returns the same bytes each time, as
// http.NewRequest does for a bytes.Reader, bytes.Buffer and strings.Reader. What
// is too large to be kept goes to a store first, and a reference to it into the
// body.
var ErrNotReplayable = errors.New("keyclient: the body can be read only once: set Request.GetBody, as http.NewRequest does for a bytes.Reader, bytes.Buffer or strings.Reader")

// Error is every error of a POST or PATCH: there is no answer. Where Attempts is
// above 0, the operation may have been done: call again with Key.
//
// Its text holds neither the key nor the URL's query and user. That is not so
// of the *url.Error that http.Client puts around it: log this one alone.
type Error struct {
	// Key is the value of the key's header as it was sent, or would have been.
	// Empty where there was none that is valid.
	Key string

	// Attempts counts the requests that were made. 0: nothing was sent, and the
	// operation was not done by this call. (Where a redirect is refused, the
	// request before it was made, and was answered with the redirect.)
	Attempts int

	// Err is the last cause: ErrNotReplayable, an error that matches
	// samekey.ErrInvalidKey, the context's, Base's. Its own text may hold what
	// Error's does not.
	Err error

	text string // of Err, without what must not be shown
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

// Timeout reports whether the cause says that time was over.
func (e *Error) Timeout() bool {
	cause := (interface{ Timeout() bool })(nil)
	return errors.As(e.Err, &cause) && cause.Timeout()
}

func (c *call) failed(err error) *Error {
	return &Error{Key: c.key, Attempts: c.attempts, Err: err, text: c.shown(err)}
}

// shown returns the error's text without the URL of a *url.Error, and with
// "[redacted]" for the key and the parts of the request's URL that may be
// secret.
func (c *call) shown(err error) string {
	text := strings.TrimPrefix(err.Error(), "keyclient: ")
	for withURL := (*url.Error)(nil); errors.As(err, &withURL); err = withURL.Err {
		text = strings.ReplaceAll(text, withURL.Error(), withURL.Err.Error())
	}
	var pairs []string
	for _, secret := range secrets(c.req, c.key) {
		pairs = append(pairs, secret, "[redacted]")
	}
	return strings.NewReplacer(pairs...).Replace(text)
}

// shortestSecret: a part of the query that is shorter stands in too many texts.
const shortestSecret = 6

// secrets returns what must not be shown, the longest first.
func secrets(req *http.Request, key string) (texts []string) {
	add := func(text string, shortest int) {
		if len(text) >= shortest {
			texts = append(texts, text)
		}
	}
	value, _ := keyheader.Value([]string{key})
	add(key, 1)
	add(value, 1)
	if req.URL == nil {
		return texts
	}
	add(req.URL.RawQuery, 1)
	for _, values := range req.URL.Query() {
		for _, value := range values {
			add(value, shortestSecret)
			add(url.QueryEscape(value), shortestSecret)
		}
	}
	if user := req.URL.User; user != nil {
		password, _ := user.Password()
		for _, text := range []string{user.String(), user.Username(), url.User(user.Username()).String(), password, url.User(password).String()} {
			add(text, 1)
		}
	}
	slices.SortFunc(texts, func(a, b string) int { return len(b) - len(a) })
	return texts
}
