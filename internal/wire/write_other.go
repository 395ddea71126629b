//go:build !unix

package wire

import "net"

// writeChecked calls check before each 4 KiB. A process that is suspended within 4 KiB may send the rest of them late.
func writeChecked(to net.Conn, p []byte, check func() error) (n int, err error) {
	for n < len(p) {
		if err := check(); err != nil {
			return n, err
		}
		m, err := to.Write(p[n:min(len(p), n+4096)])
		n += m
		if err != nil {
			return n, err
		}
	}
	return n, nil
}
