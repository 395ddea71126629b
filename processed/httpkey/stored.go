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

// storedAs is a header of each answer that httpkey stored. It names the form.
const (
	storedAs = "Samekey-Stored"
	whole    = "whole"
	notKept  = "not kept" // without the body, which was too large
)

// stored returns the form of the answer that is kept. It reads that form back: an answer that cannot be sent again is
// an error now, and not at the first replay.
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

var errEncoded = errors.New("httpkey: the answer has a Content-Encoding, which the client of a replay may not accept: put compression outside this middleware")

// originalRequest is the header of a replay that holds the id of the first request.
const originalRequest = "Original-Request"

const maxRequestID = 255

// requestID returns the result of Options.RequestID, or "" if it cannot be the value of a header.
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

// wire returns own and the named headers in the form of HTTP/1.1, which preserves every byte that a header may have.
func wire(own, header http.Header, names []string) []byte {
	some := own.Clone()
	for spelled, values := range header {
		if name := textproto.CanonicalMIMEHeaderKey(spelled); slices.Contains(names, name) && own[name] == nil {
			some[name] = append(some[name], values...)
		}
	}
	var b bytes.Buffer
	_ = some.Write(&b) // to memory: it cannot fail
	return b.Bytes()
}

// sendStored sends a stored answer in place of the handler's.
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
	status := cmp.Or(stored.Code, http.StatusOK) // processed.Run without HTTP stores no code
	switch {
	case status < 200 || status > 599 || stored.RolledBack && status < 400: // stored by processed.Fail without HTTP
		m.fail(w, r, key, problemInternal, fmt.Errorf("httpkey: the stored answer is a failure with code %d, which is not an error status", stored.Code))
		return
	case form == notKept:
		m.refuse(w, r, problemNotKept(status))
		return
	case form == "" && len(stored.Body) > 0: // stored by processed.Fail or processed.Run
		w.Header().Set("Content-Type", "application/json")
	case header["Content-Type"] == nil:
		w.Header()["Content-Type"] = nil // the first answer had none: keep net/http from guessing
	}
	m.send(w, r, Answer{Key: key, Replayed: replayed, Status: status, Header: w.Header(), Body: stored.Body})
}

// addVary adds names to those that outer handlers have set for this answer.
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
		return nil, errors.New("httpkey: a header of the answer cannot be stored: it has an invalid byte")
	}
	return http.Header(parsed), nil
}
