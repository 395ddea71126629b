package samekeytest

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"sync"
	"time"
)

// The faults of a [Proxy] are those of a [Vendor], where "acts" means that the
// backend gets the request and answers it, and two more. A proxy cannot decline:
// [Fault402] is a status like any other to it.
const (
	// FaultDuplicate sends the request to the backend twice at once. The client
	// gets the answer that comes first, when both are there.
	FaultDuplicate Fault = "duplicate"
	// FaultResend sends the request to the backend, and when the answer is there
	// sends it once more. The client gets the first answer.
	FaultResend Fault = "resend"
)

func parseProxyFault(f Fault) error {
	if f == FaultDuplicate || f == FaultResend {
		return nil
	}
	if _, err := ParseFault(string(f)); err != nil {
		return fmt.Errorf("%w; or, at a proxy, duplicate, resend", err)
	}
	return nil
}

// Next queues faults for the requests that come next, one each, in order of
// arrival. It panics on a fault that does not exist.
func (p *Proxy) Next(faults ...Fault) {
	for _, f := range faults {
		if err := parseProxyFault(f); err != nil {
			panic(err)
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.next = append(p.next, faults...)
}

// SetScript lets the function decide the fault of each request for which
// [Proxy.Next] has none queued: by method, path, key, and the how-manieth of its
// key it is. "" is no fault, and nil turns the script off. It is called with the
// proxy locked: it must not call the proxy.
//
//	proxy.SetScript(func(c samekeytest.ProxyCall) samekeytest.Fault {
//		if c.Method == "POST" && c.Nth == 1 {
//			return "503_after" // the first answer to each key is lost
//		}
//		return ""
//	})
func (p *Proxy) SetScript(script func(ProxyCall) Fault) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.script = script
}

// Hold parks every request that comes from now on, before the backend gets it,
// until [Proxy.Release]. A parked request whose client goes never reaches it.
func (p *Proxy) Hold() { p.setHold(holdCalls) }

// HoldAnswers parks every request that comes from now on when the backend has
// answered it, until [Proxy.Release].
func (p *Proxy) HoldAnswers() { p.setHold(holdAnswers) }

func (p *Proxy) setHold(point holdPoint) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.hold = point
}

// Release ends Hold and HoldAnswers, and lets every parked request go on, those
// of hanging faults too.
func (p *Proxy) Release() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.hold = holdNothing
	close(p.release)
	p.release = make(chan struct{})
}

// pickFault decides what goes wrong with the request, "" for nothing. p.mu is held.
func (p *Proxy) pickFault(c ProxyCall) (f Fault) {
	switch {
	case len(p.next) > 0:
		f, p.next = p.next[0], p.next[1:]
	case p.script != nil:
		f = p.script(c)
	}
	if f == FaultNone {
		return ""
	}
	return f
}

// play runs the request to its end, with its fault.
func (p *Proxy) play(w http.ResponseWriter, c *proxyCall) {
	kind, arg, hasArg := c.Fault.split()
	switch Fault(kind) {
	case "":
		p.reply(w, c)
	case FaultLoseAnswer, FaultResetAfter:
		p.forward(c)
		p.end(c, 0, false)
		drop(w, Fault(kind) == FaultResetAfter)
	case FaultResetBefore:
		p.end(c, 0, false)
		drop(w, true)
	case FaultHang:
		if !p.park(c) {
			p.abandon(w, c)
			return
		}
		p.reply(w, c)
	case FaultHangAfter:
		c.hold = holdAnswers
		p.reply(w, c)
	case FaultLate:
		p.park(c)
		p.reply(w, c)
	case FaultTruncate:
		a := p.forward(c)
		if len(a.Body) == 0 { // there is no half of it
			p.end(c, 0, false)
			drop(w, false)
			return
		}
		p.end(c, a.Status, false)
		sendAsIs(w, a, len(a.Body)/2)
		panic(http.ErrAbortHandler) // closes the connection
	case FaultDuplicate, FaultResend:
		p.answer(w, c, p.twice(c))
	case "slow":
		d, _ := time.ParseDuration(arg) // parseProxyFault has seen it
		a := p.forward(c)
		if !p.wait(c, d) {
			p.abandon(w, c)
			return
		}
		p.answer(w, c, a)
	default:
		p.playStatus(w, c, kind, arg, hasArg)
	}
}

// reply is what a proxy without faults does.
func (p *Proxy) reply(w http.ResponseWriter, c *proxyCall) {
	a := p.forward(c)
	if c.hold == holdAnswers && !p.park(c) {
		p.abandon(w, c)
		return
	}
	p.answer(w, c, a)
}

