package db_test

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/samekey/samekey/internal/db"
	"github.com/samekey/samekey/internal/intent"
	"github.com/samekey/samekey/internal/sqlstate"
)

var (
	lifeSeed  = flag.Uint64("life.seed", 0, "seed of TestRandomLives; 0: another one each time")
	lifeSteps = flag.Int("life.steps", 300, "steps of TestRandomLives")
)

// life is the model of one intent: what the table of transitions says about it.
type life struct {
	id      uuid.UUID
	status  string
	key     string // its ordering key, or empty
	held    bool   // under a lease
	attempt int32
	stale   []int32 // attempts that another worker has taken over
	sentAs  int32   // the last attempt that was sent
	told    string  // the attention events that it must have
}

// TestRandomLives makes random events happen to a few intents, by the real queries, and holds each row in Postgres to
// the table of transitions.
func TestRandomLives(t *testing.T) {
	seed := *lifeSeed
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	t.Logf("go test ./internal/db -run RandomLives -life.seed=%d -life.steps=%d", seed, *lifeSteps)
	l := &lives{queue: newQueue(t), Rand: rand.New(rand.NewPCG(seed, seed)), seen: map[string]bool{}}
	l.exec(`insert into samekey.actions (action, attention) values ('charge', true)`)
	for range *lifeSteps {
		l.step()
		l.compare()
	}
	t.Logf("%d of %d transitions of the table were seen", len(l.seen), transitions())
}

type lives struct {
	*queue
	*rand.Rand
	all  []*life
	seen map[string]bool
}

// step makes one event happen.
func (l *lives) step() {
	if len(l.all) < 8 || l.IntN(6) == 0 {
		l.enqueue()
		return
	}
	x := l.all[l.IntN(len(l.all))]
	if l.IntN(4) == 0 {
		l.refused(x)
	}
	var possible []intent.Transition
	for _, step := range intent.Table {
		underLease := slices.Contains([]string{intent.EventAttempt, intent.EventLookup, intent.EventApply, intent.EventPostponed, intent.EventOrphaned}, step.Event)
		if step.From == x.status && step.From != intent.New && (!underLease || x.held) && (step.Event != intent.EventClaimed || !x.held) {
			possible = append(possible, step)
		}
	}
	if len(x.stale) > 0 && l.IntN(3) == 0 {
		l.lateAnswer(x)
		return
	}
	if len(possible) == 0 {
		return // finished
	}
	step := possible[l.IntN(len(possible))]
	to := step.To[l.IntN(len(step.To))]
	switch step.Event {
	case intent.EventClaimed:
		l.take(x)
	case intent.EventAttempt, intent.EventLookup, intent.EventApply:
		l.settle(x, step.Event, to)
	case intent.EventPostponed:
		l.postpone(x)
	case intent.EventOrphaned:
		l.orphan(x)
	case intent.EventApproved:
		// The login that redrove it cannot approve it.
		l.exec(`update samekey.outbox_history set db_user = 'another' where intent_id = $1 and event = 'redriven'`, x.id)
		l.must(acted(l.q.ActApprove(l.Context(), db.ActApproveParams{ID: x.id, Actor: "a", Reason: "r"})))
		l.moved(x, step.Event, intent.Pending)
	case intent.EventRedriven:
		l.unsend(x)
		l.must(acted(l.q.ActRedrive(l.Context(), db.ActRedriveParams{ID: x.id, Actor: "a", Reason: "r"})))
		l.moved(x, step.Event, intent.Pending)
	case intent.EventResolved:
		outcome := intent.OutcomeDelivered
		if to != intent.Answered {
			outcome = intent.OutcomeNotSent
		}
		l.must(acted(l.q.ActResolve(l.Context(), db.ActResolveParams{ID: x.id, Outcome: outcome, Actor: "a", Reason: "r"})))
		if x.held {
			x.stale = append(x.stale, x.attempt)
		}
		l.moved(x, step.Event, to)
	case intent.EventCancelled, intent.EventRejected:
		l.unsend(x)
		if step.Event == intent.EventCancelled {
			l.must(acted(l.q.ActCancel(l.Context(), db.ActCancelParams{ID: x.id, Actor: "a", Reason: "r"})))
		} else {
			l.must(acted(l.q.ActReject(l.Context(), db.ActRejectParams{ID: x.id, Actor: "a", Reason: "r"})))
		}
		l.moved(x, step.Event, to)
		l.promote(x.key)
	}
}

