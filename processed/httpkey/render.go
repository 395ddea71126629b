package httpkey

import (
	"fmt"
	"maps"
	"net/http"

	"github.com/samekey/samekey"
	"github.com/samekey/samekey/internal/reply"
)

// Answer is a stored answer on its way to the client. [Options.Render] may change everything but Key and Replayed.
type Answer struct {
	Key      samekey.Key // of the request
	Replayed bool        // false: the first answer, which was stored just now
	Status   int         // 200 to 599
	Header   http.Header // for the client, with what outer handlers have set
	Body     []byte      // replace it; do not change the bytes
}

// sendFirst sends the answer of the handler.
func (m *Middleware) sendFirst(w http.ResponseWriter, r *http.Request, key samekey.Key, h *held, stored reply.Reply) {
	if m.o.Render == nil || formOf(stored) != whole {
		h.send(w)
		return
	}
	clear(w.Header())
	maps.Copy(w.Header(), h.answered)
	m.send(w, r, Answer{Key: key, Status: h.status, Header: w.Header(), Body: h.body.Bytes()})
}

// send sends an answer as Options.Render changes it.
func (m *Middleware) send(w http.ResponseWriter, r *http.Request, a Answer) {
	if m.o.Render != nil && a.Status < 400 {
		a.Header = a.Header.Clone()
		m.render(w, r, &a)
		if a.Status < 200 || a.Status > 599 {
			m.fail(w, r, a.Key, problemInternal, fmt.Errorf("httpkey: Options.Render set the status %d: use 200 to 599", a.Status))
			return
		}
		clear(w.Header())
		maps.Copy(w.Header(), a.Header)
	}
	sendBody(w, a.Status, a.Body)
}

// render answers a panic of Options.Render like one of the handler, except that the answer is stored.
func (m *Middleware) render(w http.ResponseWriter, r *http.Request, a *Answer) {
	returned := false
	defer func() {
		if !returned {
			clear(w.Header())
			m.refuse(w, r, problemInternal)
		}
	}()
	m.o.Render(r, a)
	returned = true
}

func formOf(stored reply.Reply) string {
	header, _ := unwire(stored.Header) // it was read back before it was stored
	return header.Get(storedAs)
}
