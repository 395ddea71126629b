package httpvendor

import (
	"errors"
	"fmt"
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

// errAddress says that an address may not be called.
var errAddress = errors.New("httpvendor: the address is not a public one, and AllowPrivate does not name it")

// notPublic are the ranges of IPv4 that are no vendor on the internet: this host and network, private, shared by a
// carrier, loopback, link-local (with the metadata services of clouds), documentation, benchmarks, multicast, reserved.
var notPublic = prefixes("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12",
	"192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24",
	"224.0.0.0/4", "240.0.0.0/4")

// Of IPv6 the public range is public, but for documentation, and for Teredo and 6to4, which hide an address of IPv4.
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

// allowList names the ranges beside the public ones that may be called.
type allowList []netip.Prefix

func newAllowList(ranges []netip.Prefix) (allowList, error) {
	var out allowList
	for _, prefix := range ranges {
		switch {
		case !prefix.IsValid():
			return nil, errors.New("has a range that is not valid: want such as 10.0.0.0/8 or fd00::/8")
		case prefix.Addr().Is4In6():
			return nil, fmt.Errorf("has %v: write it as a range of IPv4, which covers both forms", prefix)
		}
		out = append(out, prefix.Masked())
	}
	return out, nil
}

// allows reports whether an address may be called. One of IPv4 that is written as one of IPv6 is the one it stands for.
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

// control is asked for each connection, with the address that the name has led to, before anything is sent.
func (l allowList) control(_, address string, _ syscall.RawConn) error {
	at, err := netip.ParseAddrPort(address)
	if err != nil || !l.allows(at.Addr()) {
		return errAddress
	}
	return nil
}

// checkURL refuses an address that stands in the URL itself, at once.
func (l allowList) checkURL(u *url.URL) error {
	addr, err := netip.ParseAddr(u.Hostname())
	if err == nil && !l.allows(addr) {
		return errors.New("leads to an address that is not public: name its range in AllowPrivate if it is meant")
	}
	return nil
}

// checkProxied refuses the host of an endpoint that a proxy is asked for, as far as the text tells: an address that is not
// public, in any way that some resolver takes for one (2130706433, 0x7f.1).
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
		return errors.New("has a host that may be a number for an address: write it as a name, or as four numbers")
	}
	return nil
}

// parseURL is [webhook.ParseURL] with the host as DNS and TLS have it. net/http by itself converts the host of the connection by
// the rules for lookups (UTS #46), and that of the header Host without them, so that Bücher.example would be two hosts.
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
		return nil, errors.New("has a host that is not a valid international domain name: correct it, or write it as xn--")
	}
	if port := u.Port(); port != "" {
		ascii = net.JoinHostPort(ascii, port)
	}
	u.Host = ascii
	return u, nil
}

// describe is [wirehttp.Describe], and knows the refusal too.
func describe(err error) (code, text string) {
	if errors.Is(err, errAddress) {
		return "address", "the host's name leads to an address that is not public: name its range in AllowPrivate if it is meant"
	}
	return wirehttp.Describe(err)
}

// dialTimeout is for connections that net/http goes on dialling after their request has gone.
const dialTimeout = time.Minute

// dialer looks names up, checks what they lead to, and connects.
func (l allowList) dialer(resolver *net.Resolver) *net.Dialer {
	return &net.Dialer{Timeout: dialTimeout, KeepAlive: 15 * time.Second, Resolver: resolver, Control: l.control}
}
