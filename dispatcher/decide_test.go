package dispatcher

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/samekey/samekey/internal/db"
	"github.com/samekey/samekey/outbox"
)

var classes = []Class{Read, IdempotentWrite, NonIdempotentWrite, IrreversibleWrite}

func actionOf(class Class, attempts int) *action {
	return &action{name: "charge_card", policy: Policy{Class: class, Attempts: attempts}.withDefaults()}
}

// sent returns the settlement after Send returned o and err; lookedUp returns the settlement after Lookup did.
func (a *action) sent(row *db.OutboxQueueClaimRow, o Outcome, err error) settlement {
	return a.decide(row, conclude(o, err, false, false))
}

func (a *action) lookedUp(row *db.OutboxQueueClaimRow, o Outcome, err error) settlement {
	unknown := *row
	unknown.Status = statusUnknown
	return a.decide(&unknown, conclude(o, err, true, false))
}

// The settlement of an attempt, by class: the next state, the outcome, the attempts used, the code, and whether
// first_sent_at is reset. The claim may have been sent before and has attempts left.
func TestDecideAfterSend(t *testing.T) {
	type result struct {
		outcome Outcome
		err     error
	}
	results := map[string]result{
		"delivered":  {outcome: Delivered(Response{Code: "200"})},
		"refused":    {outcome: Refused(Response{Code: "card_declined"})},
		"accepted":   {outcome: Accepted(Response{Code: "202"})},
		"retry":      {outcome: Retry(Response{}).After(time.Minute)},
		"denied":     {outcome: Denied(Response{Code: "401"})},
		"dead":       {outcome: Dead(Response{Code: "404"})},
		"gone":       {outcome: Gone(Response{Code: "410"})},
		"unsent":     {outcome: Unsent(nil)},
		"err unsent": {err: fmt.Errorf("charge: %w", ErrUnsent)},
		"stuck":      {outcome: Stuck(Response{Code: "500"})},
		"unknown":    {outcome: Unknown(Response{Code: "500"})},
		"error":      {err: errors.New("connection reset")},
		"dial":       {err: &url.Error{Op: "Post", URL: "https://vendor", Err: &net.OpError{Op: "dial", Err: os.ErrPermission}}},
		"timeout":    {err: context.DeadlineExceeded},
		"stopped":    {err: context.Canceled},
		"panic":      {err: &panicError{"boom"}},
		"nothing":    {},
		"absent":     {outcome: Absent(Response{Code: "404"})},
		"error wins": {Delivered(Response{Code: "200"}), errors.New("the body broke off")},
	}
	repeatable := map[string]string{
		"delivered":  "delivered delivered used=0 200",
		"refused":    "refused refused used=0 card_declined",
		"accepted":   "unknown accepted used=0 accepted",
		"retry":      "pending retry used=0 retry_after",
		"denied":     "pending retry used=0 401",
		"dead":       "dead dead used=1 404",
		"gone":       "dead dead used=1 410",
		"unsent":     "pending unsent used=0 unsent",
		"err unsent": "pending unsent used=0 unsent",
		"stuck":      "unknown unknown used=0 500", // a read has its own expectation
		"unknown":    "pending unknown used=1 500",
		"error":      "pending unknown used=1 unknown",
		"dial":       "pending unknown used=1 unknown", // a redirect may have been followed before, so it proves nothing
		"timeout":    "pending unknown used=1 timeout",
		"stopped":    "pending unknown used=1 stopped",
		"panic":      "pending unknown used=1 panic",
		"nothing":    "pending unknown used=1 no_outcome",
		"absent":     "pending unknown used=1 404",
		"error wins": "pending unknown used=1 200",
	}
	once := map[string]string{
		"delivered":  repeatable["delivered"],
		"refused":    repeatable["refused"],
		"accepted":   repeatable["accepted"],
		"retry":      "pending retry used=0 retry_after clearSent",
		"denied":     "pending retry used=0 401 clearSent",
		"dead":       "dead dead used=1 404 clearSent",
		"gone":       "dead dead used=1 410 clearSent",
		"unsent":     "pending unsent used=0 unsent clearSent",
		"err unsent": "pending unsent used=0 unsent clearSent",
		"stuck":      "unknown unknown used=0 500",
		"unknown":    "unknown unknown used=0 500",
		"error":      "unknown unknown used=0 unknown",
		"dial":       "unknown unknown used=0 unknown",
		"timeout":    "unknown unknown used=0 timeout",
		"stopped":    "unknown unknown used=0 stopped",
		"panic":      "unknown unknown used=0 panic",
		"nothing":    "unknown unknown used=0 no_outcome",
		"absent":     "unknown unknown used=0 404",
		"error wins": "unknown unknown used=0 200",
	}
	for _, class := range classes {
		for name, result := range results {
			want := repeatable[name]
			if class == NonIdempotentWrite || class == IrreversibleWrite {
				want = once[name]
			}
			if class == IrreversibleWrite { // an approval is good for one claim
				want = strings.Replace(want, "pending", "awaiting_approval", 1)
			}
			if class == Read && name == "stuck" {
				want = repeatable["unknown"]
			}
			s := actionOf(class, 5).sent(&db.OutboxQueueClaimRow{Attempt: 1}, result.outcome, result.err)
			got := fmt.Sprintf("%s %s used=%d %s", s.status, s.outcome, s.attemptsUsed, s.response.Code)
			if s.clearSent {
				got += " clearSent"
			}
			if got != want {
				t.Errorf("%v, %s:\n\tgot  %s\n\twant %s", class, name, got, want)
			}
			if s.keepLease || s.leaveOrder || s.event != "attempt" {
				t.Errorf("%v, %s: %+v", class, name, s)
			}
			if result.err != nil && s.err == "" {
				t.Errorf("%v, %s: the error's text is lost", class, name)
			}
		}
	}
}

