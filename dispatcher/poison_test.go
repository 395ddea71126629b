package dispatcher_test

import (
	"context"
	"testing"
	"time"

	"github.com/samekey/samekey/dispatcher"
	"github.com/samekey/samekey/samekeytest"
)

// The table refuses a second finishing event. Here one is inserted by hand; it stands for any value that the tables
// refuse.
func TestRefusedOutcomeDoesNotAffectItsBatch(t *testing.T) {
	db := samekeytest.NewDB(t)
	mustExec(t, db.Pool, `select samekey.enqueue('t', 'k' || i, 'charge_card', '1') from generate_series(1, 11) i`)
	mustExec(t, db.Pool, `insert into samekey.outbox_history (intent_id, event, final_status)
		select id, 'attempt', 'delivered' from samekey.outbox where idem_key = 'k6'`)
	d := dispatcher.New(db.Pool, nil)
	handle(d, "charge_card", dispatcher.Policy{Class: dispatcher.IdempotentWrite, KeyWindow: 24 * time.Hour},
		func(context.Context, *dispatcher.Call) (dispatcher.Outcome, error) {
			return dispatcher.Delivered(dispatcher.Response{Code: "200"}), nil
		})
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	sum, err := d.Drain(ctx)
	if err != nil || sum.Delivered != 10 || sum.TakenOver != 1 {
		t.Errorf("%+v, %v: want ten delivered, and one that could not be written", sum, err)
	}
}
