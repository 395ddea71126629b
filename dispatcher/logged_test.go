package dispatcher_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/samekey/samekey/dispatcher"
	"github.com/samekey/samekey/internal/dbtest"
	"github.com/samekey/samekey/outbox"
	"github.com/samekey/samekey/processed"
)

func TestLogExplainsAFailedHandler(t *testing.T) {
	b := setup(t)
	d := b.dispatcher()
	d.Destination("vendor", dispatcher.Limits{})
	const iban = "DE02120300000000202051"
	handle(d, "charge_card", policyOf(dispatcher.NonIdempotentWrite), func(context.Context, *dispatcher.Call) (dispatcher.Outcome, error) {
		return dispatcher.Outcome{}, errors.New("the bank closed " + iban + " on Monday")
	})
	id := b.insert("charge_card", func(in *outbox.Intent) { in.Payload = map[string]string{"iban": iban} })
	b.expect(d, dispatcher.Summary{Unknown: 1})
	b.elapse(time.Minute) // there is no lookup
	b.expect(d, dispatcher.Summary{Parked: 1})
	for _, want := range []string{"the bank closed [redacted] on Monday", id.String()} {
		if line := b.logs.Line("attempt ended"); !strings.Contains(line, want) {
			t.Errorf("the line lacks %q: %s", want, line)
		}
	}
	if line := b.logs.Line("status=parked"); !strings.Contains(line, "level=ERROR") || !strings.Contains(line, "outbox.Resolve") {
		t.Errorf("the line has no next step: %s", line)
	}
	if strings.Contains(b.logs.String(), iban) {
		t.Errorf("a log holds the payload: %s", b.logs)
	}
}

func TestLogExplainsAFailedApply(t *testing.T) {
	b := setup(t)
	d := b.handles(dispatcher.IdempotentWrite, nil, withApply(
		func(ctx context.Context, tx pgx.Tx, _ []byte, _ dispatcher.Settled) error {
			_, err := tx.Exec(ctx, `insert into no_such_table values (1)`)
			return err
		}))
	b.insert("charge_card")
	b.expect(d, dispatcher.Summary{Retried: 1})
	line := b.logs.Line("Apply failed")
	for _, want := range []string{`relation \"no_such_table\" does not exist`, "SQLSTATE 42P01"} {
		if !strings.Contains(line, want) {
			t.Errorf("the line lacks %q: %s", want, line)
		}
	}
}

// A mistake in the connection string or in the grants ends Run: a supervisor sees it, and the error says what to do.
func TestRunEndsOnPermanentErrors(t *testing.T) {
	b := setup(t)
	role, _ := dbtest.Login(t, b.db)
	for name, tc := range map[string]struct {
		change func(*pgxpool.Config)
		code   []string
		says   string
	}{
		"a role without rights": {func(c *pgxpool.Config) { c.ConnConfig.User, c.ConnConfig.Password = role, "secret" }, []string{"42501"}, "worker migrate -worker-role"},
		"another database":      {func(c *pgxpool.Config) { c.ConnConfig.Database = "samekey_no_such_database" }, []string{"3D000"}, "check the database's name"},
		"a role that is not there": {func(c *pgxpool.Config) { c.ConnConfig.User, c.ConnConfig.Password = "samekey_no_such_role", "wrong" },
			[]string{"28000", "28P01"}, "check user, password and role"},
	} {
		t.Run(name, func(t *testing.T) {
			config, err := pgxpool.ParseConfig(b.db.DSN)
			if err != nil {
				t.Fatal(err)
			}
			tc.change(config)
			pool, err := pgxpool.NewWithConfig(t.Context(), config)
			if err != nil {
				t.Fatal(err)
			}
			defer pool.Close()
			d := b.dispatcherOn(pool, dispatcher.Config{})
			d.Destination("vendor", dispatcher.Limits{})
			handle(d, "charge_card", policyOf(dispatcher.Read), b.post)
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			err = d.Run(ctx)
			var pgErr *pgconn.PgError
			if !errors.As(err, &pgErr) || !strings.Contains(strings.Join(tc.code, " "), pgErr.Code) || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("Run returned %v, want one of %v that says %q", err, tc.code, tc.says)
			}
		})
	}
}

