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

// Describe returns a code and a fixed text for the error of a call in the named protocol. It never returns the error's
// own text, which may quote the URL or the other side's data.
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
		return "timeout", "the attempt timed out"
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
		return "tls", alert.Error() // each alert has a fixed text
	case errors.As(err, &errno):
		return "connection", errno.Error()
	case errors.As(err, &netErr) && netErr.Timeout():
		return "timeout", "the connection timed out"
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return "connection", "the other side closed the connection"
	}
	return "protocol", "the other side violated " + protocol
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
		return "the certificate does not match the host's name"
	case errors.As(err, &unknown):
		return "the certificate is signed by an unknown authority: are the system's authorities installed, or is a CA file needed?"
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return "the certificate has expired, or is not valid yet"
	case errors.As(err, &system):
		return "this system has no certificate authorities: install them or name a CA file"
	}
	return "the certificate is not valid"
}
