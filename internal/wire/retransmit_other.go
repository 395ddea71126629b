//go:build !linux

package wire

import (
	"net"
	"time"
)

// retransmitFor does nothing: only Linux can bound it. A process that is stopped may have queued what is delivered
// later.
func retransmitFor(net.Conn, time.Duration) {}
