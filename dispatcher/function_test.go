package dispatcher_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/samekey/samekey/dispatcher"
	"github.com/samekey/samekey/internal/dbtest"
	"github.com/samekey/samekey/outbox"
	"github.com/samekey/samekey/schema"
)

// shop is a bundle with a worker's role and a role of the application, which owns the functions.
type shop struct {
	*attended
	roles   schema.Roles
	archive string                                         // of the next dispatcher
	d       func(options ...option) *dispatcher.Dispatcher // of the worker's role
}

func setupShop(t *testing.T) *shop {
	t.Helper()
	s := &shop{attended: setupAttended(t)}
	var dsn string
	s.roles, _, dsn = dbtest.Logins(t, s.db)
	pool := dbtest.Pool(t, dsn)
	s.d = func(options ...option) *dispatcher.Dispatcher {
		d := s.dispatcherOn(pool, dispatcher.Config{ArchiveFunction: s.archive})
		d.Destination("vendor", dispatcher.Limits{})
		handle(d, "charge_card", policyOf(dispatcher.IdempotentWrite), s.send, options...)
		handle(d, "send_receipt", policyOf(dispatcher.IdempotentWrite), s.post)
		return d
	}
	s.exec(`create schema shop`)
	s.exec(`create table shop.events (n bigint generated always as identity, event jsonb not null, who text not null default current_user)`)
	s.run(`grant usage on schema shop to APP, WORKER; grant insert on shop.events to APP`)
	return s
}

// run runs SQL in which APP and WORKER are the roles.
func (s *shop) run(sql string) {
	s.Helper()
	replaced := strings.NewReplacer("APP", pgx.Identifier{s.roles.App}.Sanitize(), "WORKER", pgx.Identifier{s.roles.Worker}.Sanitize()).Replace(sql)
	for _, statement := range strings.Split(replaced, "; ") {
		s.exec(statement)
	}
}

const goodHead = `create function shop.told(event jsonb) returns void language plpgsql security definer set search_path = shop, pg_temp as `

// function creates a function as it should be, with this body.
func (s *shop) function(body string) {
	s.Helper()
	s.exec(goodHead + `$$ begin ` + body + ` end $$`)
	s.run(`alter function shop.told(jsonb) owner to APP; revoke execute on function shop.told(jsonb) from public; grant execute on function shop.told(jsonb) to WORKER`)
}

func (s *shop) events() (events []map[string]any) {
	s.Helper()
	rows, err := s.db.Query(s.ctx, `select event::text from shop.events order by n`)
	if err != nil {
		s.Fatal(err)
	}
	texts, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		s.Fatal(err)
	}
	for _, text := range texts {
		event := map[string]any{}
		if err := json.Unmarshal([]byte(text), &event); err != nil {
			s.Fatal(err)
		}
		events = append(events, event)
	}
	return events
}

const record = `insert into events (event) values (event); `

func withFunctions(apply, attention string) option {
	return func(dl *delivery) { dl.ApplyFunction, dl.AttentionFunction = apply, attention }
}

// wantEvent compares an event's members, except for the times, which must be there.
func (s *shop) wantEvent(event map[string]any, want map[string]any) {
	s.Helper()
	for _, name := range []string{"created_at", "at"} {
		if text, ok := event[name].(string); ok && strings.HasPrefix(text, "20") {
			event[name] = "a time"
		}
	}
	if !reflect.DeepEqual(event, want) {
		s.Errorf("the function was told\n%v\nwant\n%v", event, want)
	}
}

func TestApplyFunctionGetsTheAnswer(t *testing.T) {
	s := setupShop(t)
	s.function(record + `perform samekey.enqueue(event->>'scope', event->>'key', 'send_receipt', '{"to":"ada"}'::jsonb, subject => event->>'subject');`)
	s.answers(dispatcher.Delivered(dispatcher.Response{Code: "201", ContentType: "application/json", Body: []byte(`{"id":"ch_1","amount":10.50}`)}).Reference("ch_1"))
	id := s.insert("charge_card", func(in *outbox.Intent) { in.Subject, in.Part = "order/42", "first" })
	s.expect(s.d(withFunctions("shop.told", "")), dispatcher.Summary{Delivered: 2})
	s.wantHistory(id, "attempt:delivered:201 apply:delivered:201")
	events := s.events()
	if len(events) != 1 {
		t.Fatalf("%d events", len(events))
	}
	s.wantEvent(events[0], map[string]any{
		"id": id.String(), "scope": "tenant/orders.create", "key": "order-1", "subject": "order/42", "action": "charge_card", "part": "first",
		"delivery_key": s.deliveryKey(id), "created_at": "a time", "reference": "ch_1", "code": "201", "outcome": "delivered", "resolved": false,
		"payload": map[string]any{"order": "order-1", "amount": 1.0}, "payload_base64": nil,
		"response": map[string]any{"id": "ch_1", "amount": 10.5}, "response_base64": nil, "response_type": "application/json",
	})
	if n := s.count(`select count(*) from samekey.outbox o join samekey.outbox f using (scope, idem_key, subject) where o.action = 'charge_card' and f.action = 'send_receipt'`); n != 1 {
		t.Errorf("%d receipts under the charge's key", n)
	}
	if who := value[string](s.bundle, `select who from shop.events`); who != s.roles.App {
		t.Errorf("the function ran as %s, want its owner %s", who, s.roles.App)
	}
	s.wantCalls(1)
}

