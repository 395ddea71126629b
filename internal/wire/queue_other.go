//go:build !linux

package wire

import "net"

// unacknowledged is not known here.
func unacknowledged(net.Conn) (n int, ok bool) { return 0, false }
