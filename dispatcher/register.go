package dispatcher

import (
	"bytes"
	"maps"
	"slices"

	"github.com/samekey/samekey/internal/names"
	"github.com/samekey/samekey/outbox"
)

// Handle registers how the intents of an action are delivered. The types of the action's payload and of the delivery's
// functions must agree, or the program does not compile. Mistakes are kept for [Dispatcher.Check].
//
// For an action whose name is known only at run time, use an outbox.Action[[]byte].
func Handle[T any](d *Dispatcher, action outbox.Action[T], delivery Delivery[T]) {
	d.register(delivery.erase(action), delivery.Vendor, delivery.Mistakes)
}

// register adds an action to its destination, and notes what is wrong with it.
func (d *Dispatcher) register(a *action, vendor Vendor, mistakes ConfigErrors) {
	d.mu.Lock()
	defer d.mu.Unlock()
	item := itemAction(a.name)
	if err := names.CheckAction(a.name); err != nil {
		d.mistakes.Add(item, "", "the name %v: declare the action with outbox.NewAction", err)
	} else if d.actions[a.name] != nil {
		d.mistakes.Add(item, "", "registered twice")
	}
	if a.send == nil {
		d.mistakes.Add(item, "Send", "missing")
	}
	if a.stored && a.endpoint == nil {
		d.mistakes.Add(item, "StoredEndpoint", "needs %s, which names the endpoint", GoName("Endpoint"))
		a.stored = false
	}
	dest := d.destination(or(a.declared.Destination, a.name))
	if a.declared.Destination == "" {
		dest.declared = true
	}
	dest.actions = append(dest.actions, a)
	d.describe(dest, vendor)
	d.mistakes.joinFor(item, mistakes)
	d.actions[a.name] = a
	d.registered = append(d.registered, a)
}

// Destination declares a vendor account and its limits. outbox.Pause stops its claims in every worker. So does pausing
// its River queue, "samekey_" and the name, also in River UI.
func (d *Dispatcher) Destination(name string, limits Limits) {
	d.mu.Lock()
	defer d.mu.Unlock()
	dest := d.destination(name)
	if dest.declared {
		d.mistakes.Add(itemDestination(name), "", "declared twice")
	}
	dest.declared = true
	dest.given, dest.limits = append(dest.given, limits), limits.withDefaults()
}

// Vendor describes the vendor account behind a destination. The destination's actions send the delivery key in the
// vendor's form, their policies default to its window, and Check returns what contradicts it.
func (d *Dispatcher) Vendor(destination string, vendor Vendor) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.describe(d.destination(destination), vendor)
}

// describe sets what is known of a destination's vendor. The zero Vendor changes nothing.
func (d *Dispatcher) describe(dest *account, vendor Vendor) {
	item := itemDestination(dest.name)
	switch dest.vendor {
	case vendor:
		return
	case Vendor{}:
	default:
		if vendor != (Vendor{}) {
			d.mistakes.Add(item, "Vendor", "described twice, and differently")
		}
		return
	}
	dest.vendor = vendor
	vendor.check(&d.mistakes, item)
}

func (d *Dispatcher) destination(name string) *account {
	dest := d.destinations[name]
	if dest == nil {
		dest = &account{name: name, limits: Limits{}.withDefaults()}
		d.destinations[name] = dest
		if err := names.CheckDestination(name); err != nil {
			d.mistakes.Add(itemDestination(name), "", "the name %v", err)
		}
	}
	return dest
}

func (d *Dispatcher) sortedDestinations() []*account {
	var out []*account
	for _, dest := range d.destinations {
		if len(dest.actions) > 0 {
			out = append(out, dest)
		}
	}
	slices.SortFunc(out, func(a, b *account) int { return bytes.Compare([]byte(a.name), []byte(b.name)) })
	return out
}

// Check returns every mistake in what was registered so far, as [ConfigErrors], or nil. [Dispatcher.Run] and
// [Dispatcher.Drain] call it first. It needs no database.
func (d *Dispatcher) Check() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	var errs ConfigErrors
	d.config.check(&errs)
	errs.Join(d.mistakes.Err())
	for _, name := range slices.Sorted(maps.Keys(d.destinations)) {
		dest := d.destinations[name]
		for _, limits := range dest.given {
			limits.check(&errs, itemDestination(name), dest.hasEndpoints() || len(dest.actions) == 0)
			if limits.StopEndpointAfter != 0 && len(dest.actions) > 0 && !slices.ContainsFunc(dest.actions, func(a *action) bool { return a.stored }) {
				errs.Add(itemDestination(name), "StopEndpointAfter", "not allowed: no action of the destination has stored endpoints")
			}
		}
	}
	d.resolve()
	for _, a := range d.registered {
		a.check(&errs, d.destinations[a.destination()])
	}
	if len(d.registered) == 0 {
		errs.Add("dispatcher", "", "no action is registered")
	}
	return errs.Err()
}

// resolve gives each action its policy's defaults, which depend on its destination's vendor.
func (d *Dispatcher) resolve() {
	for _, a := range d.registered {
		p, vendor := a.declared, d.destinations[or(a.declared.Destination, a.name)].vendor
		if p.Class == IdempotentWrite && p.KeyWindow == 0 {
			p.KeyWindow = vendor.Window
		}
		a.policy, a.rules = p.withDefaults(), vendor.Key
	}
}