func TestFunctionGetsBytesThatAreNoJSONB(t *testing.T) {
	s := setupShop(t)
	s.function(record)
	d := s.d(withFunctions("shop.told", "shop.told"))
	for body, want := range map[string]any{"": nil, "<html>": "PGh0bWw+", `"\u0000"`: "Ilx1MDAwMCI="} {
		s.exec(`delete from shop.events`)
		s.answers(dispatcher.Refused(dispatcher.Response{Code: "402", Body: []byte(body)}))
		s.insert("charge_card", func(in *outbox.Intent) {
			in.Payload, in.ContentType = []byte{0, 255}, "application/octet-stream"
		})
		s.expect(d, dispatcher.Summary{Refused: 1})
		event := s.events()[0]
		if event["response"] != nil || event["response_base64"] != want || event["payload"] != nil || event["payload_base64"] != "AP8=" || event["outcome"] != "refused" {
			t.Errorf("%q: the function was told %v", body, event)
		}
	}
}

func TestAttentionFunctionGetsTheEvent(t *testing.T) {
	s := setupShop(t)
	s.function(record)
	s.answers(dispatcher.Dead(dispatcher.Response{Code: "card_type"}).Because(errors.New("not this card")))
	id := s.insert("charge_card")
	d := s.d(withFunctions("", "shop.told"))
	s.expect(d, dispatcher.Summary{Dead: 1})
	intent := map[string]any{
		"id": id.String(), "scope": "tenant/orders.create", "key": "order-1", "subject": nil, "action": "charge_card", "part": "",
		"delivery_key": s.deliveryKey(id), "created_at": "a time", "reference": nil,
		"payload": map[string]any{"order": "order-1", "amount": 1.0}, "payload_base64": nil, "at": "a time",
		"code": "card_type", "status": "dead", "now": "dead", "event": "attempt", "error": "not this card", "actor": nil, "reason": nil,
	}
	s.wantEvent(s.events()[0], intent)
	s.exec(`select samekey.resolve($1, 'not_sent', 'ann', 'r'), samekey.cancel($1, 'ann', 'ordered twice')`, id)
	s.drain(d)
	for name, value := range map[string]any{"code": nil, "status": "cancelled", "now": "cancelled", "event": "cancelled", "error": nil, "actor": "ann", "reason": "ordered twice"} {
		intent[name] = value
	}
	s.wantEvent(s.events()[1], intent)
}

func TestFailedFunctionIsRetriedAndExplained(t *testing.T) {
	s := setupShop(t)
	s.function(record + `raise exception 'no order %', event->'payload'->>'order';`)
	s.answers(dispatcher.Delivered(dispatcher.Response{Code: "200"}))
	d := s.d(withFunctions("shop.told", "shop.told"))
	id := s.insert("charge_card")
	s.expect(d, dispatcher.Summary{Retried: 1})
	line := s.logs.Wait(t, "Apply failed")
	if !strings.Contains(line, "function shop.told, line 1: an error whose message is stored") || strings.Contains(line, "no order") {
		t.Errorf("the log says %s", line)
	}
	if text := value[string](s.bundle, `select error from samekey.outbox_history where intent_id = $1 and event = 'apply'`, id); !strings.Contains(text, "no order order-1") {
		t.Errorf("the history says %q", text)
	}
	if n := len(s.events()); n != 0 {
		t.Errorf("%d rows of a function that failed", n)
	}

	s.exec(`select samekey.enqueue('tenant/orders', 'k2', 'charge_card', '{}')`)
	s.exec(`select samekey.cancel(id, 'ann', 'r') from samekey.outbox where idem_key = 'k2'`)
	s.drain(d)
	s.logs.Wait(t, "Attention failed")
	if text := value[string](s.bundle, `select last_error from samekey.outbox_attention`); !strings.Contains(text, "no order") {
		t.Errorf("the event says %q", text)
	}

	// A right that the owner lacks is not the worker's.
	s.run(`revoke insert on shop.events from APP`)
	s.elapse(backoff)
	s.expect(d, dispatcher.Summary{Retried: 1})
	s.logs.Wait(t, "the function has the rights of its owner, not the worker's")

	s.run(`grant insert on shop.events to APP`)
	s.exec(`create or replace ` + strings.TrimPrefix(goodHead, "create ") + `$$ begin ` + record + ` end $$`)
	s.elapse(backoff)
	s.expect(d, dispatcher.Summary{Delivered: 1})
	if n := len(s.events()); n != 2 {
		t.Errorf("%d rows, want one for each event", n)
	}
}

