package httpkey

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
)

var (
	errStreaming = fmt.Errorf("httpkey: a keyed answer cannot be streamed, it is sent after the commit: %w", http.ErrNotSupported)
	errTrailers  = errors.New("httpkey: the handler set trailers, which a keyed answer cannot have")
	errSilent    = errors.New("httpkey: the handler returned without an answer, as one does whose error is answered further out: answer inside the middleware, a success with w.WriteHeader")
	errUpgrade   = errors.New("httpkey: the handler answered 101, and a keyed route switches no protocols")
)

// held is an answer that is held back until its transaction has been committed.
// It is the handler's http.ResponseWriter.
type held struct {
	header   http.Header
	status   int         // 0: nothing was written yet
	answered http.Header // as it was then

	limit  int          // how much of the body may be in memory
	body   bytes.Buffer // its beginning
	rest   *os.File     // what is over the limit; nil where nothing is
	size   int64        // of both
	failed error        // to write the rest
}

// hold begins an answer with the headers that others have set already.
func hold(w http.ResponseWriter, limit int) *held {
	return &held{header: w.Header().Clone(), limit: limit}
}

func (h *held) Header() http.Header {
	if h.header == nil {
		h.header = http.Header{}
	}
	return h.header
}

// WriteHeader ignores what is superfluous, as net/http does, and informational
// answers, which have no place in a stored one.
func (h *held) WriteHeader(status int) {
	if status < 100 || status > 999 {
		panic(fmt.Sprintf("httpkey: invalid WriteHeader code %d", status))
	}
	if h.status != 0 || status < 200 && status != http.StatusSwitchingProtocols {
		return
	}
	h.status, h.answered = status, h.Header().Clone()
}

func (h *held) Write(p []byte) (int, error) {
	h.WriteHeader(http.StatusOK)
	if !h.mayHaveBody() {
		return 0, http.ErrBodyNotAllowed
	}
	if h.rest == nil && h.body.Len()+len(p) <= h.limit {
		h.size += int64(len(p))
		return h.body.Write(p)
	}
	n, err := h.spill(p)
	h.size += int64(n)
	if err != nil && h.failed == nil {
		h.failed = fmt.Errorf("httpkey: an answer of more than %d bytes waits for the commit in a temporary file: %w", h.limit, err)
	}
	return n, h.failed
}

// spill writes to a file, since a record cannot hold the answer and memory should
// not. The file has no name where the system allows that.
func (h *held) spill(p []byte) (n int, err error) {
	if h.failed != nil {
		return 0, h.failed
	}
	if h.rest == nil {
		if h.rest, err = os.CreateTemp("", "samekey-answer-*"); err != nil {
			return 0, err
		}
		_ = os.Remove(h.rest.Name())
	}
	return h.rest.Write(p)
}

// close gives the file back. It may be called again.
func (h *held) close() {
	if h.rest != nil {
		_ = h.rest.Close()
		_ = os.Remove(h.rest.Name()) // where that could not be done while it was open
	}
}

// FlushError is how http.ResponseController asks for streaming.
func (h *held) FlushError() error { return errStreaming }

// Hijack refuses the connection to those who look for it.
func (h *held) Hijack() (net.Conn, *bufio.ReadWriter, error) { return nil, nil, errStreaming }

func (h *held) mayHaveBody() bool {
	return h.status != http.StatusNoContent && h.status != http.StatusNotModified
}

// finish completes the answer as net/http would, so that the first one and every
// replay have the same headers, or says why it is none.
func (h *held) finish() error {
	switch {
	case h.status == 0:
		return errSilent
	case h.status == http.StatusSwitchingProtocols:
		return errUpgrade
	case len(h.header["Trailer"]) > 0:
		return errTrailers
	case h.failed != nil:
		return h.failed
	}
	for name := range h.header { // trailers are set after the body
		if strings.HasPrefix(name, http.TrailerPrefix) {
			return errTrailers
		}
	}
	for _, name := range []string{"Content-Length", "Transfer-Encoding", "Idempotent-Replayed", storedAs} { // of this exchange, and ours
		delete(h.answered, name)
	}
	_, typed := h.answered["Content-Type"]
	if h.body.Len() > 0 && !typed && h.answered.Get("Content-Encoding") == "" {
		h.answered.Set("Content-Type", http.DetectContentType(h.body.Bytes()))
	}
	return nil
}

// send sends the answer in place of what w had.
func (h *held) send(w http.ResponseWriter) {
	clear(w.Header())
	maps.Copy(w.Header(), h.answered)
	sendHead(w, h.status, h.size)
	_, _ = w.Write(h.body.Bytes()) // a client that went asks again
	if h.rest == nil {
		return
	}
	if _, err := h.rest.Seek(0, io.SeekStart); err == nil {
		_, _ = io.Copy(w, h.rest) // where it breaks off, the client sees that from the length
	}
}

func sendHead(w http.ResponseWriter, status int, size int64) {
	if status != http.StatusNoContent && status != http.StatusNotModified {
		w.Header().Set("Content-Length", strconv.FormatInt(size, 10))
	}
	w.WriteHeader(status)
}

func sendBody(w http.ResponseWriter, status int, body []byte) {
	sendHead(w, status, int64(len(body)))
	_, _ = w.Write(body) // a client that went asks again
}
