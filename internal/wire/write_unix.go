//go:build unix

package wire

import (
	"errors"
	"net"
	"syscall"
)

// writeChecked calls check before each write(2). A large write consists of many, and the process can be suspended in
// any wait between them.
func writeChecked(to net.Conn, p []byte, check func() error) (n int, err error) {
	socket, ok := to.(syscall.Conn)
	if !ok {
		return 0, errors.New("the connection is not a socket, so nothing is sent")
	}
	raw, err := socket.SyscallConn()
	if err != nil {
		return 0, err
	}
	var failed error
	err = raw.Write(func(fd uintptr) (done bool) {
		for n < len(p) {
			if failed = check(); failed != nil {
				return true
			}
			m, e := syscall.Write(int(fd), p[n:])
			switch {
			case e == syscall.EAGAIN:
				return false // wait until it is writable
			case e == syscall.EINTR:
			case e != nil:
				failed = &net.OpError{Op: "write", Net: "tcp", Err: e}
				return true
			default:
				n += m
			}
		}
		return true
	})
	if failed != nil {
		err = failed
	}
	return n, err
}