// Each row breaks one rule. The worker does not start, registers nothing, and says what to do.
func TestFunctionsAreCheckedAtTheStart(t *testing.T) {
	s := setupShop(t)
	for name, c := range map[string]struct {
		change string
		want   []string
	}{
		"no schema":           {`drop schema shop cascade`, []string{`the schema "shop" does not exist in this database`}},
		"missing":             {`drop function shop.told(jsonb)`, []string{`there is no function shop.told(jsonb): create it`}},
		"other arguments":     {`drop function shop.told(jsonb); create function shop.told(a text, b int) returns void language sql as ''`, []string{`there is no function shop.told(jsonb), but shop.told(text,integer): give it one argument of type jsonb`}},
		"a procedure":         {`drop function shop.told(jsonb); create procedure shop.told(a jsonb) language sql as ''`, []string{`there is no function shop.told(jsonb), but shop.told(jsonb): give it`}},
		"invoker":             {`alter function shop.told(jsonb) security invoker`, []string{`shop.told would run with the rights of the worker: alter function shop.told(jsonb) security definer`}},
		"no search_path":      {`alter function shop.told(jsonb) reset search_path`, []string{`shop.told has no search_path of its own: alter function shop.told(jsonb) set search_path = shop, pg_temp`}},
		"pg_temp is first":    {`alter function shop.told(jsonb) set search_path = shop`, []string{`the search_path of shop.told must name its schemas and end with pg_temp`, `set search_path = shop, pg_temp`}},
		"the caller's schema": {`alter function shop.told(jsonb) set search_path = "$user", shop, pg_temp`, []string{`set search_path = shop, pg_temp`}},
		"an empty path":       {`alter function shop.told(jsonb) set search_path = ''`, []string{`set search_path = pg_catalog, pg_temp`}},
		"an open schema":      {`grant create on schema shop to public`, []string{`the search_path of shop.told has shop, in which every role may create objects: leave it out, or revoke create on schema shop from public`}},
		"a superuser's":       {`alter function shop.told(jsonb) owner to current_user`, []string{`shop.told belongs to "postgres", a superuser: alter function shop.told(jsonb) owner to a role of the application`}},
		"the worker's":        {`grant create on schema shop to WORKER; alter function shop.told(jsonb) owner to WORKER`, []string{`which has the rights of the worker: alter function`}},
		"of a worker":         {`grant WORKER to APP`, []string{`which has the rights of the worker: alter function`}},
		"not granted":         {`revoke execute on function shop.told(jsonb) from WORKER`, []string{`the worker may not call shop.told: grant usage on schema shop to "WORKER"; grant execute on function shop.told(jsonb) to "WORKER"`}},
		"schema not granted":  {`revoke usage on schema shop from WORKER`, []string{`the worker may not call shop.told`}},
		"everyone's":          {`grant execute on function shop.told(jsonb) to public`, []string{`every role may call shop.told, and so tell it what never happened: revoke execute on function shop.told(jsonb) from public`}},
		"all of it": {`drop function shop.told(jsonb); create function shop.told(event jsonb) returns void language sql as ''`, []string{
			`would run with the rights`, `no search_path of its own`, `a superuser`, `every role may call`}},
	} {
		t.Run(name, func(t *testing.T) {
			s := &shop{attended: &attended{bundle: s.with(t)}, roles: s.roles, d: s.d}
			s.exec(`drop schema if exists shop cascade`)
			s.exec(`create schema shop`)
			s.exec(`create table shop.events (event jsonb)`)
			s.run(`grant usage on schema shop to APP, WORKER`)
			s.function(record)
			_, err := s.d(withFunctions("shop.told", "")).Drain(s.ctx)
			if err != nil {
				t.Fatalf("before the change: %v", err)
			}
			s.exec(`delete from samekey.actions`)
			s.run(c.change)
			t.Cleanup(func() { s.run(`revoke WORKER from APP`) })
			_, err = s.d(withFunctions("shop.told", "shop.told")).Drain(s.ctx)
			var mistakes dispatcher.ConfigErrors
			if !errors.As(err, &mistakes) || len(mistakes) != 2*len(c.want) && name != "pg_temp is first" {
				t.Fatalf("Drain returned %v", err)
			}
			for _, want := range c.want {
				want = strings.ReplaceAll(want, "WORKER", s.roles.Worker)
				for _, field := range []string{"ApplyFunction", "AttentionFunction"} {
					if !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), `action "charge_card": `+field) {
						t.Errorf("Drain returned %v, want %q of %s", err, want, field)
					}
				}
			}
			if n := s.count(`select count(*) from samekey.actions`) + s.count(`select count(*) from samekey.workers`); n != 0 {
				t.Errorf("%d rows of a worker that did not start", n)
			}
			if err := s.d(withFunctions("shop.told", "")).Run(s.ctx); !errors.As(err, &mistakes) {
				t.Errorf("Run returned %v", err)
			}
		})
	}
}