// refused makes events happen that the table does not have for the intent's status, and expects that each changes
// nothing.
func (l *lives) refused(x *life) {
	l.Helper()
	resolve := func(outcome string) func() (int64, error) {
		return func() (int64, error) {
			return acted(l.q.ActResolve(l.Context(), db.ActResolveParams{ID: x.id, Outcome: outcome, Actor: "a", Reason: "r"}))
		}
	}
	for _, attempt := range []struct {
		event string
		make  func() (int64, error)
	}{
		{intent.EventApproved, func() (int64, error) {
			return acted(l.q.ActApprove(l.Context(), db.ActApproveParams{ID: x.id, Actor: "a", Reason: "r"}))
		}},
		{intent.EventResolved, resolve(intent.OutcomeDelivered)},
		{intent.EventResolved, resolve(intent.OutcomeNotSent)},
		{intent.EventRejected, func() (int64, error) {
			return acted(l.q.ActReject(l.Context(), db.ActRejectParams{ID: x.id, Actor: "a", Reason: "r"}))
		}},
		{intent.EventCancelled, func() (int64, error) {
			return acted(l.q.ActCancel(l.Context(), db.ActCancelParams{ID: x.id, Actor: "a", Reason: "r"}))
		}},
		{intent.EventRedriven, func() (int64, error) {
			return acted(l.q.ActRedrive(l.Context(), db.ActRedriveParams{ID: x.id, Actor: "a", Reason: "r"}))
		}},
		{intent.EventRedriven, func() (int64, error) {
			row, err := l.q.ActRedriveAll(l.Context(), db.ActRedriveAllParams{Filter: fmt.Sprintf(`{"status": %q}`, x.status), MaxCount: 100, Actor: "a", Reason: "r"})
			if sqlstate.Of(err) == "22023" { // the filter takes dead and parked only
				err = nil
			}
			return int64(row.Changed), err
		}},
		{intent.EventClaimed, func() (int64, error) { return l.claimable(x), nil }},
	} {
		if slices.ContainsFunc(intent.Table, func(t intent.Transition) bool { return t.From == x.status && t.Event == attempt.event }) {
			continue
		}
		if rows, err := attempt.make(); err != nil || rows != 0 {
			l.Fatalf("%q was %s: %d rows, %v", x.status, attempt.event, rows, err)
		}
	}
}

// unsend makes an intent unsent: what may have been sent is neither cancelled nor, perhaps, redriven.
func (l *lives) unsend(x *life) {
	l.exec(`update samekey.outbox_queue set first_sent_at = null, key_window_until = null where id = $1`, x.id)
}

// claimable claims an intent that must not be claimed, and returns how many rows that gave.
func (l *lives) claimable(x *life) int64 {
	l.exec(`update samekey.outbox_queue set due_at = clock_timestamp() + case when id = $1 then interval '-1 second' else interval '1 hour' end`, x.id)
	answered, err := l.q.OutboxAnsweredClaim(l.Context(), db.OutboxAnsweredClaimParams{Action: "charge", Worker: 7, MaxCount: 10, Lease: time.Minute})
	if err != nil {
		l.Fatal(err)
	}
	return int64(len(answered) + len(l.claim(nil)))
}

func (l *lives) enqueue() {
	x := &life{status: intent.Pending}
	if l.IntN(2) == 0 {
		x.key = fmt.Sprint("order-", l.IntN(2))
	}
	l.keys++
	x.id = uuid.MustParse(l.text(`select samekey.enqueue('tenant/orders', $1, 'charge', '{}', ordering_key => nullif($2::text, ''))::text`, fmt.Sprintf("order-%d", l.keys), x.key))
	if x.key != "" && slices.ContainsFunc(l.all, func(y *life) bool { return y.key == x.key && !intent.IsFinished(y.status) }) {
		x.status = intent.Blocked
	}
	l.saw(intent.New, intent.EventInserted, x.status)
	l.all = append(l.all, x)
}

