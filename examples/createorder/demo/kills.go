package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// Each worker has at most this many calls in flight at a vendor. So if the vendor counts concurrency + atOnce open
// calls, each of the two workers has at least atOnce.
const (
	concurrency = 16
	atOnce      = 10
)

// kill is one SIGKILL to a worker, with its traces in the database.
type kill struct {
	worker  int                // samekey.workers.id
	at      time.Time          // when the signal was sent
	action  string             // the action of the calls that were held open
	held    map[uuid.UUID]bool // orders whose intents of that action the worker had claimed
	intents int                // all intents that it had claimed
	last    time.Time          // when another worker delivered the last of them
}

// killing kills workers and services while the traffic continues. The vendor holds its calls before it acts, or after
// it acts and before it answers. A kill at the first point can lose an effect; a kill at the second can double one.
func (d *demo) killing(ctx context.Context) error {
	steps := []func() error{
		func() error { return d.killWorker(ctx, 0, d.payments, false) },
		func() error { return d.killWorker(ctx, 1, d.payments, true) },
		func() error { return d.killService(ctx) },
		func() error { return d.killWorker(ctx, 0, d.mail, true) },
		func() error { return d.killWorker(ctx, 1, d.mail, false) },
		func() error { return d.killService(ctx) },
		func() error { return d.killWorker(ctx, 0, d.payments, true) },
		func() error { return d.killWorker(ctx, 1, d.payments, false) },
	}
	for i, step := range steps {
		for d.traffic.clients.Load() < int64((i+1)*d.orders/(len(steps)+2)) {
			if pause(ctx, 50*time.Millisecond); ctx.Err() != nil {
				return context.Cause(ctx)
			}
		}
		if err := step(); err != nil {
			return err
		}
	}
	return d.untilShown(ctx)
}

// untilShown waits until each fault was dealt out often enough.
func (d *demo) untilShown(ctx context.Context) error {
	return d.eventually(ctx, time.Minute, func() (bool, error) {
		payments, mail, err := d.counts(ctx)
		if err != nil {
			return false, err
		}
		for _, fault := range faults {
			kind, _, _ := strings.Cut(string(fault), "(")
			if payments.Faults[kind]+mail.Faults[kind] < 15 { // some are not played, because their client is killed
				return false, nil
			}
		}
		return true, nil
	})
}

// killWorker kills a worker that has at least atOnce calls open at the vendor, and waits until other workers have
// finished its intents.
func (d *demo) killWorker(ctx context.Context, which int, v *vendor, answers bool) error {
	worker := d.workers[which]
	id, err := d.workerID(ctx, worker)
	if err != nil {
		return err
	}
	if err := v.hold(ctx, answers); err != nil {
		return err
	}
	counts, err := v.open(ctx, concurrency+atOnce, 20*time.Second)
	if err != nil {
		return err
	}
	if counts.Open < concurrency+atOnce {
		return fmt.Errorf("the %s vendor has %d calls open after 20 s, not %d", v.kind, counts.Open, concurrency+atOnce)
	}
	k := kill{worker: id, at: worker.kill(), action: v.action}
	d.kills = append(d.kills, k)
	d.say("SIGKILL to %s, while the %s vendor had %d calls of both workers open", worker.name, v.kind, counts.Open)
	// Measure how long the other workers take, not how long a vendor hangs.
	if err := errors.Join(d.behave(ctx), v.release(ctx)); err != nil {
		return err
	}
	if err := d.recovered(ctx, id); err != nil {
		return err
	}
	return d.misbehave(ctx)
}

// workerID waits until the worker has registered and returns its id.
func (d *demo) workerID(ctx context.Context, worker *process) (id int, err error) {
	host, _ := os.Hostname()
	err = d.eventually(ctx, 10*time.Second, func() (bool, error) {
		err := d.pool.QueryRow(ctx, `select id from samekey.workers where name = $1`, fmt.Sprintf("%s-%d", host, worker.pid())).Scan(&id)
		if errors.Is(err, pgx.ErrNoRows) {
			return false, nil
		}
		return true, err
	})
	if err != nil {
		err = fmt.Errorf("%s has not registered: %w", worker.name, err)
	}
	return id, err
}

// recovered waits a short time until the dead worker's intents are finished. The books report how long it took.
func (d *demo) recovered(ctx context.Context, worker int) error {
	err := d.eventually(ctx, 3*time.Second, func() (done bool, err error) {
		err = d.pool.QueryRow(ctx, `
			select not exists (select from samekey.outbox_queue where leased_by = $1)
			   and not exists (select from samekey.outbox_history h join samekey.outbox_queue q on q.id = h.intent_id
			                   where h.worker = $1 and h.event = 'orphaned')`, worker).Scan(&done)
		return done, err
	})
	if errors.Is(err, errPatience) {
		return nil
	}
	return err
}

// killService kills the service during traffic. Its clients see a cut or refused connection, and send again.
func (d *demo) killService(ctx context.Context) error {
	before := d.traffic.requests.Load()
	if err := d.eventually(ctx, 10*time.Second, func() (bool, error) { return d.traffic.requests.Load() > before, nil }); err != nil {
		return err
	}
	d.service.kill()
	d.serviceKills++
	d.say("SIGKILL to the service")
	return nil
}

var errPatience = errors.New("the condition did not become true")

// eventually calls ask until it returns true or patience is over; then its error is errPatience.
func (d *demo) eventually(ctx context.Context, patience time.Duration, ask func() (bool, error)) error {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("%w within %v", errPatience, patience))
	defer cancel()
	for {
		ok, err := ask()
		if ok || err != nil {
			return err
		}
		if pause(ctx, 25*time.Millisecond); ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
}