// While the database is unavailable, the log has a few lines, each of them once.
func TestOutageIsLoggedInAFewLines(t *testing.T) {
	b := setup(t)
	pool, w := b.wired()
	d := b.dispatcherOn(pool, dispatcher.Config{SweepInterval: 50 * time.Millisecond})
	d.Destination("vendor", dispatcher.Limits{})
	handle(d, "charge_card", policyOf(dispatcher.Read), b.post)
	b.start(d)
	before := len(b.logs.String()) // the start warns about the settings of the tests' server
	w.set(true)
	b.until("the worker knows", func() bool { return d.Ready() != nil })
	<-time.After(5 * time.Second) // the test counts lines per time
	during := b.logs.String()[before:]
	if n := strings.Count(during, "level=WARN") + strings.Count(during, "level=ERROR"); n > 12 {
		t.Errorf("%d lines were logged within 5 s:\n%s", n, during)
	}
	w.set(false)
	b.until("it is ready again", func() bool { return d.Ready() == nil })
}

// The documented recovery after the vendor refused the bytes: a redrive would send them again.
func TestRecoveryAfterRefusedBytes(t *testing.T) {
	for _, class := range []dispatcher.Class{dispatcher.IdempotentWrite, dispatcher.NonIdempotentWrite} {
		t.Run(class.String(), func(t *testing.T) {
			b := setup(t)
			d := b.dispatcher()
			d.Destination("vendor", dispatcher.Limits{})
			dispatcher.Handle(d, outbox.NewAction[map[string]string]("charge_card"), dispatcher.Delivery[map[string]string]{
				Policy: policyOf(class),
				Send: func(_ context.Context, _ *dispatcher.Call, c map[string]string) (dispatcher.Outcome, error) {
					if c["currency"] != "eur" {
						return dispatcher.Dead(dispatcher.Response{Code: "400"}).Because(errors.New("unknown currency")), nil
					}
					return dispatcher.Delivered(dispatcher.Response{Code: "200"}), nil
				},
			})
			bad := b.insert("charge_card", func(in *outbox.Intent) { in.Payload = map[string]string{"currency": "ero"} })
			b.expect(d, dispatcher.Summary{Dead: 1})
			by := outbox.By{Actor: "ada", Reason: "wrong currency"}
			if err := outbox.Redrive(t.Context(), b.db.Pool, bad, by); err != nil {
				t.Fatal(err)
			}
			b.expect(d, dispatcher.Summary{Dead: 1}) // the same bytes

			entry, err := outbox.Get(t.Context(), b.db.Pool, bad)
			if err != nil {
				t.Fatal(err)
			}
			err = pgx.BeginFunc(t.Context(), b.db.Pool, func(tx pgx.Tx) error {
				if err := outbox.Resolve(t.Context(), tx, bad, outbox.Resolution{Outcome: outbox.NotSent}, by); err != nil {
					return err
				}
				if err := outbox.Cancel(t.Context(), tx, bad, by); err != nil {
					return err
				}
				_, err := outbox.Insert(t.Context(), tx, outbox.Intent{Key: entry.Key, Action: "charge_card", Part: "corrected-1", Payload: map[string]string{"currency": "eur"}})
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
			b.expect(d, dispatcher.Summary{Delivered: 1})
		})
	}
}

// An operation that no caller resumes is never pruned. So the worker reports it.
func TestLogReportsAbandonedOperations(t *testing.T) {
	b := setup(t)
	d := b.handles(dispatcher.IdempotentWrite, nil)
	own := errors.New("own")
	_, err := processed.Steps(b.ctx, b.db.Pool, processed.Request{Key: dbtest.Key(t, "k"), Payload: []byte(`1`)}, func(ctx context.Context, op *processed.Operation) (int, error) {
		if _, err := processed.Step(ctx, op, "reserve", func(context.Context, pgx.Tx) (int, error) { return 1, nil }); err != nil {
			return 0, err
		}
		return 0, own
	})
	if !errors.Is(err, own) {
		t.Fatal(err)
	}
	dbtest.Exec(t, b.db, `update samekey.processed_events set expires_at = clock_timestamp()`)
	if err := d.Upkeep(b.ctx, "prune"); err != nil {
		t.Fatal(err)
	}
	if line := b.logs.Line("operations are past their retention"); !strings.Contains(line, "level=ERROR") || !strings.Contains(line, "operations=1") {
		t.Errorf("%q", line)
	}
}
