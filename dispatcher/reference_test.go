package dispatcher_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/samekey/samekey/dispatcher"
	"github.com/samekey/samekey/outbox"
)

// A vendor accepts the call under an id of its own, is asked for that id, and finishes it.
func TestReferenceGoesFromSendToLookupToApply(t *testing.T) {
	b := setup(t)
	d := b.dispatcher()
	d.Destination("vendor", dispatcher.Limits{})
	asked, applied, subject := "", "", ""
	policy := policyOf(dispatcher.NonIdempotentWrite)
	policy.CompletionTime = time.Hour
	handle(d, "charge_card", policy, func(_ context.Context, call *dispatcher.Call) (dispatcher.Outcome, error) {
		if call.Reference != "" {
			t.Errorf("a Send has the reference %q", call.Reference)
		}
		subject = call.Subject
		return dispatcher.Accepted(dispatcher.Response{Code: "202"}).Reference("op_1"), nil
	}, withLookup(func(_ context.Context, call *dispatcher.Call, _ []byte) (dispatcher.Outcome, error) {
		asked = call.Reference
		return dispatcher.Delivered(dispatcher.Response{Code: "200"}), nil
	}), withApply(func(ctx context.Context, tx pgx.Tx, _ []byte, settled dispatcher.Settled) error {
		applied = settled.Reference
		_, err := outbox.Insert(ctx, tx, outbox.Intent{Action: "send_mail", Payload: struct{}{}})
		return err
	}))
	handle(d, "send_mail", policyOf(dispatcher.IdempotentWrite), func(_ context.Context, call *dispatcher.Call) (dispatcher.Outcome, error) {
		return dispatcher.Delivered(dispatcher.Response{Code: "200"}).Reference("mail_1"), nil
	})
	id := b.insert("charge_card", func(in *outbox.Intent) { in.Subject = "booking/42" })
	b.expect(d, dispatcher.Summary{Unknown: 1})
	b.elapse(time.Minute)
	b.drain(d)
	b.drain(d)
	if subject != "booking/42" || asked != "op_1" || applied != "op_1" {
		t.Errorf("Send got the subject %q, Lookup the reference %q, Apply %q", subject, asked, applied)
	}
	page, err := outbox.List(t.Context(), b.db, outbox.Filter{Subject: "booking/42"})
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, e := range page.Entries {
		got[e.Action] = string(e.Status) + " " + e.Reference
	}
	if len(got) != 2 || got["charge_card"] != "delivered op_1" || got["send_mail"] != "delivered mail_1" {
		t.Errorf("the subject's intents are %v; the history: %s", got, b.history(id))
	}
}

// Whatever a vendor answers as its reference, the outcome is stored, and the log has no reference in clear.
func TestReferenceNeverCostsAnOutcome(t *testing.T) {
	b := setup(t)
	d := b.dispatcher()
	d.Destination("vendor", dispatcher.Limits{})
	long := strings.Repeat("é", 200)
	references := map[string]struct{ answered, stored string }{
		"plain":   {"ch_123", "ch_123"},
		"long":    {long, strings.Repeat("é", 127)},
		"nul":     {"a\x00b", "a\uFFFDb"},
		"broken":  {"a\xffb", "a\uFFFDb"},
		"control": {"a\nb\u200b", "a\uFFFDb\uFFFD"},
		"cut":     {strings.Repeat("x", 254) + "\n", strings.Repeat("x", 254)},
		"empty":   {"", ""},
	}
	handle(d, "charge_card", policyOf(dispatcher.IdempotentWrite), func(_ context.Context, call *dispatcher.Call) (dispatcher.Outcome, error) {
		return dispatcher.Refused(dispatcher.Response{Code: "402"}).Reference(references[call.Part].answered), nil
	})
	for part := range references {
		b.insert("charge_card", func(in *outbox.Intent) { in.Part = part })
	}
	b.expect(d, dispatcher.Summary{Refused: len(references)})
	page, err := outbox.List(t.Context(), b.db, outbox.Filter{Action: "charge_card"})
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range page.Entries {
		if want := references[e.Part].stored; e.Reference != want {
			t.Errorf("%s: stored %q, want %q", e.Part, e.Reference, want)
		}
	}
}

