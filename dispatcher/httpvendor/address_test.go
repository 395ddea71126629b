package httpvendor

import (
	"context"
	"encoding/binary"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"

	"github.com/samekey/samekey/dispatcher"
)

func TestAllowedAddresses(t *testing.T) {
	allowed := newAllowList(prefixes("10.20.0.0/16", "fd12::/16"), mistakes{all: new(dispatcher.ConfigErrors)})
	for text, want := range map[string]bool{
		"8.8.8.8": true, "172.15.255.255": true, "172.32.0.0": true, "100.63.255.255": true, "2606:4700::1111": true,
		"10.20.1.2": true, "::ffff:10.20.1.2": true, "fd12::1": true, "64:ff9b::808:808": true,
		"10.21.0.1": false, "127.0.0.1": false, "127.1.2.3": false, "0.0.0.0": false, "169.254.169.254": false, "192.168.0.1": false,
		"172.16.0.1": false, "172.31.255.255": false, "100.64.0.1": false, "100.127.255.255": false, "224.0.0.1": false,
		"255.255.255.255": false, "198.18.0.1": false, "192.0.2.1": false,
		"::": false, "::1": false, "::ffff:127.0.0.1": false, "::ffff:169.254.169.254": false, "::127.0.0.1": false,
		"fe80::1": false, "fe80::1%eth0": false, "fd00:ec2::254": false, "fc00::1": false, "ff02::1": false, "2001:db8::1": false,
		"2002:7f00:1::": false, "2001::1": false, "64:ff9b::7f00:1": false, "64:ff9b::a9fe:a9fe": false,
	} {
		if got := allowed.allows(netip.MustParseAddr(text)); got != want {
			t.Errorf("%s: %t, want %t", text, got, want)
		}
	}
}

// resolverTo returns a resolver that resolves every name to one address.
func resolverTo(t *testing.T, address string) *net.Resolver {
	t.Helper()
	server, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	t.Cleanup(func() { _ = server.Close(); <-done })
	addr := netip.MustParseAddr(address)
	go func() {
		defer close(done)
		buf := make([]byte, 1500)
		for {
			n, from, err := server.ReadFrom(buf)
			if err != nil {
				return
			}
			_, _ = server.WriteTo(dnsAnswer(buf[:n], addr), from)
		}
	}()
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "udp", server.LocalAddr().String())
	}}
}

// dnsAnswer answers a question of the address's type with it, and other questions with no record.
func dnsAnswer(query []byte, addr netip.Addr) []byte {
	end := 12
	for query[end] != 0 {
		end += int(query[end]) + 1
	}
	end += 5 // the root, type and class
	kind := uint16(1)
	if addr.Is6() {
		kind = 28
	}
	out := append([]byte{}, query[:end]...)
	out[2], out[3] = 0x81, 0x80
	copy(out[6:12], make([]byte, 6))
	if binary.BigEndian.Uint16(query[end-4:]) == kind {
		out[7] = 1
		out = append(out, 0xc0, 12)
		out = binary.BigEndian.AppendUint16(out, kind)
		out = append(out, 0, 1, 0, 0, 0, 60)
		out = binary.BigEndian.AppendUint16(out, uint16(len(addr.AsSlice())))
		out = append(out, addr.AsSlice()...)
	}
	return out
}

// Case 23.
func TestNameOfAPrivateAddressIsUnsent(t *testing.T) {
	server := startRaw(t, func(*rawServer, net.Conn) {})
	port := server.url[strings.LastIndex(server.url, ":"):]
	for _, address := range []string{"169.254.169.254", "127.0.0.1", "::1", "::ffff:127.0.0.1", "10.0.0.1", "fd00:ec2::254"} {
		t.Run(address, func(t *testing.T) {
			c, err := New(Destination{Name: "stripe", URL: "http://api.stripe.example" + port, resolver: resolverTo(t, address)})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(c.Close)
			for _, class := range []dispatcher.Class{dispatcher.IdempotentWrite, dispatcher.NonIdempotentWrite} {
				handler, _, err := c.handler(Action{Request: "POST /", Policy: dispatcher.Policy{Class: class}})
				if err != nil {
					t.Fatal(err)
				}
				_, err = attempt(t, handler, testCall("{}"), patience)
				if verdict(err) != "unsent" || !strings.Contains(err.Error(), "not public") {
					t.Errorf("%v: is %s (%v), want unsent", class, verdict(err), err)
				}
			}
		})
	}
	if n := server.connections.Load(); n != 0 {
		t.Errorf("there were %d connections", n)
	}
}

func TestNameOfAnAllowedAddressIsCalled(t *testing.T) {
	server, requests := recorder(t)
	port := server.URL[strings.LastIndex(server.URL, ":"):]
	handler := testHandler(t, Destination{URL: "http://api.stripe.example" + port, resolver: resolverTo(t, "127.0.0.1")}, Action{})
	if _, err := attempt(t, handler, testCall("{}"), patience); err != nil {
		t.Fatal(err)
	}
	if r := <-requests; r.Host != "api.stripe.example"+port {
		t.Errorf("the host is %q", r.Host)
	}
}

func TestPrivateAddressInAURL(t *testing.T) {
	for _, url := range []string{"http://127.0.0.1", "http://[::1]:80", "http://[::ffff:127.0.0.1]", "http://169.254.169.254/latest", "http://0.0.0.0"} {
		if _, err := New(Destination{Name: "stripe", URL: url}); err == nil || !strings.Contains(err.Error(), "URL: leads to an address that is not public") {
			t.Errorf("%s: %v", url, err)
		}
	}
	if _, err := New(Destination{Name: "stripe", URL: "https://a.example", Proxy: "http://10.0.0.1:3128"}); err == nil || !strings.Contains(err.Error(), "Proxy: leads") {
		t.Errorf("a proxy: %v", err)
	}
	for _, bad := range []netip.Prefix{{}, netip.PrefixFrom(netip.MustParseAddr("::ffff:10.0.0.0"), 104)} {
		if _, err := New(Destination{Name: "stripe", URL: "https://a.example", AllowPrivate: []netip.Prefix{bad}}); err == nil || !strings.Contains(err.Error(), "AllowPrivate") {
			t.Errorf("%v: %v", bad, err)
		}
	}
}

// A name may resolve to another address at each call, so each connection is checked.
func TestAddressOfAProxyIsChecked(t *testing.T) {
	proxied := make(chan string, 1)
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { proxied <- r.URL.Host }))
	t.Cleanup(proxy.Close)
	port := proxy.URL[strings.LastIndex(proxy.URL, ":"):]
	dest := Destination{Name: "stripe", URL: "http://vendor.invalid", Proxy: "http://proxy.example" + port, resolver: resolverTo(t, "127.0.0.1")}
	for _, allow := range []bool{false, true} {
		if allow {
			dest.AllowPrivate = loopback
		}
		c, err := New(dest)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(c.Close)
		handler, _, err := c.handler(Action{Request: "POST /", Policy: dispatcher.Policy{Class: dispatcher.IdempotentWrite}})
		if err != nil {
			t.Fatal(err)
		}
		_, err = attempt(t, handler, testCall("{}"), patience)
		if want := map[bool]string{false: "unsent", true: "delivered"}[allow]; verdict(err) != want {
			t.Errorf("allowed %t: is %s (%v), want %s", allow, verdict(err), err, want)
		}
	}
	if len(proxied) != 1 {
		t.Errorf("the proxy saw %d calls", len(proxied))
	}
}
