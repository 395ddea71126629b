package httpkey

import (
	"errors"
	"io"
	"net/http"

	"github.com/samekey/samekey"
)

// errConsumed: the body was read before, so nobody can tell what was asked for.
var errConsumed = errors.New("httpkey: something further out has read the request's body (ParseForm, a logger): put the middleware before it, or put the body back")

// bodyOf reads the whole body, which the handler and the fingerprint both need.
func (m *Middleware) bodyOf(w http.ResponseWriter, r *http.Request, key samekey.Key) ([]byte, *Problem) {
	if len(r.Trailer) > 0 {
		return nil, &problemTrailer
	}
	if len(r.PostForm) > 0 || r.MultipartForm != nil {
		m.log(r, key, errConsumed)
		return nil, &problemInternal
	}
	if r.ContentLength > m.o.MaxBody {
		return nil, problemTooLarge(m.o.MaxBody)
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, m.o.MaxBody))
	if _, tooLarge := errors.AsType[*http.MaxBytesError](err); tooLarge {
		return nil, problemTooLarge(m.o.MaxBody)
	}
	switch {
	case err != nil:
		return nil, &problemCut
	case len(body) == 0 && r.ContentLength > 0:
		m.log(r, key, errConsumed)
		return nil, &problemInternal
	case r.ContentLength > int64(len(body)):
		return nil, &problemCut
	}
	return body, nil
}

// payloadOf is the request that the key stands for.
func (m *Middleware) payloadOf(r *http.Request, body []byte) (any, error) {
	if m.o.Fingerprint != nil {
		return m.o.Fingerprint(r, body)
	}
	// Not its fingerprint, so that a later release can compare it under its own
	// version.
	return document(r, body)
}
