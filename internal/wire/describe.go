package wire

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"os"
	"syscall"
)

// Describe says in fixed words what went wrong with a call in the named protocol, and a code for it. It never hands on
// an error's own text, which may quote the URL or what the other side sent.
func Describe(err error, protocol string) (code, text string) {
	var (
		name   *net.DNSError
		errno  syscall.Errno
		record tls.RecordHeaderError
		alert  tls.AlertError
		cert   *tls.CertificateVerificationError
		netErr net.Error
	)
	switch {
	case errors.Is(err, ErrLate), errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded):
		return "timeout", "the attempt's time was over"
	case errors.Is(err, ErrEnded), errors.Is(err, context.Canceled):
		return "stopped", "the attempt was stopped"
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
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return "connection", "the other side closed the connection"
	}
	return "protocol", "the other side did not speak " + protocol + " as it should"
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
