package httpkey

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/textproto"
	"slices"
	"strings"

	"github.com/samekey/samekey"
	"github.com/samekey/samekey/internal/reply"
)

// storedAs stands in the headers of each answer that was stored here, and says in
// which form.
const (
	storedAs = "Samekey-Stored"
	whole    = "whole"
	notKept  = "not kept" // the body was too large
)

// stored is what is kept of an answer. It has been read back: what could not be
// sent again is an error now, and not with the first replay.
func (m *Middleware) stored(req *http.Request, h *held) (reply.Reply, error) {
	if encoding := h.answered.Get("Content-Encoding"); encoding != "" && !strings.EqualFold(encoding, "identity") {
		return reply.Reply{}, errEncoded
	}
	own := http.Header{storedAs: {whole}}
	if id := m.requestID(req); id != "" {
		own.Set(originalRequest, id)
	}
	r := reply.Reply{Code: h.status, Header: wire(own, h.answered, m.o.ReplayHeaders), Body: h.body.Bytes()}
	if h.size > int64(m.o.MaxAnswer) || len(r.Header) > reply.MaxHeader {
		r.Body = nil
		own.Set(storedAs, notKept)
		r.Header = wire(own, h.answered, []string{"Location"})
		if len(r.Header) > reply.MaxHeader {
			r.Header = wire(own, nil, nil)
		}
	}
	_, err := unwire(r.Header)
	return r, err
}

var errEncoded = errors.New("httpkey: the answer has a Content-Encoding, which the client of a replay may not accept: put what compresses further out than the middleware")

// originalRequest is the header of a replay with the id of the request that was
// done.
const originalRequest = "Original-Request"

const maxRequestID = 255

// requestID returns what Options.RequestID says, or "" where that cannot be a
// header's value.
func (m *Middleware) requestID(r *http.Request) string {
	if m.o.RequestID == nil {
		return ""
	}
	id := m.o.RequestID(r)
	if len(id) > maxRequestID || strings.ContainsFunc(id, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return ""
	}
	return id
}

// wire returns own and the named headers as HTTP/1.1 has them: any byte that may
// be in a header survives it.
func wire(own, header http.Header, names []string) []byte {
	some := own.Clone()
	for spelled, values := range header {
		if name := textproto.CanonicalMIMEHeaderKey(spelled); slices.Contains(names, name) && own[name] == nil {
			some[name] = append(some[name], values...)
		}
	}
	var b bytes.Buffer
	_ = some.Write(&b) // to memory
	return b.Bytes()
}

// sendStored sends what was stored in place of a handler's answer.
func (m *Middleware) sendStored(w http.ResponseWriter, r *http.Request, key samekey.Key, stored reply.Reply, replayed bool) {
	header, err := unwire(stored.Header)
	if err != nil {
		m.fail(w, r, key, problemInternal, err)
		return
	}
	form := header.Get(storedAs)
	delete(header, storedAs)
	vary := header["Vary"]
	delete(header, "Vary")
	maps.Copy(w.Header(), header)
	addVary(w.Header(), vary)
	if replayed {
		w.Header().Set("Idempotent-Replayed", "true")
	}
	status := cmp.Or(stored.Code, http.StatusOK) // none where processed.Run stored it, without HTTP
	switch {
	case status < 200 || status > 599 || stored.RolledBack && status < 400: // of processed.Fail, in a service without HTTP
		m.fail(w, r, key, problemInternal, fmt.Errorf("httpkey: the stored answer is a failure with code %d, which is not the status of an error", stored.Code))
		return
	case form == notKept:
		m.refuse(w, r, problemNotKept(status))
		return
	case form == "" && len(stored.Body) > 0: // of processed.Fail, or of processed.Run
		w.Header().Set("Content-Type", "application/json")
	case header["Content-Type"] == nil:
		w.Header()["Content-Type"] = nil // the first had none: net/http shall not guess
	}
	sendBody(w, status, stored.Body)
}

// addVary adds to what those further out have said of this answer already.
func addVary(header http.Header, stored []string) {
	said := map[string]bool{}
	for _, value := range header["Vary"] {
		for name := range strings.SplitSeq(value, ",") {
			said[strings.ToLower(strings.TrimSpace(name))] = true
		}
	}
	for _, value := range stored {
		for name := range strings.SplitSeq(value, ",") {
			if name = strings.TrimSpace(name); name != "" && !said[strings.ToLower(name)] {
				said[strings.ToLower(name)] = true
				header.Add("Vary", name)
			}
		}
	}
}

func unwire(header []byte) (http.Header, error) {
	lines := io.MultiReader(bytes.NewReader(header), strings.NewReader("\r\n"))
	parsed, err := textproto.NewReader(bufio.NewReader(lines)).ReadMIMEHeader()
	if err != nil {
		return nil, errors.New("httpkey: a header of the answer cannot be stored: it has a byte that no header may have")
	}
	return http.Header(parsed), nil
}