func TestDeadAfterTheLastAttempt(t *testing.T) {
	for _, class := range []Class{Read, IdempotentWrite} {
		a := actionOf(class, 3)
		if s := a.sent(&db.OutboxQueueClaimRow{AttemptsUsed: 1}, Outcome{}, errors.New("x")); s.status != statusPending {
			t.Errorf("%v: after 2 of 3 attempts it is %s, want pending", class, s.status)
		}
		if s := a.sent(&db.OutboxQueueClaimRow{AttemptsUsed: 2}, Outcome{}, errors.New("x")); s.status != statusDead {
			t.Errorf("%v: after 3 of 3 attempts it is %s, want dead", class, s.status)
		}
	}
}

func TestUnsentFirstAttemptStartsNoKeyWindow(t *testing.T) {
	a := actionOf(IdempotentWrite, 5)
	if s := a.sent(&db.OutboxQueueClaimRow{FirstSend: true}, Unsent(nil), nil); !s.clearSent {
		t.Error("the first send was unsent, and the key window began")
	}
	if s := a.sent(&db.OutboxQueueClaimRow{FirstSend: false}, Unsent(nil), nil); s.clearSent {
		t.Error("an earlier attempt may have been sent, and the key window was forgotten")
	}
}

func TestAfterWaitsForTheLongerOfVendorAndBackoff(t *testing.T) {
	a := actionOf(Read, 5)
	for asked, want := range map[time.Duration]time.Duration{
		time.Minute: time.Minute, 59 * time.Minute: 59 * time.Minute, 23 * time.Hour: 23 * time.Hour, 25 * time.Hour: 24 * time.Hour, 1 << 62: 24 * time.Hour,
	} {
		if s := a.sent(&db.OutboxQueueClaimRow{Attempt: 1}, Retry(Response{}).After(asked), nil); s.delay != want {
			t.Errorf("After(%v) waits %v, want %v", asked, s.delay, want)
		}
	}
	if s := a.sent(&db.OutboxQueueClaimRow{Attempt: 1}, Retry(Response{}).After(-time.Minute), nil); s.delay < 0 || s.delay > time.Second {
		t.Errorf("After(-1m) waits %v, want the backoff", s.delay)
	}
}