// take claims one intent: all others are put in the future for that time.
func (l *lives) take(x *life) {
	l.exec(`update samekey.outbox_queue set due_at = clock_timestamp() + case when id = $1 then interval '-1 second' else interval '1 hour' end`, x.id)
	if x.status == intent.Answered {
		rows, err := l.q.OutboxAnsweredClaim(l.Context(), db.OutboxAnsweredClaimParams{Action: "charge", Worker: 7, MaxCount: 10, Lease: time.Minute})
		if err != nil || len(rows) != 1 || rows[0].ID != x.id {
			l.Fatalf("claimed %+v to be applied, %v", rows, err)
		}
		x.attempt = rows[0].Attempt
	} else {
		rows := l.claim(func(p *db.OutboxQueueClaimParams) { p.SafeToResend = l.IntN(2) == 0 })
		if len(rows) != 1 || rows[0].ID != x.id {
			l.Fatalf("claimed %+v, want %s", rows, x.id)
		}
		x.attempt = rows[0].Attempt
	}
	to := x.status
	if to == intent.Pending {
		to = intent.Leased
	}
	l.moved(x, intent.EventClaimed, to)
	x.held = true
}

func (l *lives) settle(x *life, event, to string) {
	sent := x.status == intent.Leased && to != intent.AwaitingApproval
	if event == intent.EventApply && intent.IsFinished(to) {
		err := pgx.BeginFunc(l.Context(), l.DB, func(tx pgx.Tx) error {
			q := l.q.WithTx(tx)
			claimed, err := q.OutboxQueueCheckClaim(l.Context(), db.OutboxQueueCheckClaimParams{ID: x.id, Attempt: x.attempt, Worker: 7})
			if err != nil {
				return err
			}
			l.must(q.OutboxQueueFinish(l.Context(), db.OutboxQueueFinishParams{ID: x.id, Attempt: x.attempt, Worker: 7, Began: claimed.Began, Outcome: to}))
			return nil
		})
		if err != nil {
			l.Fatal(err)
		}
	} else {
		rows, err := l.q.OutboxQueueSettle(l.Context(), settleOne(x.id, x.attempt, 7, to, func(p *db.OutboxQueueSettleParams) {
			p.Events, p.WasSent, p.KeepLease = []string{event}, []bool{sent}, []bool{to == intent.Answered && event != intent.EventApply}
		}))
		if err != nil || len(rows) != 1 {
			l.Fatalf("settled %+v, %v", rows, err)
		}
	}
	if sent {
		x.sentAs = x.attempt
	}
	l.moved(x, event, to)
	x.held = to == intent.Answered && event != intent.EventApply
	if intent.IsFinished(to) {
		l.promote(x.key)
	}
}

func (l *lives) postpone(x *life) {
	l.must(l.q.OutboxQueuePostpone(l.Context(), db.OutboxQueuePostponeParams{Worker: 7, Ids: []uuid.UUID{x.id}, Attempts: []int32{x.attempt},
		Delays: []int64{0}, ClearSent: []bool{true}}))
	to := x.status
	if to == intent.Leased {
		to = intent.Pending
	}
	l.moved(x, intent.EventPostponed, to)
}

// orphan has the leases of this one run out.
func (l *lives) orphan(x *life) {
	l.exec(`update samekey.outbox_queue set lease_until = clock_timestamp() - interval '1 second' where id = $1`, x.id)
	rows, err := l.q.OutboxQueueRelease(l.Context(), db.OutboxQueueReleaseParams{Holder: 7, MaxCount: 10, SettlingDelay: time.Second})
	if err != nil || len(rows) != 1 || rows[0].ID != x.id {
		l.Fatalf("released %+v, %v", rows, err)
	}
	x.stale = append(x.stale, x.attempt)
	if x.status == intent.Leased {
		x.sentAs = x.attempt
	}
	l.moved(x, intent.EventOrphaned, rows[0].Status)
}