func (p *Proxy) playStatus(w http.ResponseWriter, c *proxyCall, kind, arg string, hasArg bool) {
	m := statusFault.FindStringSubmatch(kind)
	if m == nil {
		panic(fmt.Sprintf("samekeytest: the script returned the unknown fault %q", c.Fault))
	}
	status, _ := strconv.Atoi(m[1])
	a := refusal(status, "injected_"+kind, "the test proxy was told to answer so")
	a.Header.Set("Content-Type", "application/json")
	switch {
	case hasArg && arg != "":
		a.Header.Set("Retry-After", arg)
	case status == http.StatusTooManyRequests && !hasArg:
		a.Header.Set("Retry-After", "1")
	}
	if m[2] != "" {
		p.forward(c)
	}
	p.answer(w, c, a)
}

// twice sends the request two times and returns the answer that came first.
func (p *Proxy) twice(c *proxyCall) VendorAnswer {
	if c.Fault == FaultResend {
		p.forward(c)
		p.forward(c)
	} else {
		var sendings sync.WaitGroup
		for range 2 {
			sendings.Go(func() { p.forward(c) })
		}
		sendings.Wait()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.calls[c.Call-1].Backend[0].forClient()
}

// forward sends the request to the backend, once, and notes what it answers
// before it returns that.
func (p *Proxy) forward(c *proxyCall) VendorAnswer {
	got := p.exchange(c)
	p.mu.Lock()
	defer p.mu.Unlock()
	entry := &p.calls[c.Call-1]
	entry.Backend = append(entry.Backend, got)
	p.answered++
	p.broadcast()
	return got.forClient()
}

// forClient is what the client is sent: 502 where there is no answer.
func (a ProxyAnswer) forClient() VendorAnswer {
	if a.Err == nil {
		return VendorAnswer{Status: a.Status, Header: a.Header, Body: a.Body}
	}
	bad := refusal(http.StatusBadGateway, "bad_gateway", "the backend gave no answer")
	bad.Header.Set("Content-Type", "application/json")
	return bad
}

func (p *Proxy) exchange(c *proxyCall) ProxyAnswer {
	ctx := c.request.Context()
	if c.Fault != "" {
		ctx = context.WithoutCancel(ctx)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-p.closing:
			cancel()
		case <-ctx.Done():
		}
	}()
	req := c.request.Clone(ctx)
	to := *p.backend
	to.Path, to.RawPath = to.Path+req.URL.Path, to.EscapedPath()+req.URL.EscapedPath()
	to.RawQuery, to.ForceQuery = req.URL.RawQuery, req.URL.ForceQuery
	req.URL = &to
	req.Body, req.ContentLength, req.TransferEncoding = http.NoBody, int64(len(c.Body)), nil
	if len(c.Body) > 0 {
		req.Body = io.NopCloser(bytes.NewReader(c.Body))
	}
	dropHopByHop(req.Header)
	if req.Header.Get("User-Agent") == "" {
		req.Header.Set("User-Agent", "") // else net/http puts in its own
	}
	res, err := p.transport.RoundTrip(req)
	if err != nil {
		return ProxyAnswer{Err: err}
	}
	defer func() { _ = res.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(res.Body, maxProxyBody+1))
	if err == nil && len(body) > maxProxyBody {
		err = fmt.Errorf("samekeytest: proxy: the answer has more than %d bytes", maxProxyBody)
	}
	if err != nil {
		return ProxyAnswer{Err: err}
	}
	dropHopByHop(res.Header)
	return ProxyAnswer{Status: res.StatusCode, Header: res.Header, Body: body}
}

// wait says false if the client went or the proxy is closing before d is over.
func (p *Proxy) wait(c *proxyCall, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-c.request.Context().Done():
		return false
	case <-p.closing:
		return false
	}
}

// dropHopByHop removes what is about one connection, not about the message.
func dropHopByHop(h http.Header) {
	for _, name := range []string{"Connection", "Keep-Alive", "Proxy-Connection", "Te", "Trailer", "Transfer-Encoding", "Upgrade"} {
		h.Del(name)
	}
}

// sendAsIs sends the head as it came, the length of the whole body in it, and
// that many bytes of the body.
func sendAsIs(w http.ResponseWriter, a VendorAnswer, n int) {
	h := w.Header()
	for name, values := range a.Header {
		h[name] = values
	}
	for _, name := range []string{"Date", "Content-Type"} {
		if a.Header[name] == nil {
			h[name] = nil // else net/http puts in its own
		}
	}
	if h.Get("Content-Length") == "" && bodyAllowed(a.Status) {
		h.Set("Content-Length", strconv.Itoa(len(a.Body)))
	}
	w.WriteHeader(a.Status)
	if n == 0 {
		return
	}
	_, _ = w.Write(a.Body[:n]) // a client that went is no error of the proxy's
	if n < len(a.Body) {
		_ = http.NewResponseController(w).Flush()
	}
}

func bodyAllowed(status int) bool {
	return status != http.StatusNoContent && status != http.StatusNotModified
}
