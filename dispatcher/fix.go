package dispatcher

import (
	"context"
	"fmt"

	"github.com/samekey/samekey/internal/db"
)

// What is fixed before an intent's first send, beside its payload and its delivery key: the key in the vendor's form, and
// the rendered request. It is written before a byte goes out, and read with every claim from then on.
//
//	two attempts of one intent fix something     one row is kept, and both send what is in it
//	killed between the claim and the row         nothing was sent: the next attempt fixes it
//	killed between the row and the call          the next attempt sends what is in the row
//	taken over while it renders                  the row is refused: nothing is sent
//	the database does not answer                 nothing is sent, nothing is spent
//	rules or template changed since              the row counts
//	it may have been sent by a release that      it goes on as it was sent, with the plain delivery key and its payload;
//	had nothing to fix                           each claim notes what its release does ("plain")

const (
	maxRendered     = 2 << 20
	maxRenderedType = 255
	maxMessageID    = 998
)

// fix sees to it that what the claim is about to send is kept. Where ok is false it is not sent, and s says why.
func (d *destination) fix(ctx context.Context, c *claim) (s settlement, ok bool) {
	if c.CarriedKey != "" || c.Plain || !c.action.fixes() {
		return settlement{}, true
	}
	key, rendered, err := c.action.toFix(ctx, c)
	if err != nil {
		return c.action.deadUnsent(&c.OutboxQueueClaimRow, "render", err), false
	}
	p := db.OutboxSendsFixParams{ID: c.ID, Attempt: c.Attempt, Worker: c.worker, CarriedKey: key}
	if rendered != nil {
		p.RequestType, p.Request = &rendered.Type, rendered.Request
		if rendered.MessageID != "" {
			p.MessageID = &rendered.MessageID
		}
	}
	rows, err := d.node.q.OutboxSendsFix(ctx, p)
	if err != nil || len(rows) == 0 {
		return d.notSent(ctx, c, "dispatcher: what is to be sent could not be kept, nothing was sent", err), false
	}
	c.CarriedKey, c.RequestType, c.Request, c.MessageID = rows[0].CarriedKey, rows[0].RequestType, rows[0].Request, rows[0].MessageID
	return settlement{}, true
}

// fixes reports whether what the action sends is more than the payload and the plain delivery key, which never change.
func (a *action) fixes() bool { return a.render != nil || !a.rules.fits() }

// toFix makes what is to be fixed; nil where the action renders nothing.
func (a *action) toFix(ctx context.Context, c *claim) (key string, rendered *Rendered, err error) {
	if key, err = a.rules.Project(c.DeliveryKey); err != nil {
		return "", nil, fmt.Errorf("the delivery key does not fit the vendor: %w", err)
	}
	if a.render == nil {
		return key, nil, nil
	}
	call := c.call()
	call.CarriedKey = key
	made, err := guard(func() (Rendered, error) { return a.render(ctx, &call) })
	switch {
	case err != nil:
		return "", nil, err
	case len(made.Request) > maxRendered:
		err = fmt.Errorf("the rendered request has %d bytes, more than %d", len(made.Request), maxRendered)
	case len(made.Type) > maxRenderedType || len(made.MessageID) > maxMessageID:
		err = fmt.Errorf("the rendered request's type has %d bytes, its Message-ID %d, more than %d and %d", len(made.Type), len(made.MessageID), maxRenderedType, maxMessageID)
	}
	return key, &made, err
}
