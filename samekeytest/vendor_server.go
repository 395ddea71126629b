package samekeytest

import (
	"net/http/httptest"
	"testing"
)

// VendorServer is a [Vendor] that listens on the loopback interface.
type VendorServer struct {
	*Vendor
	URL string // http://127.0.0.1:port, without a slash at its end

	server *httptest.Server
}

// StartVendor starts a vendor and closes it at the end of the test, when no
// connection and no goroutine of it is left. A nil opts is the zero value.
func StartVendor(t testing.TB, opts *VendorOptions) *VendorServer {
	t.Helper()
	vendor, err := NewVendor(opts)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(vendor)
	s := &VendorServer{Vendor: vendor, URL: server.URL, server: server}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// Close ends every open call and connection. It may be called before the end of
// the test, for a vendor that goes down; its ledger can still be read.
func (s *VendorServer) Close() error {
	err := s.Vendor.Close()
	s.server.CloseClientConnections()
	s.server.Close()
	return err
}