func TestBeforeSend(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	approved := now
	withDeadline := func(a *action) { a.policy.Deadline = time.Hour }
	passFailed := func(a *action) { a.policy.PassFailed = true }
	none := func(*action) {}
	for _, c := range []struct {
		name   string
		class  Class
		change func(*action)
		claim  db.OutboxQueueClaimRow
		want   string // "send", or the state, the code and the flags
	}{
		{"first", Read, none, db.OutboxQueueClaimRow{FirstSend: true}, "send"},
		{"again", Read, none, db.OutboxQueueClaimRow{}, "send"},
		{"first", IdempotentWrite, none, db.OutboxQueueClaimRow{FirstSend: true}, "send"},
		{"again", IdempotentWrite, none, db.OutboxQueueClaimRow{}, "send"},
		{"first", NonIdempotentWrite, none, db.OutboxQueueClaimRow{FirstSend: true}, "send"},
		{"maybe sent", NonIdempotentWrite, none, db.OutboxQueueClaimRow{}, "unknown maybe_sent"},
		{"maybe sent, deadline", NonIdempotentWrite, none, db.OutboxQueueClaimRow{PastDeadline: true}, "unknown maybe_sent"},
		{"first", IrreversibleWrite, none, db.OutboxQueueClaimRow{FirstSend: true}, "awaiting_approval approval clearSent"},
		{"approved", IrreversibleWrite, none, db.OutboxQueueClaimRow{FirstSend: true, ApprovedAt: &approved}, "send"},
		{"approved, maybe sent", IrreversibleWrite, none, db.OutboxQueueClaimRow{ApprovedAt: &approved}, "unknown maybe_sent"},
		{"window", IdempotentWrite, none, db.OutboxQueueClaimRow{PastWindow: true, AttemptsUsed: 4}, "unknown key_window"},
		{"window before deadline", IdempotentWrite, none, db.OutboxQueueClaimRow{PastWindow: true, PastDeadline: true}, "unknown key_window"},
		{"window of a former release", Read, none, db.OutboxQueueClaimRow{PastWindow: true}, "send"},
		{"intent's deadline", Read, none, db.OutboxQueueClaimRow{PastDeadline: true}, "dead deadline"},
		{"deadline of an unsent one", NonIdempotentWrite, none, db.OutboxQueueClaimRow{FirstSend: true, PastDeadline: true}, "dead deadline clearSent"},
		{"deadline before approval", IrreversibleWrite, none, db.OutboxQueueClaimRow{FirstSend: true, PastDeadline: true}, "dead deadline clearSent"},
		{"1 s before the policy's", Read, withDeadline, db.OutboxQueueClaimRow{Now: now, CreatedAt: now.Add(-time.Hour + time.Second)}, "send"},
		{"at the policy's", Read, withDeadline, db.OutboxQueueClaimRow{Now: now, CreatedAt: now.Add(-time.Hour)}, "dead deadline"},
		{"last attempt", Read, none, db.OutboxQueueClaimRow{AttemptsUsed: 4}, "send"},
		{"attempts", Read, none, db.OutboxQueueClaimRow{AttemptsUsed: 5}, "dead attempts"},
		{"attempts", IdempotentWrite, passFailed, db.OutboxQueueClaimRow{AttemptsUsed: 5}, "dead attempts leave"},
		{"lookups are no attempts", NonIdempotentWrite, none, db.OutboxQueueClaimRow{FirstSend: true, AttemptsUsed: 5}, "send"},
		{"window never leaves the order", IdempotentWrite, passFailed, db.OutboxQueueClaimRow{PastWindow: true}, "unknown key_window"},
	} {
		a := actionOf(c.class, 5)
		c.change(a)
		s, send := a.beforeSend(&c.claim)
		got := s.status + " " + s.response.Code
		if s.clearSent {
			got += " clearSent"
		}
		if s.leaveOrder {
			got += " leave"
		}
		if send {
			got = "send"
		}
		if got != c.want {
			t.Errorf("%v, %s: got %q, want %q", c.class, c.name, got, c.want)
		}
		if s.finishes() {
			t.Errorf("%v, %s: finished without a call", c.class, c.name)
		}
	}
}

