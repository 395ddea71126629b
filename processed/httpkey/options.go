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
	"github.com/samekey/samekey/internal/names"
	"github.com/samekey/samekey/processed"
)

const (
	defaultHeader  = "Idempotency-Key"
	defaultTimeout = 30 * time.Second
	defaultMaxBody = 1 << 20
	maxAnswer      = 1 << 20 // the limit of a record
)

// Options configure how a route, or a group of routes, takes keys. Scope is required; the zero value of every other
// field is the default.
type Options struct {
	// Scope returns the owner of the request's key, as the parts for samekey.NewKey: first the authenticated tenant or
	// principal, last the operation. The same key of another principal, or for another operation, is another key. Fewer
	// than two parts, or an empty part, is a 500, and the handler is not called. Routes with the same scope share keys:
	// a key that was used at one is a conflict at the other. The host is not compared; if hosts differ in meaning,
	// put the host into the scope. Required.
	Scope func(r *http.Request) []string

	// Authorize is asked before a stored answer is sent again, because the principal may have lost a right since. False
	// is a 403, and the record stays. It is not asked before a first attempt, which the handler authorizes itself. The
	// request's Body is already read. Nil: the scope and the key are enough to get the answer.
	Authorize func(r *http.Request) bool

	// Fingerprint replaces the function [Fingerprint], for requests with parts that change from attempt to attempt:
	// return [Fingerprint] of the request and of the body without those parts. Do not read the request's Body. An error
	// is a 400; the text of a *samekey.FingerprintError is sent to the client.
	Fingerprint func(r *http.Request, body []byte) (samekey.Fingerprint, error)

	// Header is the name of the key's header; "" for Idempotency-Key.
	Header string

	// Methods take a key; nil for POST and PATCH. Add PUT and DELETE if callers send keys with them too (with Optional,
	// if not all of them do). GET, HEAD, OPTIONS, TRACE and CONNECT are refused.
	Methods []string

	// Optional lets requests without a key through. Each runs under a new, unknown key, so a repetition is
	// done again. Otherwise they get a 400. An invalid key is a 400 in both cases.
	Optional bool

	// Wait is how long a request waits while the first one with its key is running, before it gets the 409; 0 for no
	// wait. It looks again every 20 to 250 ms, holds no connection meanwhile, and stops when its client disconnects. If
	// the first request ends without an answer, the waiting one takes its place.
	Wait time.Duration

	// Retain is how long an answer is kept at least (processed.Request.Retain); 0 for 72 hours. Document it for
	// callers.
	Retain time.Duration

	// Isolation is the isolation level of the transaction (processed.Request.Isolation); zero for the database's
	// default.
	Isolation pgx.TxIsoLevel

	// Steps lets handlers do their work in several transactions, as an operation of processed.Steps: they call
	// [Operation] and not [Tx]. An answer that is stored completes the operation. What its finished steps did stays
	// whatever the status, and so does the operation after an answer that is forgotten, a panic or an [Abort]: the next
	// request with the key resumes it. If no step was stored or may have been sent, nothing is left. No connection is
	// held between steps. Set Timeout to the longest operation.
	Steps bool

	// Timeout bounds the handler and its transaction, because a client that disconnects does not. When it ends, the
	// handler's context ends, and the request is rolled back and forgotten (503). 0 for 30 s. A connection of the pool
	// is held meanwhile.
	Timeout time.Duration

	// MaxBody bounds the request's body in bytes, which is read into memory before the handler is called; 0 for 1 MiB.
	// A longer body is a 413.
	MaxBody int64

	// MaxAnswer bounds the stored answer's body in bytes, 1 to 1 MiB; 0 for 1 MiB. A longer answer is sent once and not
	// stored: its work is committed, and a repetition gets the answer's status and Location with the problem
	// answer-not-kept in place of the body. Until the commit, the part over the limit is in a temporary file
	// (os.TempDir), not in memory. If the file cannot be written, the request is rolled back (500).
	MaxAnswer int

	// ReplayHeaders are sent again with a replay, in addition to those listed in the package comment. Set-Cookie,
	// challenges, CORS headers (Access-Control-*), and headers of a connection or a moment (Date, Retry-After) are
	// refused.
	ReplayHeaders []string

	// Render changes an answer on its way to the client, for an answer that shows how an effect went: "paid", or 202 while
	// it is pending. It is called after the commit, for the first answer and for each replay with a status of 200 to 399.
	// What is stored does not change. Render may wait for the effect (outbox.Await), for as long as clients should wait: no
	// transaction and no connection is held. The request's context ends when the client disconnects; the Body is already
	// read.
	//
	// The same key then gets different answers over time. Tell callers: docs/callers.md has a paragraph for them. Change
	// the headers that describe the body (ETag, Last-Modified) together with it.
	//
	// Render is not called for stored failures, the middleware's own answers, and an answer over MaxAnswer. If it panics,
	// the client gets a 500; the request was executed, and a repetition is a replay. Nil: answers are sent as stored.
	Render func(r *http.Request, a *Answer)

	// RequestID returns the id under which the service knows the request, such as the one in its log. It is stored with
	// the answer and sent with each replay as Original-Request. An id that is longer than 255 bytes, or not visible
	// ASCII, is left out. Nil: replays have no such header. Answers of processed.Fail have none either.
	RequestID func(r *http.Request) string

	// ProblemTypes is the beginning of each Problem's Type, for a service with its own pages:
	// "https://docs.example.com/errors#" gives "https://docs.example.com/errors#in-flight". "" for this project's
	// docs/callers.md.
	ProblemTypes string

	// Problem writes the middleware's own answers, for a service whose errors have their own form; nil for
	// application/problem+json. Retry-After is already set.
	Problem func(w http.ResponseWriter, r *http.Request, p Problem)

	// Logger gets the reason of each 500 and 503, with the key's hash; nil for slog.Default().
	Logger *slog.Logger
}

