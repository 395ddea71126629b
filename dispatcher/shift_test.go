package dispatcher_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/samekey/samekey/dispatcher"
)

const withoutRiver = "River began no drain within a second"

// onDrainInsert installs a trigger that runs this for each inserted drain job.
func (b *bundle) onDrainInsert(when, do string) {
	b.Helper()
	b.exec(`create function meddle() returns trigger language plpgsql security definer as $$ begin
		if new.kind = 'samekey.drain' then ` + do + ` end if; return new; end $$`)
	b.exec(`create trigger meddle ` + when + ` insert on samekey.river_job for each row execute function meddle()`)
}

// locked locks a table until it is released.
func (b *bundle) locked(table string) (release func()) {
	b.Helper()
	conn, err := pgx.Connect(b.ctx, b.db.DSN)
	if err != nil {
		b.Fatal(err)
	}
	if _, err := conn.Exec(b.ctx, "begin; lock table "+table+" in access exclusive mode"); err != nil {
		b.Fatal(err)
	}
	release = func() { _ = conn.Close(context.WithoutCancel(b.ctx)) }
	b.Cleanup(release)
	return release
}

// Due intents are delivered within seconds and a line is logged, whatever happens to the drain jobs.
func TestDeliveryWithoutRiverDrains(t *testing.T) {
	queue := dispatcher.QueueName("vendor")
	for name, spoil := range map[string]func(b *bundle){
		"clients whose clock is an hour ahead": func(b *bundle) {
			b.exec(`insert into samekey.river_job (args, kind, max_attempts, queue, scheduled_at) values ('{"destination":"vendor"}', 'samekey.drain', 1, $1, now() + interval '1 hour')`, queue)
			b.onDrainInsert("before", `new.scheduled_at := now() + interval '1 hour';`)
		},
		"jobs are deleted at once":    func(b *bundle) { b.onDrainInsert("after", `delete from samekey.river_job where id = new.id;`) },
		"a trigger keeps jobs out":    func(b *bundle) { b.onDrainInsert("before", `return null;`) },
		"a trigger refuses jobs":      func(b *bundle) { b.onDrainInsert("before", `raise 'no';`) },
		"jobs of another queue":       func(b *bundle) { b.onDrainInsert("before", `new.queue := 'elsewhere';`) },
		"the table of jobs is locked": func(b *bundle) { b.locked("samekey.river_job") },
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t)
			spoil(b)
			c := &counting{}
			d := b.counted(c, dispatcher.Limits{})
			b.start(d)
			b.insertMany("charge_card", 20)
			b.untilFinished()
			c.wantOnceEach(b, 20)
			b.logs.Wait(b, withoutRiver)
			b.sweeps(d, 1500*time.Millisecond)
			if n := strings.Count(b.logs.String(), withoutRiver); n != 1 {
				t.Errorf("the log has %d lines, want 1", n)
			}
		})
	}
}

func TestDrainsOfDeadClientsDelayNothing(t *testing.T) {
	for name, at := range map[string]string{"now": "now()", "two hours ago": "now() - interval '2 hours'", "in an hour": "now() + interval '1 hour'"} {
		t.Run(name, func(t *testing.T) {
			b := setup(t)
			b.exec(`insert into samekey.river_job (args, kind, max_attempts, queue, state, attempt, attempted_at, attempted_by, scheduled_at, created_at)
				select '{"destination":"vendor"}', 'samekey.drain', 1, $1, 'running', 1, `+at+`, '{gone}', `+at+`, `+at+` from generate_series(1, 20)`, dispatcher.QueueName("vendor"))
			c := &counting{}
			b.start(b.counted(c, dispatcher.Limits{}))
			b.insertMany("charge_card", 20)
			b.untilFinished()
			c.wantOnceEach(b, 20)
			b.until("River starts a drain of a live client", func() bool {
				return b.count(`select count(*) from samekey.river_job where kind = 'samekey.drain' and state = 'running' and attempted_by <> '{gone}'`) == 1
			})
		})
	}
}

