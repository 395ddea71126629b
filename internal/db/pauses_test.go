package db_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/samekey/samekey/internal/db"
	"github.com/samekey/samekey/internal/sqlstate"
)

// pauses returns the pauses in force and the ended ones, in order.
func (s *queue) pauses() string {
	s.Helper()
	return s.text(`select coalesce(string_agg(concat_ws(' ', destination, nullif(action, ''), paused_by, coalesce(ended_by, 'in force')), ', '
		order by destination, action, id), '') from samekey.pauses`)
}

// River's pauses and their copies, in each case that queries/pauses.sql lists.
func TestRiverPausesAndCopiesStayInSync(t *testing.T) {
	s := newQueue(t)
	const row = `insert into samekey.river_queue (name, created_at, updated_at, paused_at) values ('samekey_bank', '2026-01-0%d', now(), %s)`
	paused, running := func(n int) string { return fmt.Sprintf(row, n, "'2026-01-05'") }, func(n int) string { return fmt.Sprintf(row, n, "null") }
	const gone, copied = `delete from samekey.river_queue`, `insert into samekey.pauses (destination, paused_at, paused_by, reason, river_queue_created_at)
		select 'bank', '2026-01-05', 'river', 'r', '2026-01-01'`
	const ended = copied + `; update samekey.pauses set ended_at = now(), ended_by = 'ann', end_reason = 'r'`
	person := `insert into samekey.pauses (destination, paused_by, reason) values ('bank', 'ann', 'r')`
	for _, c := range []struct {
		name    string
		before  []string
		changes []string
		pauses  string
		river   string // "paused" or "running"
	}{
		{"nothing is paused", []string{running(1)}, nil, "", "running"},
		{"paused in River", []string{paused(1)}, []string{"copied"}, "bank river in force", "paused"},
		{"paused in River and by a person", []string{paused(1), person}, []string{"copied"}, "bank ann in force, bank river in force", "paused"},
		{"copied before", []string{paused(1), copied}, nil, "bank river in force", "paused"},
		{"copied and ended before", []string{paused(1), ended}, []string{"copied"}, "bank river ann, bank river in force", "paused"},
		{"resumed in River", []string{running(1), copied}, []string{"ended"}, "bank river river", "running"},
		{"resumed in River, not by a person", []string{running(1), person}, nil, "bank ann in force", "running"},
		{"resumed after the copy ended", []string{running(1), ended}, nil, "bank river ann", "running"},
		{"the row is deleted", []string{copied}, nil, "bank river in force", ""},
		{"another row, not paused", []string{running(2), copied}, []string{"restored"}, "bank river in force", "paused"},
		{"another row, paused", []string{paused(2), copied}, nil, "bank river in force", "paused"},
		{"a queue of another program", []string{`insert into samekey.river_queue (name, updated_at, paused_at) values ('Bank', now(), now()), ('samekey_Bank', now(), now())`}, nil, "", "paused"},
	} {
		s.exec(gone)
		s.exec(`delete from samekey.pauses`)
		for _, sql := range c.before {
			s.exec(sql)
		}
		changes, err := s.q.PausesSyncRiver(t.Context())
		var got []string
		for _, change := range changes {
			got = append(got, change.Change)
		}
		if err != nil || !slices.Equal(got, c.changes) || s.pauses() != c.pauses {
			t.Errorf("%s: %v, %v and %q; want %v and %q", c.name, got, err, s.pauses(), c.changes, c.pauses)
		}
		river := s.text(`select coalesce(string_agg(distinct case when paused_at is null then 'running' else 'paused' end, ' '), '') from samekey.river_queue`)
		if river != c.river {
			t.Errorf("%s: River's row is %s, want %s", c.name, river, c.river)
		}
		if !slices.Equal(c.changes, []string{"restored"}) { // there the resume below must count at once
			if again, err := s.q.PausesSyncRiver(t.Context()); err != nil || len(again) != 0 {
				t.Errorf("%s: a second sync changed %v, %v", c.name, again, err)
			}
		}
		if c.river == "paused" && s.pauses() != "" && s.text(`select (bool_and(r.paused_at = '2026-01-05') and bool_and(p.paused_at = r.paused_at or p.river_queue_created_at is null))::text
			from samekey.river_queue r, samekey.pauses p`) != "true" {
			t.Errorf("%s: since when it is paused is lost", c.name)
		}
		// A resume in the current row ends the copy.
		s.exec(`update samekey.river_queue set paused_at = null`)
		if _, err := s.q.PausesSyncRiver(t.Context()); err != nil {
			t.Fatal(err)
		}
		if n := s.text(`select count(*)::text from samekey.pauses where river_queue_created_at is not null and ended_at is null`); c.river != "" && n != "0" {
			t.Errorf("%s: after a resume in River %s copies are in force", c.name, n)
		}
	}
}

// A pause ends by a person or at its time, and is deleted later. Other pauses stay.
func TestPauseEndsAndIsDeletedAlone(t *testing.T) {
	s := newQueue(t)
	ctx := t.Context()
	add := func(destination, action string, until *time.Time) {
		t.Helper()
		if err := s.q.ActPause(ctx, db.ActPauseParams{Destination: destination, Action: action, Actor: "ann", Reason: "r", Until: until}); err != nil {
			t.Fatal(err)
		}
	}
	later := time.Now().Add(time.Hour)
	add("bank", "", nil)
	add("bank", "charge", nil)
	add("mail", "", &later)
	s.exec(`insert into samekey.river_queue (name, updated_at, paused_at) values ('samekey_bank', now(), now()), ('samekey_mail', now(), now())`)
	end := func(action string) error {
		t.Helper()
		return s.q.ActResume(ctx, db.ActResumeParams{Destination: "bank", Action: action, Actor: "bob", Reason: "r"})
	}
	paused := func() string {
		return s.text(`select coalesce(string_agg(name, ' ' order by name), '') from samekey.river_queue where paused_at is not null`)
	}
	if err := end("charge"); err != nil {
		t.Error(err)
	}
	if got := s.pauses() + "; " + paused(); got != "bank ann in force, bank charge ann bob, mail ann in force; samekey_bank samekey_mail" {
		t.Error(got)
	}
	if err := end(""); err != nil { // River's too
		t.Error(err)
	}
	s.exec(`update samekey.pauses set ended_by = 'first' where destination = 'bank'`)
	if err := end(""); sqlstate.Of(err) != sqlstate.StateRefuses {
		t.Errorf("ended twice: %v", err)
	}
	if got := s.pauses() + "; " + paused(); got != "bank ann first, bank charge ann first, mail ann in force; samekey_mail" {
		t.Error(got)
	}
	expire := func(want string) {
		t.Helper()
		if err := s.q.PausesExpire(ctx); err != nil {
			t.Fatal(err)
		}
		if got := s.pauses(); got != want {
			t.Errorf("%s; want %s", got, want)
		}
	}
	expire("bank ann first, bank charge ann first, mail ann in force")
	s.exec(`update samekey.pauses set until = now() - interval '1 minute'`)
	expire("bank ann first, bank charge ann first, mail ann samekey")
	s.exec(`update samekey.pauses set paused_at = now() - interval '2 years', ended_at = case destination when 'bank' then now() - interval '11 months' else now() - interval '13 months' end`)
	add("mail", "", nil)
	s.exec(`update samekey.pauses set paused_at = now() - interval '2 years'`)
	if err := s.q.PausesPrune(ctx); err != nil {
		t.Fatal(err)
	}
	if got := s.pauses(); got != "bank ann first, bank charge ann first, mail ann in force" {
		t.Errorf("after the tidying: %s", got)
	}
}
