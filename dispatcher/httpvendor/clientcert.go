package httpvendor

import (
	"bytes"
	"crypto/tls"
	"errors"
	"log/slog"
	"os"
	"sync"
)

// clientCert is a client certificate in files. Each handshake uses what the files have then. A pair that cannot be used,
// such as a new certificate whose key is not there yet, leaves the former one in use.
type clientCert struct {
	destination       string
	certFile, keyFile string

	mu        sync.Mutex
	cert, key []byte
	now       *tls.Certificate
	bad       bool // it has been logged
}

// newClientCert reads the files for the first time.
func newClientCert(destination, certFile, keyFile string) (*clientCert, error) {
	c := &clientCert{destination: destination, certFile: certFile, keyFile: keyFile}
	return c, c.read()
}

// read takes the pair of the files.
func (c *clientCert) read() error {
	cert, err := os.ReadFile(c.certFile)
	key, err2 := os.ReadFile(c.keyFile)
	if err := errors.Join(err, err2); err != nil {
		return err
	}
	if c.now != nil && bytes.Equal(cert, c.cert) && bytes.Equal(key, c.key) {
		return nil
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return err
	}
	c.cert, c.key, c.now = cert, key, &pair
	return nil
}

// get is tls.Config.GetClientCertificate.
func (c *clientCert) get(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	err := c.read()
	if err != nil && !c.bad {
		slog.Warn("httpvendor: the client certificate and its key cannot be used, so the former ones stay in use: write both files again",
			slog.String("destination", c.destination), slog.String("cert", c.certFile), slog.String("key", c.keyFile), slog.String("error", err.Error()))
	}
	c.bad = err != nil
	return c.now, nil
}
