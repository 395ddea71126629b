package dispatcher

import (
	"context"

	"github.com/jackc/pgx/v5"
)

// worker is a dispatcher at work: one Run or Drain, from its start to its end. It makes the parts and connects them.
// What happens to an intent is in the files of the path, see doc_path.go.
type worker struct {
	*core

	session      *session
	sweeper      *sweeper
	destinations *destinations
	settler      *settler
	applier      *applier
	attender     *attender
	reports      *reports
}

// newWorker makes the parts, the last ones of the path first: each part knows those that come after it. What goes back
// up the path is a poke.
func newWorker(c *core, ready func(context.Context, *pgx.Conn, look) error, drawID func() int32, accounts []*account) *worker {
	w := &worker{core: c, destinations: &destinations{byAction: map[string]*destination{}}}
	poke := w.destinations.poke
	announcer := newAnnouncer(c.pool)
	w.reports = &reports{core: c}
	w.settler = newSettler(c.pool, c.q, c.log, poke, announcer)
	attention := &attentionRunner{c}
	w.attender = newAttender(c, attention)
	w.applier = newApplier(c, applyRunner{core: c, reports: w.reports, attention: attention, settle: w.settler.settle, poke: poke, announcer: announcer})
	var actions []*action
	for _, a := range accounts {
		actions = append(actions, a.actions...)
		d := w.destinations.add(newDestination(c, a))
		d.settler, d.applier, d.reports = w.settler, w.applier, w.reports
		for _, action := range d.actions {
			announcer.add(action.name)
			mayApply := func() bool { return d.mayApply(action) }
			w.applier.add(action, mayApply)
			w.attender.add(action, mayApply)
		}
	}
	check := func(ctx context.Context, conn *pgx.Conn) error {
		return checkFunctions(ctx, conn, c.config.ArchiveFunction, actions)
	}
	w.sweeper = newSweeper(c, w.destinations, w.settler, w.applier, w.attender)
	w.session = &session{identity: &c.self, pool: c.pool, ready: ready, log: c.log, name: clean(c.config.Name, 255),
		actions: w.destinations.actions(), attention: w.destinations.attended(), fairBy: w.destinations.fairBy(), check: check, draw: drawID,
		woken: w.sweeper.woken, awaited: announcer.hear, deployment: &c.deployment}
	return w
}

// close gives up the worker's connections.
func (w *worker) close() { closePool(w.pool, w.times.stopMargin, w.log) }