// replayHeaders describe the body, or where it is. Without them the same bytes would be another answer.
var replayHeaders = []string{
	"Cache-Control", "Content-Disposition", "Content-Encoding", "Content-Language", "Content-Type", "Etag", "Last-Modified", "Link",
	"Location", "Vary",
}

// neverReplayed headers belong to one exchange or one session. Headers with neverReplayedPrefix belong to one origin.
const neverReplayedPrefix = "Access-Control-"

var neverReplayed = []string{
	"Authentication-Info", "Connection", "Content-Length", "Date", "Idempotent-Replayed", "Keep-Alive", "Proxy-Authenticate",
	"Proxy-Authentication-Info", "Proxy-Connection", "Retry-After", "Set-Cookie", "Set-Cookie2", "Te", "Trailer",
	"Transfer-Encoding", "Upgrade", "Www-Authenticate",
}

// keyless methods change nothing, or have no answer of their own.
var keyless = []string{http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace, http.MethodConnect}

// withDefaults returns everything that is wrong with o at once.
func (o Options) withDefaults() (Options, error) {
	var wrong []error
	refuse := func(format string, args ...any) {
		wrong = append(wrong, fmt.Errorf("httpkey: Options."+format, args...))
	}

	o.Header = cmp.Or(o.Header, defaultHeader)
	if o.Methods == nil {
		o.Methods = []string{http.MethodPost, http.MethodPatch}
	}
	o.Timeout = cmp.Or(o.Timeout, defaultTimeout)
	o.MaxBody = cmp.Or(o.MaxBody, defaultMaxBody)
	o.MaxAnswer = cmp.Or(o.MaxAnswer, maxAnswer)
	o.ProblemTypes = cmp.Or(o.ProblemTypes, defaultTypes)
	if o.Problem == nil {
		o.Problem = writeProblem
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	if o.Scope == nil {
		refuse("Scope is nil: give a function that returns the principal and the operation")
	}
	if !names.IsToken(o.Header) {
		refuse("Header %q is not a valid header name", o.Header)
	}
	o.Header = textproto.CanonicalMIMEHeaderKey(o.Header)
	for _, method := range o.Methods {
		if !names.IsToken(method) || slices.Contains(keyless, method) {
			refuse("Methods has %q: give methods that change something, in upper case, such as POST, PATCH, PUT, DELETE", method)
		}
	}
	if o.Wait < 0 {
		refuse("Wait is %s: give a positive duration, or 0 to answer 409 at once", o.Wait)
	}
	for _, part := range []processed.Request{{Retain: o.Retain}, {Isolation: o.Isolation}} {
		part.Key, part.Payload = samekey.Key{Scope: "any", Value: "any"}, []byte("{}")
		if err := part.Validate(); err != nil {
			wrong = append(wrong, fmt.Errorf("httpkey: Options: %w", err))
		}
	}
	if o.Timeout < 0 {
		refuse("Timeout is %s: give a positive duration, or 0 for %s", o.Timeout, defaultTimeout)
	}
	if o.MaxBody < 0 {
		refuse("MaxBody is %d: give a positive number of bytes, or 0 for %d", o.MaxBody, defaultMaxBody)
	}
	if o.MaxAnswer < 0 || o.MaxAnswer > maxAnswer {
		refuse("MaxAnswer is %d: give 1 to %d bytes, or 0 for %[2]d", o.MaxAnswer, maxAnswer)
	}
	kept := slices.Clone(replayHeaders)
	for _, name := range o.ReplayHeaders {
		canonical := textproto.CanonicalMIMEHeaderKey(name)
		switch {
		case !names.IsToken(name):
			refuse("ReplayHeaders has %q, which is not a valid header name", name)
		case slices.Contains(neverReplayed, canonical) || strings.HasPrefix(canonical, neverReplayedPrefix):
			refuse("ReplayHeaders has %s, which is never sent again, because it belongs to one exchange", canonical)
		default:
			kept = append(kept, canonical)
		}
	}
	o.ReplayHeaders = kept
	return o, errors.Join(wrong...)
}