// A job that River never fetched is deleted; otherwise such jobs would pile up.
func TestUnstartedDrainJobIsDeleted(t *testing.T) {
	b := setup(t)
	b.onDrainInsert("before", `new.scheduled_at := now() + interval '1 hour';`)
	d := b.counted(&counting{}, dispatcher.Limits{})
	d.SetShift(100 * time.Millisecond)
	b.start(d)
	jobs := func() (id, n int) {
		if err := b.db.QueryRow(b.ctx, `select coalesce(max(id), 0), count(*) from samekey.river_job where kind = 'samekey.drain'`).Scan(&id, &n); err != nil {
			t.Fatal(err)
		}
		return id, n
	}
	first := 0
	b.until("some were asked for", func() bool {
		id, n := jobs()
		if first == 0 {
			first = id
		}
		if n > 1 {
			t.Fatalf("%d drain jobs wait", n)
		}
		return id > first+1
	})
}

// A late job takes over the drain, so River shows who drains. Two drains never run.
func TestDrainWithoutRiverYieldsToRiversJob(t *testing.T) {
	b := setup(t)
	b.onDrainInsert("before", `new.scheduled_at := now() + interval '1 hour';`)
	c := &counting{}
	d := b.counted(c, dispatcher.Limits{})
	d.SetShift(10 * time.Minute) // the shift does not end before the job starts
	b.start(d)
	b.insertMany("charge_card", 5)
	b.untilFinished()
	b.logs.Wait(b, withoutRiver)
	b.exec(`drop trigger meddle on samekey.river_job`)
	b.exec(`insert into samekey.river_job (args, kind, max_attempts, queue) values ('{"destination":"vendor"}', 'samekey.drain', 1, $1)`, dispatcher.QueueName("vendor"))
	b.logs.Wait(b, "River begins drains again")
	if n := b.count(`select count(*) from samekey.river_job where kind = 'samekey.drain' and state = 'running'`); n != 1 {
		t.Errorf("%d drain jobs run, want 1", n)
	}
	b.insertManyMore("charge_card", 5)
	b.untilFinished()
	c.wantOnceEach(b, 10)
}

// An idle drain keeps running, so new work needs no job.
func TestIdleDrainTakesNewWork(t *testing.T) {
	b := setup(t)
	c := &counting{}
	d := b.counted(c, dispatcher.Limits{})
	b.start(d)
	drains := func() string {
		return value[string](b, `select coalesce(string_agg(id || ' ' || state, ', '), '') from samekey.river_job where kind = 'samekey.drain'`)
	}
	b.until("a drain runs", func() bool { return strings.HasSuffix(drains(), " running") })
	first := drains()
	for i := range 3 {
		b.sweeps(d, 400*time.Millisecond)
		b.insertManyMore("charge_card", 1)
		b.untilFinished()
		c.wantOnceEach(b, i+1)
	}
	if now := drains(); now != first {
		t.Errorf("the drains are %q, want still %q", now, first)
	}
}

const stuckText = "nothing is claimed although it is due"

// The last resort: if claims stop for any reason, the alarm is raised once, and ends by itself.
func TestStuckClaimsRaiseTheAlarm(t *testing.T) {
	for name, c := range map[string]struct {
		block func(b *bundle) (release func())
		says  string
	}{
		"a claim waits for a lock": {func(b *bundle) func() { return b.locked("samekey.outbox") }, "a claim has not ended"},
		"claims fail": {func(b *bundle) func() {
			b.exec(`create function refuse() returns trigger language plpgsql as $$ begin raise 'no claims today'; end $$`)
			b.exec(`create trigger refuse before update on samekey.outbox_queue for each row execute function refuse()`)
			return func() { b.exec(`drop trigger refuse on samekey.outbox_queue`) }
		}, "claims fail: Postgres refused a statement (SQLSTATE P0001)"},
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t)
			handled := &counting{}
			d := b.counted(handled, dispatcher.Limits{})
			d.SetAlarmAfter(700 * time.Millisecond)
			b.start(d)
			b.exec(`select samekey.enqueue('t', 'k' || i, 'charge_card', '{}', due_at => clock_timestamp() + interval '1 second') from generate_series(1, 3) i`)
			release := c.block(b)
			b.logs.Wait(b, stuckText)
			b.until("Ready names the destination and the cause", func() bool { // on a busy machine, a claim that fails runs long before
				err := d.Ready()
				return err != nil && strings.Contains(err.Error(), c.says) && strings.Contains(err.Error(), "vendor")
			})
			b.sweeps(d, 1500*time.Millisecond)
			if n := strings.Count(b.logs.String(), stuckText); n != 1 {
				t.Errorf("the log has %d lines, want 1", n)
			}
			release()
			b.untilFinished()
			b.until("it is ready again", func() bool { return d.Ready() == nil })
			b.logs.Wait(b, "due intents are claimed again")
			handled.wantOnceEach(b, 3)
		})
	}
}

