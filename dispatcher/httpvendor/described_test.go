package httpvendor

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// Each answer is written unchanged, then the connection is closed.
func TestDescribeBrokenAnswers(t *testing.T) {
	const ok = "HTTP/1.1 200 OK\r\n"
	const chunked = ok + "Transfer-Encoding: chunked\r\n\r\n"
	const zipped = ok + "Content-Encoding: gzip\r\n"
	const gzipOfSecret = "\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff\x2a\x4e\x4d\x2e\x4a\x2d\x01\x04\x00\x00\xff\xff\x69\x69\xc1\x1e\x06\x00\x00\x00"
	for name, tc := range map[string]struct{ answer, want string }{
		"nothing":                {"", "closed the connection before it answered"},
		"the half of a header":   {ok + "X-Secret: ", "closed the connection"},
		"another protocol":       {"220 secret ESMTP\r\n", "violated HTTP/1.1"},
		"HTTP/2":                 {"\x00\x00\x12\x04\x00\x00\x00\x00\x00secretsecretsecret", "violated HTTP/1.1"},
		"a malformed header":     {ok + "secret\r\n\r\n", "headers are malformed"},
		"headers over the limit": {ok + strings.Repeat("X-A: "+strings.Repeat("secret", 100)+"\r\n", 500), "headers are longer than 256 KiB"},
		"one over the limit":     {ok + "X-A: " + strings.Repeat("secret", 50_000) + "\r\n", "headers are longer than 256 KiB"},
		"a body cut off":         {ok + "Content-Length: 100\r\n\r\nsecret", "before the answer's end"},
		"chunks cut off":         {chunked + "6\r\nsecret\r\n", "before the answer's end"},
		"a malformed chunk":      {chunked + "secret\r\n", "chunked encoding is malformed"},
		"a chunk without an end": {chunked + "3\r\nsecret\r\n0\r\n\r\n", "chunked encoding is malformed"},
		"a long chunk line":      {chunked + "6;" + strings.Repeat("x", 10_000) + "\r\nsecret\r\n0\r\n\r\n", "chunked encoding is malformed"},
		"no gzip":                {zipped + "Content-Length: 18\r\n\r\nsecretsecretsecret", "gzip encoding is damaged"},
		"a damaged gzip":         {zipped + "Content-Length: 30\r\n\r\n" + strings.Replace(gzipOfSecret, "\x69\x69", "\x00\x00", 1), "gzip encoding is damaged"},
		"half a gzip":            {zipped + "Content-Length: 16\r\n\r\n" + gzipOfSecret[:16], "ended before its gzip encoding did"},
	} {
		t.Run(name, func(t *testing.T) {
			server := startRaw(t, func(s *rawServer, c net.Conn) {
				if _, err := s.readRequest(bufio.NewReader(c)); err == nil {
					_, _ = io.WriteString(c, tc.answer)
				}
			})
			_, err := attempt(t, testHandler(t, Destination{URL: server.url}, Action{}), testCall("{}"), patience)
			if verdict(err) != "unknown" || !strings.Contains(err.Error(), tc.want) || strings.Contains(err.Error(), "secret") {
				t.Errorf("is %s: %v", verdict(err), err)
			}
		})
	}
}

func TestFailedProxyIsNamed(t *testing.T) {
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusProxyAuthRequired)
	}))
	t.Cleanup(proxy.Close)
	_, err := attempt(t, testHandler(t, Destination{URL: "https://vendor.example", Proxy: proxy.URL}, Action{}), testCall("{}"), patience)
	if verdict(err) != "unsent" || !strings.Contains(err.Error(), "the proxy answered CONNECT with status 407") {
		t.Errorf("is %s: %v", verdict(err), err)
	}
}
