package wire

import (
	"net"
	"syscall"
	"unsafe"
)

// unacknowledged returns how many bytes the kernel still holds for the socket: not sent yet, or not acknowledged by the
// other side's kernel. ok is false if that is not known.
func unacknowledged(socket net.Conn) (n int, ok bool) {
	at, ok := socket.(syscall.Conn)
	if !ok {
		return 0, false
	}
	raw, err := at.SyscallConn()
	if err != nil {
		return 0, false
	}
	var queued int32
	var errno syscall.Errno
	err = raw.Control(func(fd uintptr) { // SIOCOUTQ has the number of TIOCOUTQ
		_, _, errno = syscall.Syscall(syscall.SYS_IOCTL, fd, syscall.TIOCOUTQ, uintptr(unsafe.Pointer(&queued)))
	})
	return int(queued), err == nil && errno == 0
}
