package wiretest

import (
	"errors"
	"net"
	"os"
	"syscall"
	"testing"
	"unsafe"
)

// Listen listens on loopback until the test ends. Its listener works with DropData: Multipath TCP is off, because its
// sockets accept no filter.
func Listen(t testing.TB) *net.TCPListener {
	t.Helper()
	var config net.ListenConfig
	config.SetMultipathTCP(false)
	listener, err := config.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	return listener.(*net.TCPListener)
}

// NeedDropData skips the test if the system does not let this user attach a filter to a socket. Linux allows it to every
// user; some sandboxes allow it to root only.
func NeedDropData(t testing.TB) {
	t.Helper()
	err := DropData(Listen(t))
	switch {
	case errors.Is(err, syscall.EPERM) && os.Geteuid() != 0:
		t.Skip("cannot drop packets: the system lets only root attach a filter to a socket")
	case err != nil:
		t.Fatal(err)
	}
}

// DropData makes the kernel drop each TCP segment with data that arrives at the socket, before TCP sees it. The sender
// keeps the data in its queue and retransmits it. Handshakes, closes and resets pass. Connections that a listener
// accepts inherit the filter. See NeedDropData.
func DropData(socket syscall.Conn) error {
	program := [...]syscall.SockFilter{
		{Code: 0x30, K: 12},              // load the byte with the header's length
		{Code: 0x74, K: 2},               // convert it
		{Code: 0x54, K: 0x3c},            // to bytes
		{Code: 0x07},                     // keep it in X
		{Code: 0x80},                     // load the segment's length
		{Code: 0x1c},                     // subtract X
		{Code: 0x15, Jt: 0, Jf: 1, K: 0}, // is the data empty?
		{Code: 0x06, K: 0xffffffff},      // yes: pass
		{Code: 0x06, K: 0},               // no: drop
	}
	fprog := syscall.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	return setFilter(socket, syscall.SO_ATTACH_FILTER, unsafe.Pointer(&fprog), unsafe.Sizeof(fprog))
}

// PassData removes the filter of DropData.
func PassData(socket syscall.Conn) error {
	var unused int32
	return setFilter(socket, syscall.SO_DETACH_FILTER, unsafe.Pointer(&unused), unsafe.Sizeof(unused))
}

func setFilter(socket syscall.Conn, option uintptr, value unsafe.Pointer, size uintptr) error {
	raw, err := socket.SyscallConn()
	if err != nil {
		return err
	}
	var errno syscall.Errno
	err = raw.Control(func(fd uintptr) {
		_, _, errno = syscall.Syscall6(syscall.SYS_SETSOCKOPT, fd, syscall.SOL_SOCKET, option, uintptr(value), size, 0)
	})
	if err == nil && errno != 0 {
		err = errno
	}
	return err
}