func TestDecideAfterLookup(t *testing.T) {
	evidence := Response{Code: "evidence"}
	for _, c := range []struct {
		name    string
		used    int32
		outcome Outcome
		err     error
		want    string
	}{
		{"delivered", 0, Delivered(evidence), nil, "delivered delivered used=1 evidence"},
		{"refused", 0, Refused(evidence), nil, "refused refused used=1 evidence"},
		{"absent once", 0, Absent(evidence), nil, "unknown absent used=1 absent"},
		{"accepted", 3, Accepted(evidence).After(time.Minute), nil, "unknown accepted used=0 accepted"},
		{"unknown", 0, Unknown(evidence), nil, "parked unknown used=1 evidence"},
		{"stuck", 0, Stuck(evidence), nil, "parked unknown used=1 evidence"},
		{"dead", 0, Dead(evidence), nil, "parked unknown used=1 evidence"},
		{"gone", 0, Gone(evidence), nil, "parked unknown used=1 evidence"},
		{"nothing", 0, Outcome{}, nil, "parked unknown used=1 no_outcome"},
		{"retry", 4, Retry(Response{}), nil, "unknown retry used=4 lookup_failed"},
		{"denied", 4, Denied(Response{Code: "401"}), nil, "unknown retry used=4 401"},
		{"unsent", 4, Unsent(nil), nil, "unknown retry used=4 lookup_failed"},
		{"err unsent", 4, Outcome{}, ErrUnsent, "unknown retry used=4 lookup_failed"},
		{"error", 3, Outcome{}, errors.New("x"), "unknown retry used=4 lookup_failed"},
		{"error wins", 0, Delivered(evidence), errors.New("x"), "unknown retry used=1 evidence"},
		{"last error", 4, Outcome{}, errors.New("x"), "parked unknown used=5 lookup_failed"},
		{"panic", 0, Outcome{}, &panicError{"boom"}, "unknown retry used=1 lookup_failed"},
		{"delivered at the last attempt", 4, Delivered(evidence), nil, "delivered delivered used=5 evidence"},
	} {
		for _, class := range classes {
			s := actionOf(class, 5).lookedUp(&db.OutboxQueueClaimRow{AttemptsUsed: c.used}, c.outcome, c.err)
			if got := fmt.Sprintf("%s %s used=%d %s", s.status, s.outcome, s.attemptsUsed, s.response.Code); got != c.want {
				t.Errorf("%v, %s: got %q, want %q", class, c.name, got, c.want)
			}
		}
	}
	a := actionOf(NonIdempotentWrite, 5)
	if s, ask := a.beforeLookup(&db.OutboxQueueClaimRow{}); ask || s.status != statusParked || s.leaveOrder {
		t.Errorf("without a lookup: %+v", s)
	}
	a.policy.PassFailed = true
	if s, _ := a.beforeLookup(&db.OutboxQueueClaimRow{}); !s.leaveOrder || !a.lookedUp(&db.OutboxQueueClaimRow{}, Unknown(evidence), nil).leaveOrder {
		t.Error("PassFailed does not let the next intent pass a parked one")
	}
}

func TestAbsentTwiceParksOrResendsOnce(t *testing.T) {
	evidence, before := Response{Code: "404"}, outcomeAbsent
	for _, c := range []struct {
		name      string
		class     Class
		resend    bool
		row       db.OutboxQueueClaimRow
		want      string
		clearSent bool
	}{
		{"once", NonIdempotentWrite, true, db.OutboxQueueClaimRow{}, "unknown absent absent", false},
		{"twice", NonIdempotentWrite, true, db.OutboxQueueClaimRow{LastCode: &before}, "pending absent absent", true},
		{"twice, after it was sent once more", NonIdempotentWrite, true, db.OutboxQueueClaimRow{LastCode: &before, NoResend: true}, "parked absent 404", false},
		{"twice, not opted in", NonIdempotentWrite, false, db.OutboxQueueClaimRow{LastCode: &before}, "parked absent 404", false},
		{"twice, past the key window", IdempotentWrite, false, db.OutboxQueueClaimRow{LastCode: &before}, "parked absent 404", false},
		{"twice, irreversible", IrreversibleWrite, false, db.OutboxQueueClaimRow{LastCode: &before}, "parked absent 404", false},
	} {
		a := actionOf(c.class, 5)
		a.policy.ResendAbsent, c.row.AttemptsUsed = c.resend, 4
		s := a.lookedUp(&c.row, Absent(evidence), nil)
		if got := fmt.Sprintf("%s %s %s", s.status, s.outcome, s.response.Code); got != c.want || s.clearSent != c.clearSent || s.forbidResend != c.clearSent {
			t.Errorf("%s: got %q, clearSent %t, resend %t; want %q, %t", c.name, got, s.clearSent, s.forbidResend, c.want, c.clearSent)
		}
		if c.clearSent && s.attemptsUsed != 0 {
			t.Errorf("%s: sent once more with %d attempts used", c.name, s.attemptsUsed)
		}
		if s.status == statusUnknown && s.delay != a.policy.SettlingDelay {
			t.Errorf("%s: looked up again after %v", c.name, s.delay)
		}
	}
}

