package httpkey

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/textproto"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/samekey/samekey"
	"github.com/samekey/samekey/processed"
)

const (
	defaultHeader  = "Idempotency-Key"
	defaultTimeout = 30 * time.Second
	defaultMaxBody = 1 << 20
	maxAnswer      = 1 << 20 // what a record holds
)

// Options say how a route, or a group of them, takes keys. Scope is required;
// the zero value of the rest is the default.
type Options struct {
	// Scope says whose key the request's is, as the parts for samekey.NewKey: the
	// tenant or principal first, as authenticated, then the operation. The same key
	// of another principal, or for another operation, is another key. It fails
	// closed: fewer than two parts, or an empty one, is a 500, and the handler is
	// not called. Routes share keys if they share a scope: then a key that was used
	// at one is a conflict at the other. The host is in nothing that is compared: who
	// serves several hosts that mean different things puts it here. Required.
	Scope func(r *http.Request) []string

	// Authorize is asked before a stored answer is sent again, for what the
	// principal may have lost since: false is a 403, and the record stays. It is
	// not asked before a first attempt, which the handler authorizes itself. The
	// request's Body has been read. Nil: who has the scope and the key gets the
	// answer.
	Authorize func(r *http.Request) bool

	// Fingerprint replaces the function [Fingerprint], for requests with parts that
	// change from attempt to attempt: return [Fingerprint] of the request with the
	// body as it would be without them. The request's Body is not to be read. An
	// error is a 400, and what it says is sent where it is a
	// *samekey.FingerprintError.
	Fingerprint func(r *http.Request, body []byte) (samekey.Fingerprint, error)

	// Header is the name of the key's header; "" for Idempotency-Key.
	Header string

	// Methods take a key; nil for POST and PATCH. PUT and DELETE may be added for
	// callers that send keys with them too (Optional, if not all of them do). GET,
	// HEAD, OPTIONS, TRACE and CONNECT cannot.
	Methods []string

	// Optional lets requests without a key through: each is done under a new key
	// that nobody knows, so a repetition is done again. Else they get a 400. A key
	// that is there and invalid is a 400 in either case.
	Optional bool

	// Wait is how long a request waits while the first one with its key is running,
	// before it gets the 409; zero for not at all. It looks again each 20 to 250
	// milliseconds, holds no connection meanwhile, and stops when its client goes.
	// Where the first one ends without an answer, it takes its place.
	Wait time.Duration

	// Retain is processed.Request's: how long an answer is kept at least; zero for
	// 72 hours. Tell it to callers.
	Retain time.Duration

	// Isolation is processed.Request's; zero for the database's default.
	Isolation pgx.TxIsoLevel

	// Timeout bounds the handler with its transaction, since a client that went
	// does not: at its end the handler's context ends, and the request is rolled
	// back and forgotten (503). Zero for 30 seconds. A connection of the pool is
	// held meanwhile.
	Timeout time.Duration

	// MaxBody bounds the request's body, which is read into memory before the
	// handler is called; zero for 1 MiB. A longer one is a 413.
	MaxBody int64

	// MaxAnswer bounds the answer's body, in bytes from 1 to 1 MiB; zero for 1 MiB.
	// A longer one is sent once and not kept: its work is committed, and a
	// repetition gets the answer's status and Location with the problem
	// answer-not-kept in place of the body, and is not done again. What is over the
	// limit waits for the commit in a temporary file (os.TempDir), not in memory;
	// where none can be written, the request is rolled back (500).
	MaxAnswer int

	// ReplayHeaders are sent again with a replay, beside those that the package
	// comment lists. Set-Cookie, challenges, CORS (Access-Control-*), and headers of
	// a connection or a moment (Date, Retry-After) are refused.
	ReplayHeaders []string

	// RequestID returns the id under which the service knows the request, such as
	// the one in its log. It is stored with the answer and sent with each replay as
	// Original-Request. An id that is longer than 255 bytes, or is not visible ASCII,
	// is left out. Nil: replays have no such header. Answers of processed.Fail have
	// none either.
	RequestID func(r *http.Request) string

	// ProblemTypes is the beginning of each Problem's Type, where the service has
	// pages of its own for them: "https://docs.example.com/errors#" for
	// "https://docs.example.com/errors#in-flight". "" for this project's
	// docs/callers.md.
	ProblemTypes string

	// Problem writes what the middleware itself answers, for services whose errors
	// have a form of their own; nil for application/problem+json. Retry-After is
	// set already.
	Problem func(w http.ResponseWriter, r *http.Request, p Problem)

	// Logger gets what becomes a 500 or a 503, with the key's hash; nil for
	// slog.Default().
	Logger *slog.Logger
}