func TestUnansweredSweepsRaiseTheAlarm(t *testing.T) {
	b := setup(t)
	d := b.counted(&counting{}, dispatcher.Limits{})
	d.SetAlarmAfter(time.Second)
	b.start(d)
	release := b.locked("samekey.outbox_queue")
	b.logs.Wait(b, "answered no sweep for long")
	b.until("it is not ready", func() bool { return d.Ready() != nil })
	release()
	b.logs.Wait(b, "answers sweeps again")
	b.until("it is ready again", func() bool { return d.Ready() == nil })
}

// A pause or a limit raises no alarm.
func TestIntendedWaitsRaiseNoAlarm(t *testing.T) {
	for name, prepare := range map[string]func(b *bundle) dispatcher.Limits{
		"paused": func(b *bundle) dispatcher.Limits {
			b.exec(`insert into samekey.pauses (destination, paused_by, reason) values ('vendor', 'ann', 'tired')`)
			return dispatcher.Limits{}
		},
		"its action is paused": func(b *bundle) dispatcher.Limits {
			b.exec(`insert into samekey.pauses (destination, action, paused_by, reason) values ('vendor', 'charge_card', 'ann', 'tired')`)
			return dispatcher.Limits{}
		},
		"at its rate":      func(*bundle) dispatcher.Limits { return dispatcher.Limits{Rate: 0.01, Burst: 1} },
		"all slots in use": func(*bundle) dispatcher.Limits { return dispatcher.Limits{Concurrency: 1} },
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t)
			limits := prepare(b)
			g := newGate(1)
			b.gates = append(b.gates, g)
			d := b.dispatcher()
			d.SetAlarmAfter(2 * time.Second)
			d.Destination("vendor", limits)
			handle(d, "charge_card", policyOf(dispatcher.IdempotentWrite), g.handle)
			b.insertMany("charge_card", 5)
			b.start(d)
			b.sweeps(d, 5*time.Second)
			if strings.Contains(b.logs.String(), stuckText) || d.Ready() != nil {
				t.Errorf("it is reported as stuck: %v", d.Ready())
			}
			b.exec(`delete from samekey.outbox_queue where status = 'pending'`)
		})
	}
}

// Too many outcomes that wait for locks stop all claims. The alarm reports that too.
func TestTooManyDelayedOutcomesRaiseTheAlarm(t *testing.T) {
	b := setup(t)
	c := &counting{}
	d := b.counted(c, dispatcher.Limits{})
	d.SetAlarmAfter(time.Second)
	b.start(d)
	release := d.HoldUpOutcomes(1000)
	b.insertMany("charge_card", 1)
	b.logs.Wait(b, "1000 outcomes wait")
	if d.Ready() == nil {
		t.Error("it is ready")
	}
	release()
	b.untilFinished()
	b.until("it is ready again", func() bool { return d.Ready() == nil })
}

// A slow claim of one action is not reported as a missing drain of another action. A drain begins with all actions in
// turn, and here the first of them has nothing due.
func TestAlarmNamesTheStuckClaim(t *testing.T) {
	b := setup(t)
	c := &counting{}
	d := b.dispatcher()
	d.SetAlarmAfter(time.Second)
	d.Destination("vendor", dispatcher.Limits{})
	handle(d, "charge_card", policyOf(dispatcher.IdempotentWrite), c.handle)
	handle(d, "refund", policyOf(dispatcher.IdempotentWrite), c.handle)
	b.insertMany("refund", 1)
	release := b.locked("samekey.outbox")
	b.start(d)
	b.logs.Wait(b, stuckText+": action refund")
	if strings.Contains(b.logs.String(), "no drain runs") {
		t.Error("the alarm reports that no drain runs")
	}
	release()
	b.untilFinished()
}