// lateAnswer has a worker answer for an attempt that was taken over.
func (l *lives) lateAnswer(x *life) {
	attempt := x.stale[l.IntN(len(x.stale))]
	row, err := l.q.OutboxQueueSettleLate(l.Context(), db.OutboxQueueSettleLateParams{ID: x.id, Attempt: attempt, Worker: 7, Outcome: intent.OutcomeDelivered, Code: "200"})
	if err != nil {
		l.Fatal(err)
	}
	resolves := attempt >= x.sentAs && intent.Allowed(x.status, intent.EventLate, intent.Answered)
	if row.Resolved > 0 && !resolves {
		l.Fatalf("a late answer of attempt %d resolved %+v", attempt, x)
	}
	if row.Resolved > 0 {
		l.moved(x, intent.EventLate, intent.Answered)
	}
}

// promote makes the next of an ordering key its head.
func (l *lives) promote(key string) {
	if key == "" {
		return
	}
	if _, err := l.q.OutboxQueuePromote(l.Context(), []string{key}); err != nil {
		l.Fatal(err)
	}
	for _, x := range l.all {
		if x.key == key && x.status == intent.Blocked && l.headless(key) {
			l.moved(x, intent.EventPromoted, intent.Pending)
			return
		}
	}
}

func (l *lives) headless(key string) bool {
	return !slices.ContainsFunc(l.all, func(x *life) bool { return x.key == key && x.status != intent.Blocked && !intent.IsFinished(x.status) })
}

// moved takes into the model what an event made of an intent.
func (l *lives) moved(x *life, event, to string) {
	l.Helper()
	l.saw(x.status, event, to)
	if x.status != to && slices.Contains(intent.Told, to) {
		x.told += event + ":" + to + " "
	}
	x.status, x.held = to, false
}

func (l *lives) saw(from, event, to string) {
	l.Helper()
	if !intent.Allowed(from, event, to) {
		l.Fatalf("%q -> %s -> %q is not in the table", from, event, to)
	}
	l.seen[from+" "+event+" "+to] = true
}

// must holds a query that changes one row to that.
func (l *lives) must(rows int64, err error) {
	l.Helper()
	if err != nil || rows != 1 {
		l.Fatalf("%d rows, %v", rows, err)
	}
}

// compare holds what is in Postgres to the model.
func (l *lives) compare() {
	l.Helper()
	for _, x := range l.all {
		got := l.text(`select coalesce((select status || case when leased_by is null then '' else ' held' end from samekey.outbox_queue where id = $1),
			(select final_status from samekey.outbox_history where intent_id = $1 and final_status is not null), 'lost')`, x.id)
		want := x.status
		if x.held {
			want += " held"
		}
		if got != want {
			l.Fatalf("%s is %q in Postgres, %q by the table", x.id, got, want)
		}
		seen := l.text(`select coalesce(string_agg(coalesce(i.status, 'null'), ' '), 'none')
			|| coalesce((select ' rests' from samekey.needs_attention n where n.id = $1), '') from samekey.intents i where i.id = $1`, x.id)
		if want := x.status + map[bool]string{true: " rests"}[slices.Contains(intent.Resting, x.status)]; seen != want {
			l.Fatalf("%s is %q in the views, want %q", x.id, seen, want)
		}
		told := l.text(`select coalesce(string_agg(event || ':' || status || ' ', '' order by id), '') from samekey.outbox_attention where intent_id = $1`, x.id)
		if told != x.told {
			l.Fatalf("%s has the attention events %q, want %q", x.id, told, x.told)
		}
	}
	l.all = slices.DeleteFunc(l.all, func(x *life) bool { return intent.IsFinished(x.status) && len(x.stale) == 0 })
}

func transitions() (n int) {
	for _, step := range intent.Table {
		n += len(step.To)
	}
	return n
}
