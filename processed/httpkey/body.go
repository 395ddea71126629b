package httpkey

import (
	"errors"
	"io"
	"net/http"
	"os"

	"github.com/samekey/samekey"
)

// The body was read before, so the request is unknown.
var errConsumed = errors.New("httpkey: an outer handler has read the request's body (ParseForm, a logger): put this middleware outside it, or restore the body")

var errEmpty = errors.New("httpkey: the request's body is empty and has no length: if the client sent one, an outer handler has read it: put this middleware outside it, or restore the body")

// bodyOf reads the whole body, which both the handler and the fingerprint need.
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
	if tooLarge, ok := errors.AsType[*http.MaxBytesError](err); ok { // our limit, or an outer one
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
		// Chunked and empty: the client sent it so, or an outer handler has read it. These look the same, and the
		// second must not pass as the first: all such requests would be equal.
		m.log(r, key, errEmpty)
		return nil, &problemEmpty
	}
	return body, nil
}

// isDocument reports whether a body of this media type cannot be empty.
func isDocument(r *http.Request) bool {
	mediaType, _ := mediaTypeOf(r.Header.Get("Content-Type"))
	return isJSON(mediaType) || mediaType == "application/x-www-form-urlencoded" || mediaType == "multipart/form-data"
}

// payloadOf returns the request that the key stands for.
func (m *Middleware) payloadOf(r *http.Request, body []byte) (any, error) {
	if m.o.Fingerprint != nil {
		return m.o.Fingerprint(r, body)
	}
	// The document and not its fingerprint, so that a later release can compare it under the stored version.
	return document(r, body)
}
