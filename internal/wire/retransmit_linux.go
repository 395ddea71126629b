package wire

import (
	"net"
	"syscall"
	"time"
)

// tcpUserTimeout is TCP_USER_TIMEOUT, which package syscall does not name.
const tcpUserTimeout = 18

// retransmitFor bounds how long the kernel tries to deliver what was written, also while this process is stopped. Zero
// is the system's own limit, about 15 minutes. Where it cannot be set, as on a socket that is closed or not TCP,
// nothing is lost: End drops what is queued.
func retransmitFor(socket net.Conn, d time.Duration) {
	at, ok := socket.(syscall.Conn)
	if !ok {
		return
	}
	raw, err := at.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Control(func(fd uintptr) {
		_ = syscall.SetsockoptInt(int(fd), syscall.IPPROTO_TCP, tcpUserTimeout, int((d+time.Millisecond-1)/time.Millisecond))
	})
}