func TestAcceptedIsNeverSentAgain(t *testing.T) {
	for _, class := range classes {
		a := actionOf(class, 5)
		s := a.sent(&db.OutboxQueueClaimRow{FirstSend: true}, Accepted(Response{Code: "202"}).After(time.Minute), nil)
		if s.status != statusUnknown || s.outcome != outcomeAccepted || s.response.Code != codeAccepted || !s.forbidResend || s.clearSent || !s.wasSent {
			t.Errorf("%v: %+v", class, s)
		}
		if s.delay != a.policy.CompletionTime {
			t.Errorf("%v: without a lookup it is claimed again after %v", class, s.delay)
		}
		a.lookup = func(context.Context, *Call) (Outcome, error) { return Outcome{}, nil }
		if s := a.sent(&db.OutboxQueueClaimRow{}, Accepted(Response{}).After(time.Minute), nil); s.delay != time.Minute {
			t.Errorf("%v: looked up after %v", class, s.delay)
		}
		code, now := codeAccepted, time.Now()
		sent := now.Add(-a.policy.CompletionTime)
		late := db.OutboxQueueClaimRow{LastCode: &code, FirstSentAt: &sent, Now: now}
		if s, ask := a.beforeLookup(&late); ask || s.status != statusParked || s.response.Code != "not_completed" {
			t.Errorf("%v: past its time: %+v", class, s)
		}
		sent = sent.Add(time.Second)
		if s, ask := a.beforeLookup(&late); !ask {
			t.Errorf("%v: in time: %+v", class, s)
		}
	}
}

// The same key replays the same failure. So an idempotent write whose lookup reports absent is not sent again either.
func TestStuckIsLookedUpAndNeverSentAgain(t *testing.T) {
	a := actionOf(IdempotentWrite, 5)
	s := a.sent(&db.OutboxQueueClaimRow{AttemptsUsed: 4}, Stuck(Response{Code: "500"}), nil)
	if s.status != statusUnknown || s.clearSent || !s.wasSent || s.attemptsUsed != 0 || s.delay != a.policy.SettlingDelay {
		t.Errorf("%+v", s)
	}
	if s, ask := a.beforeLookup(&db.OutboxQueueClaimRow{}); ask || s.status != statusParked {
		t.Errorf("without a lookup: %+v", s)
	}
	absent := outcomeAbsent
	if s := a.lookedUp(&db.OutboxQueueClaimRow{LastCode: &absent}, Absent(Response{}), nil); s.status != statusParked {
		t.Errorf("absent twice: %+v", s)
	}
}

func TestDeniedUsesNoAttempt(t *testing.T) {
	for _, class := range classes {
		for _, first := range []bool{true, false} {
			s := actionOf(class, 5).sent(&db.OutboxQueueClaimRow{FirstSend: first, AttemptsUsed: 2}, Denied(Response{Code: "401"}), nil)
			want := statusPending
			if class == IrreversibleWrite {
				want = statusAwaiting
			}
			if s.status != want || s.attemptsUsed != 2 || s.response.Code != "401" || s.clearSent != (first || !class.repeatable()) {
				t.Errorf("%v, first send %t: %+v", class, first, s)
			}
		}
	}
}

func TestAnswerIsStoredBeforeApply(t *testing.T) {
	for _, class := range classes {
		a := actionOf(class, 5)
		a.apply = func(context.Context, pgx.Tx, Settled) error { return nil }
		for outcome, s := range map[string]settlement{
			outcomeDelivered: a.sent(&db.OutboxQueueClaimRow{AttemptsUsed: 2}, Delivered(Response{}), nil),
			outcomeRefused:   a.lookedUp(&db.OutboxQueueClaimRow{AttemptsUsed: 2}, Refused(Response{}), nil),
		} {
			if s.status != statusAnswered || s.outcome != outcome || !s.keepLease || s.attemptsUsed != 0 {
				t.Errorf("%v, %s: %+v", class, outcome, s)
			}
		}
	}
}

