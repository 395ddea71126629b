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
	errStreaming = fmt.Errorf("httpkey: a keyed answer cannot be streamed, because it is sent after the commit: %w", http.ErrNotSupported)
	errTrailers  = errors.New("httpkey: the handler set trailers, which a keyed answer cannot have")
	errSilent    = errors.New("httpkey: the handler returned without an answer: if an outer handler answers its errors, answer inside the middleware, and answer a success with w.WriteHeader")
	errUpgrade   = errors.New("httpkey: the handler answered 101, but a keyed route cannot switch protocols")
)

// held is an answer that is held back until its transaction is committed. It is the handler's http.ResponseWriter.
type held struct {
	header   http.Header
	status   int         // 0 before the first write
	answered http.Header // the header at the first write

	limit  int          // bytes of the body that may be in memory
	body   bytes.Buffer // the beginning of the body
	rest   *os.File     // the part over the limit; nil if there is none
	size   int64        // of both
	failed error        // of a write to rest
}

// hold begins an answer with the headers that outer handlers have set.
func hold(w http.ResponseWriter, limit int) *held {
	return &held{header: w.Header().Clone(), limit: limit}
}

func (h *held) Header() http.Header {
	if h.header == nil {
		h.header = http.Header{}
	}
	return h.header
}

// WriteHeader ignores superfluous calls, as net/http does, and informational answers, which have no place in a stored
// one.
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
		h.failed = fmt.Errorf("httpkey: write the part of the answer over %d bytes to a temporary file: %w", h.limit, err)
	}
	return n, h.failed
}

// spill writes to a temporary file, because neither a record nor memory should hold a large answer. The file has no
// name if the system allows that.
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

// close removes the file. It may be called again.
func (h *held) close() {
	if h.rest != nil {
		_ = h.rest.Close()
		_ = os.Remove(h.rest.Name()) // on systems that cannot remove an open file
	}
}

// FlushError refuses streaming through http.ResponseController.
func (h *held) FlushError() error { return errStreaming }

// Hijack refuses access to the connection.
func (h *held) Hijack() (net.Conn, *bufio.ReadWriter, error) { return nil, nil, errStreaming }

func (h *held) mayHaveBody() bool {
	return h.status != http.StatusNoContent && h.status != http.StatusNotModified
}

// finish completes the answer as net/http would, so that the first answer and every replay have the same headers. It
// returns an error if the handler gave no valid answer.
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
	for _, name := range []string{"Content-Length", "Transfer-Encoding", "Idempotent-Replayed", storedAs} { // they belong to this exchange, or are ours
		delete(h.answered, name)
	}
	_, typed := h.answered["Content-Type"]
	if h.body.Len() > 0 && !typed && h.answered.Get("Content-Encoding") == "" {
		h.answered.Set("Content-Type", http.DetectContentType(h.body.Bytes()))
	}
	return nil
}

// send sends the answer, in place of the headers that w had.
func (h *held) send(w http.ResponseWriter) {
	clear(w.Header())
	maps.Copy(w.Header(), h.answered)
	sendHead(w, h.status, h.size)
	_, _ = w.Write(h.body.Bytes()) // a client that disconnected asks again
	if h.rest == nil {
		return
	}
	if _, err := h.rest.Seek(0, io.SeekStart); err == nil {
		_, _ = io.Copy(w, h.rest) // the client notices a missing part by the length
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
	_, _ = w.Write(body) // a client that disconnected asks again
}
