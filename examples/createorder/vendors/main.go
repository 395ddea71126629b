// Command vendor is the payment vendor or the mail vendor of the createorder example. It is a process of its own,
// honors idempotency keys, refuses calls without a key, and keeps its ledger on disk, so the ledger survives a kill.
//
//	vendor -kind payment -listen 127.0.0.1:0 -ledger payment.ledger
//
// It prints one line of JSON with its address, then serves:
//
//	POST /v1/charges           (mail: /v1/messages; any path works)
//	GET  /lookup?key=...
//	     /_control/...         faults, open calls, the ledger: see samekeytest.Vendor
//
// A payment whose body has "declined": true, at the top or in its "card", is answered 402 card_declined. A vendor that
// is started again on the same ledger remembers its keys. It stops on SIGTERM, SIGINT or SIGHUP.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/samekey/samekey/samekeytest"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// settings are the command line.
type settings struct {
	kind   string
	listen string
	vendor samekeytest.VendorOptions
}

// run returns the exit code: 0 after a stop, 1 after a failure, 2 for an invalid command line.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	s, err := parse(args, stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		fmt.Fprintln(stderr, "vendor:", err)
		return 2
	}
	if err := serve(ctx, s, stdout); err != nil {
		fmt.Fprintln(stderr, "vendor:", err)
		return 1
	}
	return 0
}

func parse(args []string, stderr io.Writer) (settings, error) {
	var s settings
	var identity, faults string
	flags := flag.NewFlagSet("vendor", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.StringVar(&s.kind, "kind", "payment", "payment or mail")
	flags.StringVar(&s.listen, "listen", "127.0.0.1:0", "address to listen on")
	flags.StringVar(&s.vendor.LedgerFile, "ledger", "", "file that keeps the ledger; in memory if empty")
	flags.StringVar(&identity, "identity", "order_id", "member of the body that names the business operation")
	flags.StringVar(&faults, "faults", "", "faults to deal out, such as lose_answer,reset_before,500,429(1)")
	flags.IntVar(&s.vendor.Faults.Every, "fault-every", 1, "deal a fault to each n-th key")
	flags.IntVar(&s.vendor.Faults.Calls, "fault-calls", 1, "deal a fault to this many first calls of such a key")
	flags.Uint64Var(&s.vendor.Faults.Seed, "seed", 1, "determines the order of the faults")
	flags.BoolVar(&s.vendor.IgnoreKeys, "ignore-keys", false, "do not honor keys: every call is an effect")
	if err := flags.Parse(args); err != nil {
		return s, err
	}
	if flags.NArg() > 0 {
		return s, fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	switch s.kind {
	case "payment":
		s.vendor.Answer = charge
	case "mail":
		s.vendor.Answer = send
	default:
		return s, fmt.Errorf("-kind %q: want payment or mail", s.kind)
	}
	s.vendor.Identity = samekeytest.IdentityField(identity)
	s.vendor.Answer = required(identity, s.vendor.Identity, s.vendor.Answer)
	var err error
	s.vendor.Faults.Faults, err = samekeytest.ParseFaults(faults)
	return s, err
}

// serve serves until ctx ends. Then it ends every open call without an answer.
func serve(ctx context.Context, s settings, stdout io.Writer) error {
	vendor, err := samekeytest.NewVendor(&s.vendor)
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", s.listen)
	if err != nil {
		return errors.Join(err, vendor.Close())
	}
	server := &http.Server{Handler: vendor, ReadHeaderTimeout: 10 * time.Second}
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(listener) }()

	addr := listener.Addr().String()
	err = json.NewEncoder(stdout).Encode(map[string]string{"kind": s.kind, "addr": addr, "url": "http://" + addr})
	if err == nil {
		select {
		case <-ctx.Done():
		case err = <-failed:
		}
	}
	return errors.Join(err, vendor.Close(), server.Close())
}