func TestPanicIsAnError(t *testing.T) {
	_, err := guard(func() (int, error) { panic("boom") })
	if err == nil || unknownCode(err) != "panic" {
		t.Fatalf("got %v", err)
	}
}

// A panic value proves nothing about what was sent.
func TestPanicWithErrUnsentIsUnknown(t *testing.T) {
	_, err := guard(func() (Outcome, error) { panic(ErrUnsent) })
	if o := conclude(Outcome{}, err, false, false); o.kind != outcomeFailed {
		t.Fatalf("concluded %v", o)
	}
}

func TestCleanTextIsValidAndCutBetweenRunes(t *testing.T) {
	for in, want := range map[string]string{"a\x00b": "a\uFFFDb", "\xff": "\uFFFD", "ééé": "éé", "": ""} {
		if got := clean(in, 5); got != want {
			t.Errorf("clean(%q) is %q, want %q", in, got, want)
		}
	}
}

func TestResponseBesideErrorIsKept(t *testing.T) {
	response := Response{Code: "502", Body: []byte("bad gateway")}
	for _, err := range []error{errors.New("the body broke off"), ErrUnsent} {
		s := actionOf(IdempotentWrite, 5).sent(&db.OutboxQueueClaimRow{}, Unknown(response).After(time.Hour), err)
		if s.response.Code != "502" || string(s.response.Body) != "bad gateway" || s.err != err.Error() || s.delay != time.Hour {
			t.Errorf("%v: %+v", err, s)
		}
	}
}

// The two absent results must follow each other: a lookup with another result in between starts the count again.
func TestAbsentCountsTwiceOnlyInARow(t *testing.T) {
	for _, before := range []string{"timeout", "maybe_sent", codeOrphaned, codeAccepted, "lookup_failed"} {
		a := actionOf(NonIdempotentWrite, 5)
		a.policy.ResendAbsent = true
		s := a.lookedUp(&db.OutboxQueueClaimRow{LastCode: &before}, Absent(Response{}), nil)
		if s.status != statusUnknown || s.clearSent || s.forbidResend || s.response.Code != outcomeAbsent || s.delay != a.policy.SettlingDelay {
			t.Errorf("after %s: %+v", before, s)
		}
	}
}

// The worker goes by the last code of an unknown intent. A vendor's code must not pass for one of the worker's.
func TestVendorCodeIsNotTheWorkersOwn(t *testing.T) {
	for _, code := range []string{"absent", "accepted", "orphaned", "settling"} {
		a := actionOf(NonIdempotentWrite, 5)
		for _, o := range []Outcome{Unknown(Response{Code: code}), Stuck(Response{Code: code})} {
			s := a.sent(&db.OutboxQueueClaimRow{}, o, nil)
			if s.status != statusUnknown || s.response.Code != "vendor_"+code {
				t.Errorf("%v: %+v", o, s)
			}
		}
		if s := a.lookedUp(&db.OutboxQueueClaimRow{}, Retry(Response{Code: code}), nil); s.response.Code != "vendor_"+code {
			t.Errorf("a lookup: %+v", s)
		}
	}
}

// A late answer counts for the last attempt that was sent, so one that was not sent must not take its place.
func TestOnlyErrUnsentProvesUnsent(t *testing.T) {
	for _, class := range classes {
		for name, err := range map[string]error{"proof": ErrUnsent, "guess": &net.DNSError{Err: "no such host"}, "reset": errors.New("reset")} {
			s := actionOf(class, 5).sent(&db.OutboxQueueClaimRow{FirstSend: true}, Outcome{}, err)
			if proved := name == "proof"; s.wasSent == proved || s.clearSent != proved {
				t.Errorf("%v, %s: %+v", class, name, s)
			}
		}
	}
}

func TestLookupWaitsForTheSettlingDelay(t *testing.T) {
	for _, class := range []Class{NonIdempotentWrite, IrreversibleWrite} {
		a := actionOf(class, 5)
		if s := a.sent(&db.OutboxQueueClaimRow{}, Outcome{}, errors.New("reset")); s.delay != a.policy.SettlingDelay || s.delay == 0 {
			t.Errorf("%v: looked up after %v, want %v", class, s.delay, a.policy.SettlingDelay)
		}
	}
}

