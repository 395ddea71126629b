package wiretest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Network is a simulated host: a network namespace at the other end of a virtual cable. It is removed when the test
// ends, also if the test is killed.
type Network struct {
	t    testing.TB
	host netip.Addr
	run  chan func() // functions for the thread that is in the namespace
}

// NewNetwork creates a network. It needs root and the programs ip and nft. If the system does not allow a namespace,
// the test is skipped with the reason. If a program is missing, the test fails.
func NewNetwork(t testing.TB) *Network {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("cannot drop packets: only root can create a network namespace")
	}
	n := &Network{t: t, run: make(chan func())}
	thread := make(chan int, 1)
	failed := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked, so the thread and the namespace end with this goroutine
		if err := syscall.Unshare(syscall.CLONE_NEWNET); err != nil {
			failed <- err
			return
		}
		thread <- syscall.Gettid()
		for fn := range n.run {
			fn()
		}
	}()
	var id int
	select {
	case id = <-thread:
	case err := <-failed:
		if errors.Is(err, syscall.EPERM) || errors.Is(err, syscall.ENOSYS) || errors.Is(err, syscall.ENOSPC) {
			t.Skipf("cannot drop packets: the system does not allow a network namespace: %v", err)
		}
		t.Fatal(err)
	}
	t.Cleanup(func() { close(n.run) })
	// The range is reserved for network tests (RFC 2544).
	base := netip.AddrFrom4([4]byte{198, 18 + byte(rand.IntN(2)), byte(rand.IntN(256)), byte(rand.IntN(64) * 4)})
	here := base.Next()
	n.host = here.Next()
	name := fmt.Sprintf("sk%08x", rand.Uint32())
	command(t, "", "ip", "link", "add", name, "type", "veth", "peer", "name", name+"v", "netns", fmt.Sprint(id))
	t.Cleanup(func() { _ = exec.Command("ip", "link", "del", name).Run() })
	command(t, "", "ip", "address", "add", here.String()+"/30", "dev", name)
	command(t, "", "ip", "link", "set", name, "up")
	n.inside(func() {
		command(t, "", "ip", "address", "add", n.host.String()+"/30", "dev", name+"v")
		command(t, "", "ip", "link", "set", name+"v", "up")
	})
	return n
}

// Listen listens on a port of the simulated host.
func (n *Network) Listen() net.Listener {
	n.t.Helper()
	var listener net.Listener
	var err error
	n.inside(func() { listener, err = net.Listen("tcp", netip.AddrPortFrom(n.host, 0).String()) })
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() { _ = listener.Close() })
	return listener
}

// Drop makes the simulated host's firewall drop the packets that match these nft rules. They replace the rules of the
// last call. Without rules, nothing is dropped.
func (n *Network) Drop(rules ...string) {
	n.t.Helper()
	text := "table inet samekey {}\nflush table inet samekey\ntable inet samekey {\nchain input {\ntype filter hook input priority 0\n"
	for _, rule := range rules {
		text += rule + " counter drop\n"
	}
	n.inside(func() { command(n.t, text+"}\n}\n", "nft", "-f", "-") })
}

func (n *Network) inside(fn func()) {
	done := make(chan struct{})
	n.run <- func() { defer close(done); fn() }
	<-done
}

func command(t testing.TB, stdin, name string, args ...string) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Stdin = strings.NewReader(stdin)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
}
