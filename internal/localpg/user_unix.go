//go:build unix

package localpg

import (
	"errors"
	"fmt"
	"os"
	osuser "os/user"
	"runtime"
	"strconv"
	"syscall"
)

// user is the user as which the child runs, if it is not the user of this process.
type user struct {
	name     string
	uid, gid int
}

// unprivileged returns the user for the child, or nil if this process may run Postgres itself.
func unprivileged() (*user, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		found, err := osuser.Lookup(name)
		if err != nil {
			continue
		}
		uid, err := strconv.Atoi(found.Uid)
		if err != nil || uid == 0 {
			continue
		}
		gid, err := strconv.Atoi(found.Gid)
		if err != nil {
			continue
		}
		return &user{name: name, uid: uid, gid: gid}, nil
	}
	return nil, errors.New("postgres refuses to run as root, and this system has no user named postgres or nobody: run this as another user")
}

// temporary is the default folder for the servers' folders. It is not os.TempDir: the unprivileged user may have no
// access to that, and its path may be so long that the path of the server's socket exceeds the limit of about 100
// bytes.
var temporary = "/tmp"

// makeDir makes a folder that only the server's user can enter.
func makeDir(parent string, user *user) (string, error) {
	dir, err := os.MkdirTemp(parent, "samekey-postgres-")
	if err != nil || user == nil {
		return dir, err
	}
	if err := os.Chown(dir, user.uid, user.gid); err != nil {
		_ = os.Remove(dir)
		return "", fmt.Errorf("change its owner to %s: %w", user.name, err)
	}
	return dir, nil
}

// attributes gives the child a process group of its own, so that the terminal's signals do not reach it, and the
// unprivileged user.
func attributes(user *user) *syscall.SysProcAttr {
	attributes := &syscall.SysProcAttr{Setpgid: true}
	if user != nil {
		attributes.Credential = &syscall.Credential{Uid: uint32(user.uid), Gid: uint32(user.gid)}
	}
	return attributes
}

// self returns the path of this executable. On Linux it is a link that also works if the user may not enter the
// executable's folder, or if the file was replaced or deleted.
func self() string {
	if runtime.GOOS == "linux" {
		return "/proc/self/exe"
	}
	path, err := os.Executable()
	if err != nil {
		return os.Args[0]
	}
	return path
}
