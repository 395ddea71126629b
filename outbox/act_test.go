package outbox_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/samekey/samekey/internal/dbtest"
	"github.com/samekey/samekey/outbox"
	"github.com/samekey/samekey/samekeytest"
	"github.com/samekey/samekey/schema"
)

// logins are pools of the four roles.
type logins struct {
	roles                           schema.Roles
	app, worker, operator, approver *pgxpool.Pool
}

func newLogins(t *testing.T, on *samekeytest.DB) (l logins) {
	t.Helper()
	var dsns [4]string
	l.roles.App, dsns[0] = dbtest.Login(t, on)
	l.roles.Worker, dsns[1] = dbtest.Login(t, on)
	l.roles.Operator, dsns[2] = dbtest.Login(t, on)
	l.roles.Approver, dsns[3] = dbtest.Login(t, on)
	if err := schema.Grant(t.Context(), on.Pool, l.roles); err != nil {
		t.Fatal(err)
	}
	l.app, l.worker, l.operator, l.approver = dbtest.Pool(t, dsns[0]), dbtest.Pool(t, dsns[1]), dbtest.Pool(t, dsns[2]), dbtest.Pool(t, dsns[3])
	return l
}

// The rule compares logins, whatever actors the callers name.
func TestWriterAndRedriverCannotApprove(t *testing.T) {
	on := samekeytest.NewDB(t)
	l := newLogins(t, on)
	// The one login of a small team that has every right.
	all := l.roles
	all.Operator, all.Approver = l.roles.App, l.roles.App
	if err := schema.Grant(t.Context(), on.Pool, all); err != nil {
		t.Fatal(err)
	}
	both := schema.Roles{Operator: l.roles.Approver, Approver: l.roles.Approver}
	if err := schema.Grant(t.Context(), on.Pool, both); err != nil {
		t.Fatal(err)
	}
	id := dbtest.Insert(t, l.app, outbox.Intent{Action: "pay_out"})
	force(t, on, id, outbox.StatusAwaitingApproval, false, false)
	refusedAs(t, "by the login that wrote it", outbox.Approve(t.Context(), l.app, id, ada), outbox.StatusAwaitingApproval)

	force(t, on, id, outbox.StatusDead, false, false)
	if err := outbox.Redrive(t.Context(), l.approver, id, ada); err != nil {
		t.Fatal(err)
	}
	force(t, on, id, outbox.StatusAwaitingApproval, false, false)
	bob := outbox.By{Actor: "bob", Reason: "checked the invoice"}
	err := outbox.Approve(t.Context(), l.approver, id, bob)
	refusedAs(t, "by the login that redrove it", err, outbox.StatusAwaitingApproval)
	if err == nil || !strings.Contains(err.Error(), "the login that redrove it") {
		t.Errorf("the error does not say why: %v", err)
	}

	if err := schema.Grant(t.Context(), on.Pool, l.roles); err != nil {
		t.Fatal(err)
	}
	force(t, on, id, outbox.StatusDead, false, false)
	if err := outbox.Redrive(t.Context(), l.operator, id, ada); err != nil {
		t.Fatal(err)
	}
	force(t, on, id, outbox.StatusAwaitingApproval, false, false)
	if err := outbox.Approve(t.Context(), l.approver, id, bob); err != nil {
		t.Errorf("a login that only redrove it earlier: %v", err)
	}
	if e := get(t, on, id); e.Status != outbox.StatusPending || e.History[2].DBUser != l.roles.Approver || e.History[2].Actor != "bob" ||
		e.History[1].DBUser != l.roles.Operator {
		t.Errorf("%+v", e.History)
	}
}

// SET ROLE changes the rights of a session, not its login.
func TestTwoPersonRuleIgnoresSetRole(t *testing.T) {
	on := samekeytest.NewDB(t)
	l := newLogins(t, on)
	id := dbtest.Insert(t, on, outbox.Intent{Action: "pay_out"}) // as the owner, a superuser
	force(t, on, id, outbox.StatusAwaitingApproval, false, false)
	tx := begin(t, on)
	if _, err := tx.Exec(t.Context(), fmt.Sprintf(`set local role %q`, l.roles.Approver)); err != nil {
		t.Fatal(err)
	}
	refusedAs(t, "as another role", outbox.Approve(t.Context(), tx, id, ada), outbox.StatusAwaitingApproval)
}

func TestActsWithoutTheRightSayWhichRole(t *testing.T) {
	on := samekeytest.NewDB(t)
	l := newLogins(t, on)
	id := dbtest.Insert(t, l.app, outbox.Intent{Action: "pay_out"})
	force(t, on, id, outbox.StatusAwaitingApproval, false, false)
	for name, err := range map[string]error{
		"the worker approves":     outbox.Approve(t.Context(), l.worker, id, ada),
		"the operator approves":   outbox.Approve(t.Context(), l.operator, id, ada),
		"the approver rejects":    outbox.Reject(t.Context(), l.approver, id, ada),
		"the application cancels": outbox.Cancel(t.Context(), l.app, id, ada),
		"the worker pauses":       outbox.Pause(t.Context(), l.worker, outbox.Target{Destination: "bank"}, time.Time{}, ada),
	} {
		pg := (*pgconn.PgError)(nil)
		if !errors.As(err, &pg) || pg.Code != "42501" || !strings.Contains(err.Error(), "schema.Roles") {
			t.Errorf("%s: %v, want it denied with what to do", name, err)
		}
	}
	if e := get(t, on, id); e.Status != outbox.StatusAwaitingApproval || len(e.History) != 0 {
		t.Errorf("%+v", e)
	}
}

