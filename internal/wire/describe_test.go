package wire

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
)

// Each error contains a secret. Errors of net/http, for example, quote the URL and the other side's data.
func TestErrorsAreDescribedInFixedWords(t *testing.T) {
	certificate := func(err error) error { return &tls.CertificateVerificationError{Err: err} }
	for _, tc := range []struct {
		err        error
		code, text string
	}{
		{ErrLate, "timeout", "the attempt timed out"},
		{context.DeadlineExceeded, "timeout", "the attempt timed out"},
		{os.ErrDeadlineExceeded, "timeout", "the attempt timed out"},
		{ErrEnded, "stopped", "the attempt was stopped"},
		{context.Canceled, "stopped", "the attempt was stopped"},
		{&net.DNSError{Name: "secret", IsNotFound: true}, "dns", "does not exist"},
		{&net.DNSError{Name: "secret", Server: "secret"}, "dns", "could not be looked up"},
		{certificate(x509.HostnameError{Certificate: new(x509.Certificate), Host: "secret"}), "tls", "does not match"},
		{certificate(x509.UnknownAuthorityError{}), "tls", "unknown authority"},
		{certificate(x509.CertificateInvalidError{Reason: x509.Expired, Detail: "secret"}), "tls", "has expired"},
		{certificate(x509.CertificateInvalidError{Reason: x509.TooManyIntermediates, Detail: "secret"}), "tls", "is not valid"},
		{certificate(x509.SystemRootsError{Err: errors.New("secret")}), "tls", "no certificate authorities"},
		{tls.RecordHeaderError{Msg: "secret"}, "tls", "does not speak TLS"},
		{tls.AlertError(40), "tls", "handshake failure"},
		{&net.OpError{Op: "dial", Err: os.NewSyscallError("secret", syscall.ECONNREFUSED)}, "connection", "connection refused"},
		{tooLong{}, "timeout", "connection timed out"},
		{io.EOF, "connection", "the other side closed the connection"},
		{io.ErrUnexpectedEOF, "connection", "the other side closed the connection"},
		{errors.New("malformed"), "protocol", "the other side violated SMTP"},
	} {
		code, text := Describe(fmt.Errorf("POST https://secret: %w: secret", tc.err), "SMTP")
		if code != tc.code || !strings.Contains(text, tc.text) || strings.Contains(text, "secret") {
			t.Errorf("%v is described as %s: %s", tc.err, code, text)
		}
	}
}

type tooLong struct{}

func (tooLong) Error() string   { return "secret" }
func (tooLong) Timeout() bool   { return true }
func (tooLong) Temporary() bool { return true }
