package samekeytest

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"sync"
)

// proxyCall is a request between its arrival and its end.
type proxyCall struct {
	ProxyCall // as it arrived; p.calls has what happened since
	p         *Proxy
	request   *http.Request
}

// act sends the request to the backend and keeps the answer before it returns it.
func (c *proxyCall) act() VendorAnswer {
	got := c.exchange()
	c.p.mu.Lock()
	defer c.p.mu.Unlock()
	entry := &c.p.calls[c.Call-1]
	entry.Backend = append(entry.Backend, got)
	c.p.answered++
	c.p.broadcast()
	return got.forClient()
}

// special sends the request twice and returns the first answer.
func (c *proxyCall) special(kind string) (VendorAnswer, bool) {
	switch Fault(kind) {
	case FaultResend:
		c.act()
		c.act()
	case FaultDuplicate:
		var sendings sync.WaitGroup
		for range 2 {
			sendings.Go(func() { c.act() })
		}
		sendings.Wait()
	default:
		return VendorAnswer{}, false
	}
	c.p.mu.Lock()
	defer c.p.mu.Unlock()
	return c.p.calls[c.Call-1].Backend[0].forClient(), true
}

func (c *proxyCall) record(status int, clientGone bool) {
	entry := &c.p.calls[c.Call-1]
	entry.Status, entry.ClientGone, entry.Ended = status, clientGone, true
}

// forClient returns what the client is sent: 502 if there is no answer.
func (a ProxyAnswer) forClient() VendorAnswer {
	if a.Err == nil {
		return VendorAnswer{Status: a.Status, Header: a.Header, Body: a.Body}
	}
	return refusal(http.StatusBadGateway, "bad_gateway", "the backend gave no answer")
}

// exchange sends the request to the backend and reads its answer.
func (c *proxyCall) exchange() ProxyAnswer {
	ctx := c.request.Context()
	if c.Fault != "" {
		ctx = context.WithoutCancel(ctx)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-c.p.closing:
			cancel()
		case <-ctx.Done():
		}
	}()
	req := c.request.Clone(ctx)
	to := *c.p.backend
	to.Path, to.RawPath = to.Path+req.URL.Path, to.EscapedPath()+req.URL.EscapedPath()
	to.RawQuery, to.ForceQuery = req.URL.RawQuery, req.URL.ForceQuery
	req.URL = &to
	req.Body, req.ContentLength, req.TransferEncoding = http.NoBody, int64(len(c.Body)), nil
	if len(c.Body) > 0 {
		req.Body = io.NopCloser(bytes.NewReader(c.Body))
	}
	dropHopByHop(req.Header)
	if req.Header.Get("User-Agent") == "" {
		req.Header.Set("User-Agent", "") // else net/http sets its own
	}
	res, err := c.p.transport.RoundTrip(req)
	if err != nil {
		return ProxyAnswer{Err: err}
	}
	defer func() { _ = res.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(res.Body, maxBody+1))
	if err == nil && len(body) > maxBody {
		err = fmt.Errorf("samekeytest: proxy: the answer has more than %d bytes", maxBody)
	}
	if err != nil {
		return ProxyAnswer{Err: err}
	}
	dropHopByHop(res.Header)
	return ProxyAnswer{Status: res.StatusCode, Header: res.Header, Body: body}
}

// dropHopByHop removes the headers that concern one connection and not the message.
func dropHopByHop(h http.Header) {
	for _, name := range []string{"Connection", "Keep-Alive", "Proxy-Connection", "Te", "Trailer", "Transfer-Encoding", "Upgrade"} {
		h.Del(name)
	}
}

// write sends the head as it arrived, with the length of the whole body, and the first n bytes of the body.
func (*proxyCall) write(w http.ResponseWriter, a VendorAnswer, n int) {
	h := w.Header()
	for name, values := range a.Header {
		h[name] = values
	}
	for _, name := range []string{"Date", "Content-Type"} {
		if a.Header[name] == nil {
			h[name] = nil // else net/http sets its own
		}
	}
	if h.Get("Content-Length") == "" && bodyAllowed(a.Status) {
		h.Set("Content-Length", strconv.Itoa(len(a.Body)))
	}
	w.WriteHeader(a.Status)
	if n > 0 {
		_, _ = w.Write(a.Body[:n]) // a client that has gone is no error of the proxy's
	}
}

func bodyAllowed(status int) bool {
	return status != http.StatusNoContent && status != http.StatusNotModified
}
