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
	"strings"

	"github.com/samekey/samekey"
	"github.com/samekey/samekey/internal/reply"
)

// notKept stands in the headers of a stored answer whose body was too large.
const notKept = "Samekey-Answer-Not-Kept"

// stored is what is kept of an answer.
func (m *Middleware) stored(h *held) reply.Reply {
	r := reply.Reply{Code: h.status, Header: wire(h.answered, m.o.ReplayHeaders), Body: h.body.Bytes()}
	if len(r.Body) > m.o.MaxAnswer || len(r.Header) > reply.MaxHeader {
		r.Body = nil
		r.Header = wire(http.Header{"Location": h.answered["Location"], notKept: {"true"}}, []string{"Location", notKept})
		if len(r.Header) > reply.MaxHeader {
			r.Header = wire(http.Header{notKept: {"true"}}, []string{notKept})
		}
	}
	return r
}

// wire returns the named headers as HTTP/1.1 has them: any byte that may be in a
// header survives it.
func wire(header http.Header, names []string) []byte {
	some := http.Header{}
	for _, name := range names {
		if values, ok := header[name]; ok {
			some[name] = values
		}
	}
	var b bytes.Buffer
	_ = some.Write(&b) // to memory
	return b.Bytes()
}

// sendStored sends what was stored in place of a handler's answer.
func (m *Middleware) sendStored(w http.ResponseWriter, r *http.Request, stored reply.Reply) {
	header, err := unwire(stored.Header)
	if err != nil {
		m.fail(w, r, samekey.Key{}, problemInternal, err)
		return
	}
	status := cmp.Or(stored.Code, http.StatusOK) // none where processed.Run stored it, without HTTP
	_, tooLarge := header[notKept]
	delete(header, notKept)
	maps.Copy(w.Header(), header)
	switch {
	case tooLarge:
		m.refuse(w, r, problemNotKept(status))
		return
	case len(header) == 0 && len(stored.Body) > 0: // of processed.Fail, or of processed.Run
		w.Header().Set("Content-Type", "application/json")
	}
	sendBody(w, status, stored.Body)
}

func unwire(header []byte) (http.Header, error) {
	lines := io.MultiReader(bytes.NewReader(header), strings.NewReader("\r\n"))
	parsed, err := textproto.NewReader(bufio.NewReader(lines)).ReadMIMEHeader()
	if err != nil {
		return nil, errors.New("httpkey: the stored headers cannot be read")
	}
	return http.Header(parsed), nil
}
