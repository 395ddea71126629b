package httpkey

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
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
	body     bytes.Buffer
	status   int         // 0: nothing was written yet
	answered http.Header // as it was then
}

// hold begins an answer with the headers that others have set already.
func hold(w http.ResponseWriter) *held { return &held{header: w.Header().Clone()} }

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
	return h.body.Write(p)
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
	sendBody(w, h.status, h.body.Bytes())
}

func sendBody(w http.ResponseWriter, status int, body []byte) {
	if status != http.StatusNoContent && status != http.StatusNotModified {
		w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	}
	w.WriteHeader(status)
	_, _ = w.Write(body) // a client that went asks again
}