// with returns the bundle for a subtest, which runs before the next one.
func (b *bundle) with(t *testing.T) *bundle {
	sub := *b
	sub.T = t
	return &sub
}

func TestFunctionNamesAreChecked(t *testing.T) {
	for name, ok := range map[string]bool{
		"shop.told": true, "shop.told_2$": true, "_s._f": true,
		"told": false, "Shop.told": false, "shop.told(jsonb)": false, "a.b.c": false, `shop."told"`: false, "shop.": false, "shop.told; select 1": false,
	} {
		d := dispatcher.New(nil, nil)
		d.Destination("vendor", dispatcher.Limits{})
		handle(d, "charge_card", policyOf(dispatcher.IdempotentWrite), nil, withFunctions(name, name), func(dl *delivery) {
			dl.Send = func(_ context.Context, _ *dispatcher.Call, _ []byte) (dispatcher.Outcome, error) {
				return dispatcher.Outcome{}, nil
			}
		})
		if err := d.Check(); (err == nil) != ok {
			t.Errorf("%q: %v", name, err)
		} else if !ok && strings.Count(err.Error(), fmt.Sprintf("%q is not the name of an SQL function", name)) != 2 {
			t.Errorf("%q: %v", name, err)
		}
	}
	d := dispatcher.New(nil, nil)
	d.Destination("vendor", dispatcher.Limits{})
	handle(d, "charge_card", policyOf(dispatcher.IdempotentWrite), nil, withFunctions("shop.told", "shop.told"), withApply(tellApply), withAttention(tell))
	if err := d.Check(); err == nil || !strings.Contains(err.Error(), "ApplyFunction: not allowed together with Apply") ||
		!strings.Contains(err.Error(), "AttentionFunction: not allowed together with Attention") {
		t.Errorf("both: %v", err)
	}
}

// The worker's role prunes: what it may not read or call, the archive does not get.
func TestWorkerArchivesWhatItPrunes(t *testing.T) {
	s := setupShop(t)
	s.function(record)
	d := s.d()
	s.answers(dispatcher.Delivered(dispatcher.Response{Code: "200"}))
	id := s.insert("charge_card")
	s.expect(d, dispatcher.Summary{Delivered: 1})
	s.exec(`update samekey.outbox_history set at = clock_timestamp() - interval '80 hours', key_window_until = null`)
	s.archive = "shop.told"

	s.exec(`alter table shop.events add constraint small check (length(event::text) < 10)`)
	d = s.d()
	if err := d.Upkeep(s.ctx, "forget"); err != nil {
		t.Fatal(err)
	}
	line := s.logs.Line("the archive function failed")
	if !strings.Contains(line, "level=ERROR") || !strings.Contains(line, "function=shop.told") || !strings.Contains(line, "small") || strings.Contains(line, "order-1") {
		t.Errorf("%q", line)
	}
	if n := s.count(`select count(*) from samekey.outbox where id = $1`, id); n != 1 {
		t.Error("the intent was pruned")
	}

	s.exec(`alter table shop.events drop constraint small`)
	if err := d.Upkeep(s.ctx, "forget"); err != nil {
		t.Fatal(err)
	}
	if n := s.count(`select count(*) from samekey.outbox`); n != 0 {
		t.Error("the intent was not pruned")
	}
	events := s.events()
	if len(events) != 1 || len(events[0]["intents"].([]any)) != 1 || events[0]["intents"].([]any)[0].(map[string]any)["id"] != id.String() {
		t.Errorf("the function got %v", events)
	}
	if who := value[string](s.bundle, `select who from shop.events`); who != s.roles.App {
		t.Errorf("the function ran as %s, want its owner %s", who, s.roles.App)
	}

	s.exec(`alter function shop.told(jsonb) security invoker`)
	if err := d.Run(s.ctx); err == nil || !strings.Contains(err.Error(), "ArchiveFunction") || !strings.Contains(err.Error(), "security definer") {
		t.Errorf("Run: %v", err)
	}
}
