package httpvendor

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"syscall"
)

// describe says in fixed words what went wrong with a call, and a code for it. It never hands on an error's own text,
// which may quote the URL or what the other side sent.
func describe(err error) (code, text string) {
	var (
		name   *net.DNSError
		errno  syscall.Errno
		record tls.RecordHeaderError
		alert  tls.AlertError
		cert   *tls.CertificateVerificationError
		netErr net.Error
	)
	switch {
	case errors.Is(err, errLate), errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded):
		return "timeout", "the attempt's time was over"
	case errors.Is(err, errEnded), errors.Is(err, context.Canceled):
		return "stopped", "the attempt was stopped"
	case errors.Is(err, errAddress):
		return "address", "the host's name leads to an address that is not public: name its range in AllowPrivate if it is meant"
	case errors.As(err, &name) && name.IsNotFound:
		return "dns", "the host's name does not exist"
	case errors.As(err, &name):
		return "dns", "the host's name could not be looked up"
	case errors.As(err, &cert):
		return "tls", describeCertificate(cert.Err)
	case errors.As(err, &record):
		return "tls", "the host does not speak TLS on this port"
	case errors.As(err, &alert):
		return "tls", alert.Error() // a fixed text for each of the protocol's alerts
	case errors.As(err, &errno):
		return "connection", errno.Error()
	case errors.As(err, &netErr) && netErr.Timeout():
		return "timeout", "connecting took too long"
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), strings.Contains(err.Error(), "server closed idle connection"):
		return "connection", "the other side closed the connection"
	}
	return "protocol", "the other side did not speak HTTP/1.1 as it should"
}

func describeCertificate(err error) string {
	var (
		host    x509.HostnameError
		unknown x509.UnknownAuthorityError
		invalid x509.CertificateInvalidError
		system  x509.SystemRootsError
	)
	switch {
	case errors.As(err, &host):
		return "the certificate is for other names than the host's"
	case errors.As(err, &unknown):
		return "the certificate is signed by an unknown authority: are the system's authorities installed, or is a CA file needed?"
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return "the certificate has expired, or is not valid yet"
	case errors.As(err, &system):
		return "this system has no certificate authorities: install them or name a CA file"
	}
	return "the certificate is not valid"
}

// secrets are texts that must not be kept.
type secrets struct {
	texts   [][]byte
	longest int
}

const shortestSecret = 6

func newSecrets(base *url.URL, header http.Header, named []string) secrets {
	return secrets{}.with(slices.Concat(named, credentials(header), userSecrets(base)))
}

// userSecrets are what "user:password@" of a URL holds.
func userSecrets(base *url.URL) []string {
	password, ok := base.User.Password()
	if !ok {
		return nil
	}
	return []string{password, base64.StdEncoding.EncodeToString([]byte(base.User.Username() + ":" + password))}
}

// credentials are what an Authorization header holds.
func credentials(header http.Header) []string {
	authorization := header.Get("Authorization")
	_, bare, _ := strings.Cut(authorization, " ")
	return []string{authorization, bare}
}

// with returns s and more, in their escaped forms too.
func (s secrets) with(more []string) secrets {
	s.texts = slices.Clone(s.texts)
	add := func(text string) {
		if len(text) >= shortestSecret && !slices.ContainsFunc(s.texts, func(t []byte) bool { return string(t) == text }) {
			s.texts = append(s.texts, []byte(text))
			s.longest = max(s.longest, len(text))
		}
	}
	for _, text := range more {
		add(text)
		add(url.QueryEscape(text))
		add(url.PathEscape(text))
		if quoted, err := json.Marshal(text); err == nil {
			add(string(quoted[1 : len(quoted)-1]))
			add(strings.ReplaceAll(text, "/", `\/`))
		}
	}
	return s
}

// strike returns the first limit bytes of body, or fewer, with "[redacted]" for each run of bytes that belong to secrets.
// It sees a secret that the limit cuts in two where body goes on for as long as a secret is, and one that body's own end
// cuts in two if shortestSecret bytes of it are there.
func (s secrets) strike(body []byte, limit int) []byte {
	end := min(len(body), limit)
	var out []byte
	at := 0
	for _, run := range s.find(body) {
		if run.from >= end {
			break
		}
		if run.from >= at {
			out = append(append(out, body[at:run.from]...), "[redacted]"...)
		}
		at = max(at, run.to)
	}
	out = append(out, body[min(at, end):end]...)
	return out[:min(len(out), limit)]
}

type run struct{ from, to int }

// find returns where secrets are, in order. They may overlap.
func (s secrets) find(body []byte) (runs []run) {
	for _, text := range s.texts {
		for at := 0; ; at++ {
			i := bytes.Index(body[at:], text)
			if i < 0 {
				break
			}
			at += i
			runs = append(runs, run{at, at + len(text)})
		}
		for n := len(text) - 1; n >= shortestSecret; n-- {
			if bytes.HasSuffix(body, text[:n]) {
				runs = append(runs, run{len(body) - n, len(body)})
				break
			}
		}
	}
	slices.SortFunc(runs, func(a, b run) int { return a.from - b.from })
	return runs
}
