package wire

import (
	"net"
	"syscall"
	"time"
)

// tcpUserTimeout is TCP_USER_TIMEOUT, which package syscall does not name.
const tcpUserTimeout = 18

// retransmitFor limits the time for which the kernel retransmits written data, also while this process is suspended.
// Zero restores the system's limit of about 15 minutes. If the limit cannot be set, for example on a closed socket, End
// still drops the queued data.
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
