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

// user is whom the child runs as, where that is not who we are.
type user struct {
	name     string
	uid, gid int
}

// unprivileged is nil where this process may run Postgres itself.
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
	return nil, errors.New("postgres refuses to run as root, and there is neither a user postgres nor nobody: run this as another user")
}

// temporary holds the servers' folders by default. It is not os.TempDir: that can be closed
// to the unprivileged user, or so deep that the path of the server's socket gets
// longer than the 100 bytes or so which a socket's path may have.
var temporary = "/tmp"

// makeDir makes a folder that only the server's user can enter.
func makeDir(parent string, user *user) (string, error) {
	dir, err := os.MkdirTemp(parent, "samekey-postgres-")
	if err != nil || user == nil {
		return dir, err
	}
	if err := os.Chown(dir, user.uid, user.gid); err != nil {
		_ = os.Remove(dir)
		return "", fmt.Errorf("give it to user %s: %w", user.name, err)
	}
	return dir, nil
}

// attributes puts the child into a process group of its own, out of reach of
// the terminal's signals, and makes it the unprivileged user.
func attributes(user *user) *syscall.SysProcAttr {
	attributes := &syscall.SysProcAttr{Setpgid: true}
	if user != nil {
		attributes.Credential = &syscall.Credential{Uid: uint32(user.uid), Gid: uint32(user.gid)}
	}
	return attributes
}

// self is this executable. On Linux by a link that works for a user who may not
// enter its folder, and after the file was replaced or deleted.
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
