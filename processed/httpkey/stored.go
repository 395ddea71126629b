package httpkey

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
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
func (m *Middleware) stored(h *held) (reply.Reply, error) {
	r := reply.Reply{Code: h.status, Header: wire(h.answered, m.o.ReplayHeaders, whole), Body: h.body.Bytes()}
	if len(r.Body) > m.o.MaxAnswer || len(r.Header) > reply.MaxHeader {
		r.Body = nil
		r.Header = wire(h.answered, []string{"Location"}, notKept)
		if len(r.Header) > reply.MaxHeader {
			r.Header = wire(nil, nil, notKept)
		}
	}
	_, err := unwire(r.Header)
	return r, err
}

// wire returns the named headers as HTTP/1.1 has them: any byte that may be in a
// header survives it.
func wire(header http.Header, names []string, form string) []byte {
	some := http.Header{storedAs: {form}}
	for spelled, values := range header {
		if name := textproto.CanonicalMIMEHeaderKey(spelled); slices.Contains(names, name) {
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
	maps.Copy(w.Header(), header)
	if replayed {
		w.Header().Set("Idempotent-Replayed", "true")
	}
	status := cmp.Or(stored.Code, http.StatusOK) // none where processed.Run stored it, without HTTP
	switch {
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

func unwire(header []byte) (http.Header, error) {
	lines := io.MultiReader(bytes.NewReader(header), strings.NewReader("\r\n"))
	parsed, err := textproto.NewReader(bufio.NewReader(lines)).ReadMIMEHeader()
	if err != nil {
		return nil, errors.New("httpkey: a header of the answer cannot be stored: it has a byte that no header may have")
	}
	return http.Header(parsed), nil
}