// replayHeaders describe the body, or where it is about: without them the same
// bytes would be another answer.
var replayHeaders = []string{
	"Cache-Control", "Content-Disposition", "Content-Encoding", "Content-Language", "Content-Type", "Etag", "Last-Modified", "Link",
	"Location", "Vary",
}

// neverReplayed belong to one exchange or one session, and those that begin with
// neverReplayedPrefix to one origin.
const neverReplayedPrefix = "Access-Control-"

var neverReplayed = []string{
	"Authentication-Info", "Connection", "Content-Length", "Date", "Idempotent-Replayed", "Keep-Alive", "Proxy-Authenticate",
	"Proxy-Authentication-Info", "Proxy-Connection", "Retry-After", "Set-Cookie", "Set-Cookie2", "Te", "Trailer",
	"Transfer-Encoding", "Upgrade", "Www-Authenticate",
}

// keyless are the methods that change nothing, or have no answer of their own.
var keyless = []string{http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace, http.MethodConnect}

// withDefaults returns all that is wrong with o at once.
func (o Options) withDefaults() (Options, error) {
	var wrong []error
	refuse := func(format string, args ...any) {
		wrong = append(wrong, fmt.Errorf("httpkey: Options."+format, args...))
	}

	o.Header = cmp.Or(o.Header, defaultHeader)
	if o.Methods == nil {
		o.Methods = []string{http.MethodPost, http.MethodPatch}
	}
	o.Retain = cmp.Or(o.Retain, processed.DefaultRetain)
	o.Timeout = cmp.Or(o.Timeout, defaultTimeout)
	o.MaxBody = cmp.Or(o.MaxBody, defaultMaxBody)
	o.MaxAnswer = cmp.Or(o.MaxAnswer, maxAnswer)
	if o.Problem == nil {
		o.Problem = writeProblem
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	if o.Scope == nil {
		refuse("Scope is nil: return the principal and the operation")
	}
	if !isToken(o.Header) {
		refuse("Header %q is not a header's name", o.Header)
	}
	o.Header = textproto.CanonicalMIMEHeaderKey(o.Header)
	for _, method := range o.Methods {
		if !isToken(method) || slices.Contains(keyless, method) {
			refuse("Methods has %q: give methods that change something, in upper case, such as POST, PATCH, PUT, DELETE", method)
		}
	}
	if o.Wait < 0 {
		refuse("Wait is %s: give a positive one, or zero to answer 409 at once", o.Wait)
	}
	for _, part := range []processed.Request{{Retain: o.Retain}, {Isolation: o.Isolation}} {
		part.Key, part.Payload = samekey.Key{Scope: "any", Value: "any"}, []byte("{}")
		if err := part.Validate(); err != nil {
			wrong = append(wrong, fmt.Errorf("httpkey: Options: %w", err))
		}
	}
	if o.Timeout < 0 {
		refuse("Timeout is %s: give a positive one, or zero for %s", o.Timeout, defaultTimeout)
	}
	if o.MaxBody < 0 {
		refuse("MaxBody is %d: give a positive number of bytes, or zero for %d", o.MaxBody, defaultMaxBody)
	}
	if o.MaxAnswer < 0 || o.MaxAnswer > maxAnswer {
		refuse("MaxAnswer is %d: give 1 to %d bytes, or zero for %[2]d", o.MaxAnswer, maxAnswer)
	}
	kept := slices.Clone(replayHeaders)
	for _, name := range o.ReplayHeaders {
		canonical := textproto.CanonicalMIMEHeaderKey(name)
		switch {
		case !isToken(name):
			refuse("ReplayHeaders has %q, which is not a header's name", name)
		case slices.Contains(neverReplayed, canonical) || strings.HasPrefix(canonical, neverReplayedPrefix):
			refuse("ReplayHeaders has %s, which is never sent again: it belongs to one exchange", canonical)
		default:
			kept = append(kept, canonical)
		}
	}
	o.ReplayHeaders = kept
	return o, errors.Join(wrong...)
}

// isToken reports whether name can be a header's name (RFC 9110, section 5.6.2).
func isToken(name string) bool {
	return name != "" && !strings.ContainsFunc(name, func(r rune) bool {
		return r <= ' ' || r > '~' || strings.ContainsRune(`"(),/:;<=>?@[\]{}`, r)
	})
}
