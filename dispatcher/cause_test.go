package dispatcher

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/samekey/samekey/internal/db"
)

func TestLogsNameTheCauseAndTheNextStep(t *testing.T) {
	for code, want := range map[string]string{
		"42501": "permission denied for table secret (SQLSTATE 42501): the worker's role lacks a right",
		"28P01": "check user, password", "3D000": "check the database's name", "42P01": "run `worker migrate`",
		"25006": "connect to the primary", "53300": "max_connections", "23505": "permission denied for table secret (SQLSTATE 23505)",
	} {
		err := fmt.Errorf("claim: %w", &pgconn.PgError{Code: code, Message: "permission denied for table secret", Detail: "Key (x)=(4711)"})
		if got := errorText(err); !strings.Contains(got, want) || strings.Contains(got, "4711") {
			t.Errorf("%s: %q", code, got)
		}
	}
	for _, code := range []string{"22P02", "P0001", "SK001", "XX000", ""} {
		err := &pgconn.PgError{Code: code, Message: `invalid input syntax for type uuid: "s3cret"`, ConstraintName: "outbox_once"}
		if got := errorText(err); strings.Contains(got, "s3cret") || !strings.Contains(got, "outbox_once") {
			t.Errorf("%s: %q", code, got)
		}
	}
}

// While the database is unavailable, each error is slightly different. The log has one text for all of them.
func TestOutageHasOneTextInTheLog(t *testing.T) {
	for _, tc := range []struct {
		err  error
		want string
	}{
		{fmt.Errorf("failed to receive message: %w", io.ErrUnexpectedEOF), "cannot reach the database: the connection was closed"},
		{&net.OpError{Op: "read", Err: os.NewSyscallError("read", syscall.ECONNRESET)}, "cannot reach the database: the connection was closed"},
		{&net.OpError{Op: "dial", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}, "cannot reach the database: connection refused"},
		{context.DeadlineExceeded, "cannot reach the database: no answer in time"},
		{&net.DNSError{Name: "db"}, "cannot reach the database: its name cannot be resolved"},
		{errors.New("another"), "another"},
	} {
		if got := errorText(tc.err); got != tc.want {
			t.Errorf("%v: %q, want %q", tc.err, got, tc.want)
		}
	}
}

func TestLoggedCauseHoldsNoPayloadKeyOrURL(t *testing.T) {
	c := &claim{OutboxQueueClaimRow: db.OutboxQueueClaimRow{IdemKey: "order-4711", Payload: []byte(`{"iban":"DE02120300000000202051","amount":1234567,"n":12,"ada@example.com":1}`)}}
	err := fmt.Errorf("charge order-4711: %w for DE02120300000000202051 over 1234567 for ada@example.com: %w",
		&url.Error{Op: "Post", URL: "https://user:pa55@pay.example/t0ken", Err: errors.New("connection refused")}, errors.New("no such account"))
	got := causeOf(c, err)
	for _, secret := range []string{"4711", "DE02", "1234567", "ada@", "pa55", "t0ken"} {
		if strings.Contains(got, secret) {
			t.Errorf("%q holds %q", got, secret)
		}
	}
	for _, want := range []string{"charge", "connection refused", "no such account"} {
		if !strings.Contains(got, want) {
			t.Errorf("%q lacks %q", got, want)
		}
	}
}