// An accepted call is looked up between a second and a day later, however often, and is not sent again.
func TestAcceptedIsLookedUpWithinBounds(t *testing.T) {
	a := actionOf(IdempotentWrite, 5)
	a.lookup = func(context.Context, *Call) (Outcome, error) { return Outcome{}, nil }
	a.policy.SettlingDelay = -1
	row := &db.OutboxQueueClaimRow{AttemptsUsed: 4}
	for after, want := range map[time.Duration]time.Duration{-1: time.Second, 0: time.Second, time.Minute: time.Minute, 48 * time.Hour: maxDelay} {
		for name, s := range map[string]settlement{
			"accepted": a.sent(row, Accepted(Response{}).After(after), nil),
			"pending":  a.lookedUp(row, Accepted(Response{}).After(after), nil),
		} {
			if s.delay != want || s.attemptsUsed != 0 || !s.forbidResend {
				t.Errorf("%s, %v: looked up after %v, %d attempts used, not sent again %t; want %v, 0, true", name, after, s.delay, s.attemptsUsed, s.forbidResend, want)
			}
		}
	}
}

func TestPassFailedAppliesToEveryEnd(t *testing.T) {
	for _, pass := range []bool{true, false} {
		a := actionOf(IdempotentWrite, 3)
		a.policy.PassFailed = pass
		row := &db.OutboxQueueClaimRow{AttemptsUsed: 2}
		for name, s := range map[string]settlement{
			"last attempt":       a.sent(row, Outcome{}, errors.New("reset")),
			"dead":               a.sent(row, Dead(Response{}), nil),
			"last lookup failed": a.lookedUp(row, Outcome{}, errors.New("reset")),
			"not rendered":       a.deadUnsent(row, "render", errors.New("template")),
		} {
			if s.leaveOrder != pass {
				t.Errorf("PassFailed %t, %s: %+v", pass, name, s)
			}
		}
	}
}

// A stopped or missing endpoint, or a failing template, does not change the key window.
func TestDeadUnsentKeepsTheKeyWindow(t *testing.T) {
	for _, first := range []bool{true, false} {
		row := &db.OutboxQueueClaimRow{FirstSend: first, Status: statusLeased}
		a := actionOf(IdempotentWrite, 3)
		if s := a.deadUnsent(row, "render", errors.New("template")); s.clearSent != first || s.wasSent {
			t.Errorf("dead, first send %t: %+v", first, s)
		}
		if s := a.givenBack(row); s.clearSent != first || s.wasSent {
			t.Errorf("given back, first send %t: %+v", first, s)
		}
	}
}

// A worker that takes an intent over does not know its policy. The rest of the settling delay passes before the lookup.
func TestOrphanIsLookedUpAfterTheSettlingDelay(t *testing.T) {
	orphaned, absent := codeOrphaned, outcomeAbsent
	a := actionOf(NonIdempotentWrite, 5)
	a.lookup = func(context.Context, *Call) (Outcome, error) { return Outcome{}, nil }
	a.policy.SettlingDelay = time.Minute
	s, ask := a.beforeLookup(&db.OutboxQueueClaimRow{LastCode: &orphaned, AttemptsUsed: 2})
	if ask || s.status != statusUnknown || s.attemptsUsed != 2 || s.delay != time.Minute-settlingOrphans || s.leaveOrder {
		t.Errorf("at once: looked up %t, %+v", ask, s)
	}
	if _, ask := a.beforeLookup(&db.OutboxQueueClaimRow{LastCode: &absent}); !ask {
		t.Error("an intent that was not taken over waits again")
	}
	a.policy.SettlingDelay = settlingOrphans
	if _, ask := a.beforeLookup(&db.OutboxQueueClaimRow{LastCode: &orphaned}); !ask {
		t.Error("it waits longer than its settling delay")
	}
}

// The wait that a vendor asks for also applies after an approval.
func TestIrreversibleWriteWaitsForTheVendor(t *testing.T) {
	for _, o := range []Outcome{Retry(Response{}).After(time.Hour), Denied(Response{}).After(time.Hour)} {
		s := actionOf(IrreversibleWrite, 5).sent(&db.OutboxQueueClaimRow{FirstSend: true, Attempt: 1}, o, nil)
		if s.status != statusAwaiting || s.delay != time.Hour {
			t.Errorf("%v: %+v", o, s)
		}
	}
}

