package httpvendor

import (
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// The connection and the Host header have the same host, however the URL writes it.
func TestInternationalHostIsConvertedOnce(t *testing.T) {
	hosts := make(chan string, 1)
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { hosts <- r.Host }))
	t.Cleanup(server.Close)
	_, port, _ := net.SplitHostPort(strings.TrimPrefix(server.URL, "http://"))
	for written, want := range map[string]string{
		"bücher.example":             "xn--bcher-kva.example",
		"BÜCHER.example":             "xn--bcher-kva.example",
		"b\u0075\u0308cher.EXAMPLE":  "xn--bcher-kva.example", // u and a combining diaeresis
		"ＥＸＡＭＰＬＥ.com":                "example.com",
		"straße.de":                  "xn--strae-oqa.de",
		"STRASSE.de":                 "STRASSE.de",
		"例え。テスト":                     "xn--r8jz45g.xn--zckzah", // an ideographic full stop
		"xn--bcher-kva.example":      "xn--bcher-kva.example",
		"XN--BCHER-KVA.Example":      "xn--bcher-kva.example",
		"my_service.example":         "my_service.example",
		"b%C3%BCcher.example":        "xn--bcher-kva.example",
		"www.xn--bcher-kva.example.": "www.xn--bcher-kva.example.",
	} {
		t.Run(written, func(t *testing.T) {
			handler := testHandler(t, Destination{URL: "http://" + written + ":" + port, resolver: resolverTo(t, "127.0.0.1")}, Action{})
			if _, err := attempt(t, handler, testCall("{}"), patience); err != nil {
				t.Fatal(err)
			}
			if got := <-hosts; got != want+":"+port {
				t.Errorf("the host is %s, want %s", got, want)
			}
		})
	}
}

func TestInvalidInternationalNames(t *testing.T) {
	for _, host := range []string{"xn--ü.example", "xn--a.example", "bü cher.example", "bü_cher.example", "-ü.example", "ü\u200d.example", "א1a.example"} {
		_, err := New(Destination{Name: "stripe", URL: "https://" + host})
		if err == nil || !strings.Contains(err.Error(), ": URL: ") || strings.Contains(err.Error(), "example") {
			t.Errorf("%s: %v", host, err)
		}
	}
	if _, err := New(Destination{Name: "stripe", URL: "https://bücher.example", Proxy: "http://xn--a.example"}); err == nil || !strings.Contains(err.Error(), "Proxy: has a host that is not a valid international domain name") {
		t.Errorf("a proxy: %v", err)
	}
	// Full-width digits are digits of an address.
	if _, err := New(Destination{Name: "stripe", URL: "http://１２７.０.０.１"}); err == nil || !strings.Contains(err.Error(), "not public") {
		t.Errorf("an address: %v", err)
	}
}
