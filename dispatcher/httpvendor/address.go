package httpvendor

import (
	"errors"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/net/idna"

	"github.com/samekey/samekey/internal/webhook"
	"github.com/samekey/samekey/internal/wirehttp"
)

// errAddress means that an address may not be called.
var errAddress = errors.New("httpvendor: the address is not public, and AllowPrivate does not contain it")

// notPublic are the IPv4 ranges that no vendor on the internet has: this host and network, private, shared by a
// carrier, loopback, link-local (with the metadata services of clouds), documentation, benchmarks, multicast, reserved.
var notPublic = prefixes("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12",
	"192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24",
	"224.0.0.0/4", "240.0.0.0/4")

// The public IPv6 range, and what in it is not public: documentation, and Teredo and 6to4, which contain an IPv4
// address.
var (
	public6    = netip.MustParsePrefix("2000::/3")
	notPublic6 = prefixes("2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20")
	nat64      = netip.MustParsePrefix("64:ff9b::/96")
)

func prefixes(texts ...string) (out []netip.Prefix) {
	for _, text := range texts {
		out = append(out, netip.MustParsePrefix(text))
	}
	return out
}

// allowList has the ranges that may be called in addition to public addresses.
type allowList []netip.Prefix

func newAllowList(ranges []netip.Prefix, m mistakes) (out allowList) {
	for i, prefix := range ranges {
		at := m.at("AllowPrivate", i)
		switch {
		case !prefix.IsValid():
			at.add("", "not a valid range: use a range such as 10.0.0.0/8 or fd00::/8")
		case prefix.Addr().Is4In6():
			at.add("", "%v must be an IPv4 range, which covers both notations", prefix)
		default:
			out = append(out, prefix.Masked())
		}
	}
	return out
}

// allows reports whether an address may be called. An IPv4 address in IPv6 notation is treated as the IPv4 address.
func (l allowList) allows(addr netip.Addr) bool {
	addr = addr.WithZone("").Unmap()
	in := func(list []netip.Prefix) bool {
		return slices.ContainsFunc(list, func(p netip.Prefix) bool { return p.Contains(addr) })
	}
	switch {
	case in(l):
		return true
	case addr.Is4():
		return !in(notPublic)
	case nat64.Contains(addr):
		b := addr.As16()
		return l.allows(netip.AddrFrom4([4]byte(b[12:])))
	}
	return public6.Contains(addr) && !in(notPublic6)
}

// control is called for each connection, with the address that the name was resolved to, before anything is sent.
func (l allowList) control(_, address string, _ syscall.RawConn) error {
	at, err := netip.ParseAddrPort(address)
	if err != nil || !l.allows(at.Addr()) {
		return errAddress
	}
	return nil
}

// checkURL refuses an address that is written in the URL itself.
func (l allowList) checkURL(u *url.URL) error {
	addr, err := netip.ParseAddr(u.Hostname())
	if err == nil && !l.allows(addr) {
		return errors.New("leads to an address that is not public")
	}
	return nil
}

// checkProxied refuses the host of an endpoint behind a proxy if the text shows that it is an address that is not
// public, in any notation that some resolver accepts (2130706433, 0x7f.1).
func (l allowList) checkProxied(u *url.URL) error {
	host := strings.TrimSuffix(u.Hostname(), ".")
	last := host[strings.LastIndexByte(host, '.')+1:]
	addr, err := netip.ParseAddr(host)
	switch {
	case err == nil && l.allows(addr):
		return nil
	case err == nil:
		return errors.New("leads to an address that is not public")
	case last == "" || '0' <= last[0] && last[0] <= '9':
		return errors.New("has a host that may be an address in an unusual notation: write it as a name, or as four numbers")
	}
	return nil
}

// parseURL is [webhook.ParseURL] with the host as DNS and TLS use it. net/http converts the connection's host by the
// rules for lookups (UTS #46), and the header Host without them, so Bücher.example would be two hosts.
func parseURL(text string) (*url.URL, error) {
	u, err := webhook.ParseURL(text)
	if err != nil {
		return nil, err
	}
	host := u.Hostname()
	if !strings.ContainsFunc(host, func(r rune) bool { return r > '~' }) && !strings.Contains(strings.ToLower(host), "xn--") {
		return u, nil
	}
	ascii, err := idna.Lookup.ToASCII(host)
	if err != nil || ascii == "" {
		return nil, errors.New("has a host that is not a valid international domain name: correct it, or use its xn-- form")
	}
	if port := u.Port(); port != "" {
		ascii = net.JoinHostPort(ascii, port)
	}
	u.Host = ascii
	return u, nil
}

// describe is [wirehttp.Describe], and knows errAddress as well.
func describe(err error) (code, text string) {
	if errors.Is(err, errAddress) {
		return "address", "the host name leads to an address that is not public: allow its range in the destination if it is intended"
	}
	return wirehttp.Describe(err)
}

// dialTimeout ends connections that net/http continues to dial after their request has ended.
const dialTimeout = time.Minute

// dialer resolves names, checks their addresses, and connects.
func (l allowList) dialer(resolver *net.Resolver) *net.Dialer {
	return &net.Dialer{Timeout: dialTimeout, KeepAlive: 15 * time.Second, Resolver: resolver, Control: l.control}
}