// A lookup that kills its worker uses an attempt each time. After the last attempt, the intent is parked.
func TestLookupsThatKillWorkersEndParked(t *testing.T) {
	a := actionOf(NonIdempotentWrite, 3)
	a.lookup = func(context.Context, *Call) (Outcome, error) { return Outcome{}, nil }
	if _, ask := a.beforeLookup(&db.OutboxQueueClaimRow{AttemptsUsed: 2}); !ask {
		t.Error("the third and last lookup is not made")
	}
	if s, ask := a.beforeLookup(&db.OutboxQueueClaimRow{AttemptsUsed: 3}); ask || s.status != statusParked || s.response.Code != "attempts" {
		t.Errorf("after three: looked up %t, %+v", ask, s)
	}
}

// An intent that an earlier release may have sent in another form is not sent again. An unsent one is.
func TestChangedFormMattersOnlyOnceSent(t *testing.T) {
	a := actionOf(IdempotentWrite, 5)
	a.form = form{digest("Idempotency-Key"), digest("POST /v2/charges")}
	for sentTo, same := range map[string]bool{
		"charge_card": true,
		"charge_card " + a.form.key + " " + a.form.request:             true,
		"charge_card " + digest("X-Key") + " " + a.form.request:        false,
		"charge_card " + a.form.key + " " + digest("POST /v1/charges"): false,
	} {
		for _, first := range []bool{true, false} {
			s, send := a.beforeSend(&db.OutboxQueueClaimRow{FirstSend: first, SentTo: sentTo, AttemptsUsed: 2})
			if want := first || same; send != want || !want && (s.status != statusUnknown || s.response.Code != codeForm || s.attemptsUsed != 0 || s.clearSent) {
				t.Errorf("sent to %q, first send %t: sent %t, %+v", sentTo, first, send, s)
			}
		}
	}
}

// A URL may contain a password or a token. Neither a row nor a log quotes it.
func TestErrorTextHasNoURL(t *testing.T) {
	secret := "https://ann:hunter2@vendor.example/charges?token=s3cret"
	for _, err := range []error{
		&url.Error{Op: "Post", URL: secret, Err: errors.New("reset by " + secret)},
		fmt.Errorf("charge: %w", &url.Error{Op: "Post", URL: secret, Err: os.ErrDeadlineExceeded}),
		errors.Join(&url.Error{Op: "Post", URL: "https://first.example", Err: os.ErrDeadlineExceeded},
			fmt.Errorf("then: %w", &url.Error{Op: "Post", URL: secret, Err: os.ErrDeadlineExceeded})),
	} {
		for _, s := range []settlement{
			actionOf(IdempotentWrite, 5).sent(&db.OutboxQueueClaimRow{}, Outcome{}, err),
			actionOf(IdempotentWrite, 5).lookedUp(&db.OutboxQueueClaimRow{}, Outcome{}, err),
			actionOf(IdempotentWrite, 5).deadUnsent(&db.OutboxQueueClaimRow{}, "render", err),
		} {
			if strings.Contains(s.err, "hunter2") || strings.Contains(s.err, "s3cret") || !strings.Contains(s.err, "[URL]") {
				t.Errorf("the history has %q", s.err)
			}
		}
	}
}

// Postgres quotes values in its messages, and encoding/json quotes its input.
func TestLoggedErrorsQuoteNoValues(t *testing.T) {
	err := fmt.Errorf("settle: %w", &pgconn.PgError{Code: "22P02", Message: `invalid input: "4242424242424242"`})
	if got := errorText(err); strings.Contains(got, "4242") || !strings.Contains(got, "22P02") {
		t.Errorf("the log has %q for a Postgres error", got)
	}
	for _, payload := range []string{`{"amount":"4242424242424242"}`, `"4242424242424242"`, `4242424242424242x`, `{"amount":42424242424242424242}`} {
		_, err := outbox.NewAction[struct {
			Amount int `json:"amount"`
		}]("charge_card").Decode("application/json", []byte(payload))
		if err == nil || strings.Contains(err.Error(), "4242") {
			t.Errorf("%s: %v", payload, err)
		}
	}
}
