package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strconv"
	"time"
)

// startAll starts the vendors first, because the workers need their URLs.
func (d *demo) startAll(ctx context.Context) error {
	d.payments, d.mail = d.vendor("payment", "charge_card"), d.vendor("mail", "send_receipt")
	for _, v := range []*vendor{d.payments, d.mail} {
		if err := v.start(ctx); err != nil {
			return err
		}
	}
	if err := d.misbehave(ctx); err != nil {
		return err
	}
	address, err := freeAddress(ctx)
	if err != nil {
		return err
	}
	d.service = d.process("the service", "service", "-listen", address)
	d.service.hello = true
	if err := d.service.start(ctx); err != nil {
		return err
	}
	for i := range 2 {
		worker := d.process("worker "+strconv.Itoa(i+1), "worker", "-payments", d.payments.url, "-mail", d.mail.url,
			"-timeout", d.timeout.String(), "-concurrency", strconv.Itoa(concurrency))
		worker.env = append(worker.env, "DEPLOYMENT=demo", "LISTEN_ADDR=off", "CREATEORDER_BREAK="+d.sabotage)
		d.workers = append(d.workers, worker)
		if err := worker.start(ctx); err != nil {
			return err
		}
	}
	d.traffic = newTraffic(d.service.url, d.seed)
	return nil
}

func (d *demo) process(name, program string, args ...string) *process {
	return &process{
		name: name, command: filepath.Join(d.bin, program), args: args,
		env: []string{"DATABASE_URL=" + d.dsn}, logFile: filepath.Join(d.dir, name+".log"),
		crashed: func(err error) { d.giveUp(err) },
	}
}

func (d *demo) vendor(kind, action string) *vendor {
	v := &vendor{kind: kind, action: action, ledger: filepath.Join(d.dir, kind+".ledger")}
	v.process = d.process(kind+" vendor", "vendors", "-kind", kind, "-ledger", v.ledger)
	v.hello = true
	return v
}

// freeAddress returns an address that the service can use again after a kill.
func freeAddress(ctx context.Context) (string, error) {
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer listener.Close()
	return listener.Addr().String(), nil
}

// stopAll stops all processes: callers before the services that they call.
func (d *demo) stopAll() error {
	var errs []error
	for _, p := range d.processes() {
		errs = append(errs, p.stop(10*time.Second))
	}
	return errors.Join(errs...)
}

// killAll ends all processes that still run.
func (d *demo) killAll() {
	for _, p := range d.processes() {
		_ = p.stop(0)
	}
}

func (d *demo) processes() (all []*process) {
	if d.service != nil {
		all = append(all, d.service)
	}
	all = append(all, d.workers...)
	for _, v := range []*vendor{d.payments, d.mail} {
		if v != nil {
			all = append(all, v.process)
		}
	}
	return all
}

// play lets the clients order while workers and services are killed, and waits until all intents are finished.
func (d *demo) play(ctx context.Context) error {
	killed := make(chan struct{})
	go func() {
		defer close(killed)
		if err := d.killing(ctx); err != nil {
			d.giveUp(err)
		}
	}()
	progress, stopProgress := context.WithCancel(ctx)
	shown := make(chan struct{})
	go func() {
		defer close(shown)
		d.showProgress(progress)
	}()
	defer func() { stopProgress(); <-shown; <-killed }()

	d.traffic.run(ctx, d.seed, d.orders, d.perSecond, killed)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err := d.behave(ctx); err != nil {
		return err
	}
	d.say("every client has its answer, and the vendors behave from now on; the workers finish")
	return d.settled(ctx)
}

// settled waits until no intent is in progress. An intent that waits for a person (dead, parked) stays unfinished; the
// books report it.
func (d *demo) settled(ctx context.Context) error {
	err := d.eventually(ctx, time.Minute, func() (idle bool, err error) {
		err = d.pool.QueryRow(ctx, `
			select not exists (select from samekey.outbox_queue
			                   where status in ('pending', 'blocked', 'leased', 'unknown', 'answered'))`).Scan(&idle)
		return idle, err
	})
	if err != nil {
		return fmt.Errorf("the workers did not finish: %w", err)
	}
	return nil
}

// misbehave makes both vendors deal out faults; behave stops that.
func (d *demo) misbehave(ctx context.Context) error {
	return errors.Join(d.payments.misbehave(ctx, d.seed), d.mail.misbehave(ctx, d.seed+1))
}

func (d *demo) behave(ctx context.Context) error {
	return errors.Join(d.payments.behave(ctx), d.mail.behave(ctx))
}
