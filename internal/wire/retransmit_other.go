//go:build !linux

package wire

import (
	"net"
	"time"
)

// retransmitFor does nothing: only Linux has this limit. Data that a process has queued before it is suspended may be
// delivered later.
func retransmitFor(net.Conn, time.Duration) {}
