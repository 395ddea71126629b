package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
)

// say prints a line with the time since the start.
func (d *demo) say(format string, args ...any) {
	fmt.Fprintf(d.out, "%5.1f s  %s\n", time.Since(d.started).Seconds(), fmt.Sprintf(format, args...))
}

// showProgress prints a line each second.
func (d *demo) showProgress(ctx context.Context) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		var orders, unfinished int
		err := d.pool.QueryRow(ctx, `select (select count(*) from shop.orders), (select count(*) from samekey.outbox_queue)`).Scan(&orders, &unfinished)
		payments, mail, err2 := d.counts(ctx)
		if errors.Join(err, err2) != nil {
			continue // a database or vendor that does not answer is reported elsewhere
		}
		d.say("clients %4d  orders %4d  charges %4d  declined %3d  receipts %4d  intents open %4d  calls %5d  faults played %4d",
			d.traffic.clients.Load(), orders, payments.Effects, payments.Declined, mail.Effects, unfinished, payments.Calls+mail.Calls, sum(payments.Faults)+sum(mail.Faults))
	}
}

// checkShow checks that enough went wrong: books that balance prove nothing if no fault was played.
func (d *demo) checkShow(b *books) {
	atLeast := func(have, want int, what string) {
		if have < want {
			b.problem("the demo must show %s at least %d times, but showed it %d times", what, want, have)
		}
	}
	atLeast(b.orders, 300, "an order")
	atLeast(b.declined, 10, "a declined card")
	atLeast(len(b.open), 5, "a killed worker")
	atLeast(d.serviceKills, 2, "a killed service")
	for _, open := range b.open {
		atLeast(open, atOnce, "a call that was open when its worker was killed")
	}
	for _, fault := range faults {
		kind, _, _ := strings.Cut(string(fault), "(")
		atLeast(b.faults[kind], 10, "the fault "+kind)
	}
}

// report prints the ledger, and returns an error unless the books balance.
func (d *demo) report(b books) error {
	line := func(name string, value any, notes ...string) {
		fmt.Fprintf(d.out, "  %-20s %7v  %s\n", name, value, strings.Join(notes, ""))
	}
	fmt.Fprintln(d.out, "\nThe ledger, from the vendors' files and the database:")
	line("clients", d.traffic.clients.Load(), fmt.Sprintf("each posts its order twice under one key, every third client at the same moment; %d order an unknown product", b.missing))
	line("orders", b.orders, "one for each other client")
	line("posts", len(d.traffic.replies), fmt.Sprintf("%d with another order under a used key: answered 422", b.conflicts))
	line("requests", d.traffic.requests.Load(), "a client repeats a post until it is answered")
	line("replays", b.replays)
	line("intents", b.intents)
	line("calls on the wire", b.calls)
	line("charges", b.charges)
	line("receipts", b.receipts)
	line("declined", b.declined)
	line("doubles", b.doubles)
	line("lost", b.lost)
	line("kills", len(b.open)+d.serviceKills, fmt.Sprintf("%d of the service, %d of a worker with %s calls open", d.serviceKills, len(b.open), list(b.open)))
	line("longest recovery", fmt.Sprintf("%.2f s", b.recovery.Seconds()), fmt.Sprintf("from SIGKILL until another worker delivered the last of its intents (%d in all)", b.held))
	var played []string
	for _, kind := range sortedKeys(b.faults) {
		played = append(played, fmt.Sprintf("%s %d", kind, b.faults[kind]))
	}
	line("faults played", sum(b.faults), strings.Join(played, ", "))
	line("time", fmt.Sprintf("%.1f s", time.Since(d.started).Seconds()))

	if len(b.problems) == 0 {
		fmt.Fprintln(d.out, "\nThe books balance: the same key, the same effect.")
		return nil
	}
	if d.sabotage != "" {
		fmt.Fprintf(d.out, "\nBREAK=%s: each attempt carried a new key, so the vendors could not recognize it.\n", d.sabotage)
	}
	const most = 12
	for _, problem := range b.problems[:min(most, len(b.problems))] {
		fmt.Fprintln(d.out, "  -", problem)
	}
	if more := len(b.problems) - most; more > 0 {
		fmt.Fprintf(d.out, "  - and %d more\n", more)
	}
	return fmt.Errorf("the books do not balance: %d doubles, %d lost, %d problems", b.doubles, b.lost, len(b.problems))
}

func list(numbers []int) string { return strings.Trim(fmt.Sprint(numbers), "[]") }

func sum(counts map[string]int) (total int) {
	for _, n := range counts {
		total += n
	}
	return total
}
