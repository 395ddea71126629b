package dispatcher

import (
	"context"
	"fmt"

	"github.com/samekey/samekey/internal/db"
)

// Before an intent's first send, its request is stored in outbox_sends: the key in the vendor's form, and the rendered
// request. Every later claim reads the row.
//
//	two attempts of one intent write a row       one row is kept, and both attempts send it
//	killed between the claim and the row         nothing was sent: the next attempt writes the row
//	killed between the row and the call          the next attempt sends the row
//	taken over while it renders                  the row is refused: nothing is sent
//	the database does not answer                 nothing is sent, no attempt is used
//	rules or template changed since              the row is sent
//	an earlier release may have sent it          it is sent without a row again, with the plain delivery key and its
//	without a row                                payload; each claim notes whether its release writes rows ("plain")

const (
	maxRendered     = 2 << 20
	maxRenderedType = 255
	maxMessageID    = 998
)

// storeRequest renders what the claim is about to send, and stores it. If ok is false it is not sent, and s holds the
// reason.
func (d *destination) storeRequest(ctx context.Context, c *claim) (s settlement, ok bool) {
	if c.CarriedKey != "" || c.SentUnrendered || !c.action.renders() {
		return settlement{}, true
	}
	key, rendered, err := c.action.makeRequest(ctx, c)
	if err != nil {
		return c.action.deadUnsent(&c.OutboxQueueClaimRow, "render", err), false
	}
	p := db.OutboxSendsStoreParams{ID: c.ID, Attempt: c.Attempt, Worker: c.worker, CarriedKey: key}
	if rendered != nil {
		p.RequestType, p.Request = &rendered.Type, rendered.Request
		if rendered.MessageID != "" {
			p.MessageID = &rendered.MessageID
		}
	}
	rows, err := d.core.q.OutboxSendsStore(ctx, p)
	if err != nil || len(rows) == 0 {
		return d.notSent(ctx, c, "dispatcher: the request could not be stored; nothing was sent", err), false
	}
	c.CarriedKey, c.RequestType, c.Request, c.MessageID = rows[0].CarriedKey, rows[0].RequestType, rows[0].Request, rows[0].MessageID
	return settlement{}, true
}

// makeRequest makes the carried key and the rendered request; the request is nil if the action renders none.
func (a *action) makeRequest(ctx context.Context, c *claim) (key string, rendered *Rendered, err error) {
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
