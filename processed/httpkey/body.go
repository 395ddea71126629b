package httpkey

import (
	"errors"
	"io"
	"net/http"
	"os"

	"github.com/samekey/samekey"
)

// errConsumed: the body was read before, so nobody can tell what was asked for.
var errConsumed = errors.New("httpkey: something further out has read the request's body (ParseForm, a logger): put the middleware before it, or put the body back")

var errEmpty = errors.New("httpkey: the request's body is empty and has no length: if the client did send one, something further out has read it: put the middleware before it, or put the body back")

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
	if tooLarge, ok := errors.AsType[*http.MaxBytesError](err); ok { // ours, or one further out
		return nil, problemTooLarge(tooLarge.Limit)
	}
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, io.ErrUnexpectedEOF):
		return nil, &problemCut
	case err != nil:
		return nil, &problemFraming
	case len(r.Trailer) > 0: // not announced
		return nil, &problemTrailer
	case len(body) == 0 && r.ContentLength > 0:
		m.log(r, key, errConsumed)
		return nil, &problemInternal
	case len(body) == 0 && r.ContentLength < 0 && isDocument(r):
		// Chunked and empty: it was sent so, or something further out has read it.
		// Nothing tells the two apart, and the second must not pass for the first: all
		// such requests would look alike.
		m.log(r, key, errEmpty)
		return nil, &problemEmpty
	}
	return body, nil
}

// isDocument reports whether the media type has no empty body.
func isDocument(r *http.Request) bool {
	mediaType, _ := mediaTypeOf(r.Header.Get("Content-Type"))
	return isJSON(mediaType) || mediaType == "application/x-www-form-urlencoded" || mediaType == "multipart/form-data"
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