// psql and other languages get each refusal in fields.
func TestActErrorsHaveFields(t *testing.T) {
	on := samekeytest.NewDB(t)
	pending, dead := insert(t, on, outbox.Intent{Action: "a"}), insert(t, on, outbox.Intent{Action: "a"})
	force(t, on, dead, outbox.StatusDead, true, false)
	for _, c := range []struct {
		sql                          string
		id                           uuid.UUID
		code, column, state, hintHas string
	}{
		{`select samekey.redrive($1, 'ada', 'r')`, uuid.New(), "SK010", "", "", "pruned"},
		{`select samekey.redrive($1, 'ada', 'r')`, pending, "SK011", "", "pending", "cancel takes it back"},
		{`select samekey.redrive($1, 'ada', 'r')`, dead, "SK011", "", "dead", "must not be sent twice"},
		{`select samekey.redrive($1, '', 'r')`, dead, "22023", "actor", "", ""},
		{`select samekey.redrive($1, 'ada', e' \n\u00a0')`, dead, "22023", "reason", "", ""},
		{`select samekey.redrive($1, 'ada', null)`, dead, "22023", "reason", "", ""},
		{`select samekey.redrive($1, repeat('a', 256), 'r')`, dead, "22023", "actor", "", ""},
		{`select samekey.redrive($1, 'a', repeat('r', 4097))`, dead, "22023", "reason", "", ""},
		{`select samekey.resolve($1, 'gone', 'ada', 'r')`, dead, "22023", "outcome", "", ""},
		{`select samekey.resolve($1, null, 'ada', 'r')`, dead, "22023", "outcome", "", ""},
		{`select samekey.resolve($1, 'refused', 'ada', 'r', code => e'a\nb')`, dead, "22023", "code", "", ""},
		{`select samekey.resolve($1, 'refused', 'ada', 'r', response_type => repeat('t', 256))`, dead, "22023", "response_type", "", ""},
		{`select samekey.resolve($1, 'refused', 'ada', 'r', response => convert_to(repeat('t', 1048577), 'UTF8'))`, dead, "22023", "response", "", ""},
		{`select samekey.resolve($1, 'refused', 'ada', 'r', reference => repeat('t', 256))`, dead, "22023", "reference", "", ""},
		{`select samekey.resume('bank', 'ada', 'r') where $1::uuid is not null`, dead, "SK011", "", "not_paused", ""},
		{`select samekey.pause('Bank', 'ada', 'r') where $1::uuid is not null`, dead, "22023", "destination", "", ""},
		{`select samekey.pause('bank', 'ada', 'r', action => 'A') where $1::uuid is not null`, dead, "22023", "action", "", ""},
		{`select samekey.pause('bank', 'ada', 'r', until => '2020-01-01') where $1::uuid is not null`, dead, "22023", "until", "", ""},
		{`select samekey.endpoint_put('bank', '', 'https://h', 'ada', 'r') where $1::uuid is not null`, dead, "22023", "name", "", ""},
		{`select samekey.endpoint_put('bank', 'n', 'ftp://h', 'ada', 'r') where $1::uuid is not null`, dead, "22023", "url", "", ""},
		{`select samekey.endpoint_put('bank', 'n', 'https://h', 'ada', 'r', array['v1,whsec_s3cret']) where $1::uuid is not null`, dead, "22023", "secrets", "", ""},
		{`select samekey.endpoint_put('bank', 'n', 'https://h', 'ada', 'r', array['a', null]) where $1::uuid is not null`, dead, "22023", "secrets", "", ""},
	} {
		_, err := on.Exec(t.Context(), c.sql, c.id)
		pg := (*pgconn.PgError)(nil)
		if !errors.As(err, &pg) || pg.Code != c.code || pg.ColumnName != c.column || pg.ConstraintName != c.state || !strings.Contains(pg.Hint, c.hintHas) {
			t.Errorf("%s: %+v", c.sql, err)
		}
		if err != nil && strings.Contains(fmt.Sprintf("%+v", pg), "s3cret") {
			t.Errorf("%s: the error shows a secret: %v", c.sql, err)
		}
	}
	if e := get(t, on, dead); e.Status != outbox.StatusDead || len(e.History) != 0 {
		t.Errorf("%+v", e)
	}
}

// What psql prints after an act: the actions that have something to do.
func TestActsReturnTheActionsToWake(t *testing.T) {
	on := samekeytest.NewDB(t)
	head, next := insert(t, on, outbox.Intent{Action: "a", OrderingKey: "o"}), insert(t, on, outbox.Intent{Action: "b", OrderingKey: "o"})
	force(t, on, head, outbox.StatusDead, false, false)
	for _, c := range []struct {
		act, want string
		id        uuid.UUID
	}{
		{"resolve($1, 'not_sent', 'ada', 'r')", "{}", head},
		{"cancel($1, 'ada', 'r')", "{b}", head},
		{"cancel($1, 'ada', 'r')", "{}", next},
	} {
		if got := dbtest.Value[string](t, on, "select samekey."+c.act+"::text", c.id); got != c.want {
			t.Errorf("%s: %s, want %s", c.act, got, c.want)
		}
	}
}