func TestLogHasHashesOfSubjectAndReference(t *testing.T) {
	b := setup(t)
	d := b.dispatcher()
	d.Destination("vendor", dispatcher.Limits{})
	const subject, reference = "booking/4711", "ch_0815abc"
	handle(d, "charge_card", policyOf(dispatcher.NonIdempotentWrite), func(context.Context, *dispatcher.Call) (dispatcher.Outcome, error) {
		return dispatcher.Dead(dispatcher.Response{Code: "409"}).Reference(reference).Because(errors.New("the charge " + reference + " of " + subject + " exists")), nil
	})
	b.insert("charge_card", func(in *outbox.Intent) { in.Subject = subject })
	b.expect(d, dispatcher.Summary{Dead: 1})
	line := b.logs.Line("attempt ended")
	for _, want := range []string{
		"subject=" + value[string](b, `select samekey.text_hash($1)`, subject),
		"reference=" + value[string](b, `select samekey.text_hash($1)`, reference),
		"the charge [redacted] of [redacted] exists",
	} {
		if !strings.Contains(line, want) {
			t.Errorf("the line lacks %q: %s", want, line)
		}
	}
	if text := b.logs.String(); strings.Contains(text, subject) || strings.Contains(text, reference) {
		t.Errorf("the log has one in clear: %s", text)
	}
}

// A late answer keeps its reference, and the Apply gets it.
func TestLateAnswerKeepsItsReference(t *testing.T) {
	b := setup(t)
	d := b.dispatcher()
	d.Destination("vendor", dispatcher.Limits{})
	applied := ""
	handle(d, "charge_card", policyOf(dispatcher.NonIdempotentWrite), func(ctx context.Context, call *dispatcher.Call) (dispatcher.Outcome, error) {
		// Another worker takes the intent over, and finds no lookup.
		_, err := b.db.Exec(ctx, `update samekey.outbox_queue set status = 'parked', leased_by = null, lease_until = null,
			last_sent_attempt = attempt, attempt = attempt + 1 where id = $1`, call.ID)
		return dispatcher.Delivered(dispatcher.Response{Code: "200"}).Reference("ch_late"), err
	}, withApply(func(_ context.Context, _ pgx.Tx, _ []byte, settled dispatcher.Settled) error {
		applied = settled.Reference
		return nil
	}))
	id := b.insert("charge_card")
	b.drain(d)
	b.drain(d)
	b.wantStatus(id, "delivered")
	if applied != "ch_late" {
		t.Errorf("Apply got the reference %q", applied)
	}
}

// A reference from before a person recorded that nothing was sent names nothing any more.
func TestReferenceOfAnUnsentAttemptIsNotUsed(t *testing.T) {
	b := setup(t)
	d := b.dispatcher()
	d.Destination("vendor", dispatcher.Limits{})
	sends, asked := 0, "not asked"
	handle(d, "charge_card", policyOf(dispatcher.NonIdempotentWrite), func(context.Context, *dispatcher.Call) (dispatcher.Outcome, error) {
		sends++
		if sends == 1 {
			return dispatcher.Unknown(dispatcher.Response{Code: "500"}).Reference("op_first"), nil
		}
		return dispatcher.Unknown(dispatcher.Response{Code: "500"}), nil
	}, withLookup(func(_ context.Context, call *dispatcher.Call, _ []byte) (dispatcher.Outcome, error) {
		asked = call.Reference
		return dispatcher.Unknown(dispatcher.Response{Code: "500"}), nil
	}))
	id := b.insert("charge_card")
	b.expect(d, dispatcher.Summary{Unknown: 1})
	b.elapse(time.Minute)
	b.expect(d, dispatcher.Summary{Parked: 1})
	if asked != "op_first" {
		t.Errorf("the first lookup got %q", asked)
	}
	if err := outbox.Resolve(t.Context(), b.db.Pool, id, outbox.Resolution{Outcome: outbox.NotSent}, by); err != nil {
		t.Fatal(err)
	}
	if err := outbox.Redrive(t.Context(), b.db.Pool, id, by); err != nil {
		t.Fatal(err)
	}
	b.expect(d, dispatcher.Summary{Unknown: 1})
	b.elapse(time.Minute)
	b.expect(d, dispatcher.Summary{Parked: 1})
	if asked != "" {
		t.Errorf("the second lookup got %q", asked)
	}
}
