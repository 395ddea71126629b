package samekeytest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"time"
)

// Ledger is what a [Vendor] received and did so far.
type Ledger struct {
	Calls    []VendorCall   `json:"calls"`    // every whole POST on the wire, in order of arrival
	Effects  []VendorRecord `json:"effects"`  // every effect, in order
	Declined []VendorRecord `json:"declined"` // every stored decision without an effect
	Counts   VendorCounts   `json:"counts"`
}

// VendorCall is one POST on the wire.
type VendorCall struct {
	Call       int64      `json:"call"` // 1, 2, ... in order of arrival
	Path       string     `json:"path"` // with the query
	Key        string     `json:"key"`
	Nth        int        `json:"nth,omitempty"`     // position among the calls with this key, starting at 1
	Attempt    int        `json:"attempt,omitempty"` // from the AttemptHeader, or 0
	BodyHash   string     `json:"body_hash"`         // SHA-256, hex
	Identity   string     `json:"identity"`
	Fault      Fault      `json:"fault,omitempty"`
	Effect     bool       `json:"effect,omitempty"`   // this call made the effect
	Replayed   bool       `json:"replayed,omitempty"` // the key had its answer already
	Status     int        `json:"status,omitempty"`   // of the answer; 0 if there was none
	ClientGone bool       `json:"client_gone,omitempty"`
	Arrived    time.Time  `json:"arrived"`
	Ended      *time.Time `json:"ended,omitempty"` // nil while it is open, or if the vendor was killed meanwhile
}

// VendorRecord is a decision that the vendor remembers: an effect or a decline.
type VendorRecord struct {
	Call     int64        `json:"call"` // the call that made it
	Key      string       `json:"key"`
	Path     string       `json:"path"`
	Identity string       `json:"identity"`
	BodyHash string       `json:"body_hash"`
	Body     []byte       `json:"body"` // base64 in JSON, so that it stays byte-exact
	Answer   VendorAnswer `json:"answer"`
	At       time.Time    `json:"at"`
}

func (r VendorRecord) effect() bool     { return r.Answer.Status >= 200 && r.Answer.Status < 300 }
func (r VendorRecord) business() string { return r.Path + " " + r.Identity }

// VendorCounts are the totals of a ledger, cheap enough to poll.
type VendorCounts struct {
	Open     int            `json:"open"`     // calls open right now
	MaxOpen  int            `json:"max_open"` // the most that were open at once
	Calls    int            `json:"calls"`
	Effects  int            `json:"effects"`
	Declined int            `json:"declined"`
	Doubles  int            `json:"doubles"` // effects beyond the first of each path and identity
	Lookups  int            `json:"lookups"` // since this vendor started
	Faults   map[string]int `json:"faults"`  // injected, by kind
}

// VendorDouble is a business operation that had more than one effect.
type VendorDouble struct {
	Path     string
	Identity string
	Effects  []VendorRecord
}

// Doubles returns the operations, by path and identity, that had more than one effect, under one key or several. They
// are in the order of their first effects.
func (l Ledger) Doubles() []VendorDouble {
	var order []string
	by := map[string][]VendorRecord{}
	for _, e := range l.Effects {
		id := e.business()
		if by[id] == nil {
			order = append(order, id)
		}
		by[id] = append(by[id], e)
	}
	var doubles []VendorDouble
	for _, id := range order {
		if effects := by[id]; len(effects) > 1 {
			doubles = append(doubles, VendorDouble{Path: effects[0].Path, Identity: effects[0].Identity, Effects: effects})
		}
	}
	return doubles
}

// KeyCounts are the totals of one key.
type KeyCounts struct {
	Calls, Effects, Replays, Faults int
}

// ByKey returns the counts of each key; calls without one are under "".
func (l Ledger) ByKey() map[string]KeyCounts {
	by := map[string]KeyCounts{}
	for _, c := range l.Calls {
		n := by[c.Key]
		n.Calls++
		if c.Replayed {
			n.Replays++
		}
		if c.Fault != "" {
			n.Faults++
		}
		by[c.Key] = n
	}
	for _, e := range l.Effects {
		n := by[e.Key]
		n.Effects++
		by[e.Key] = n
	}
	return by
}

// Ledger returns a copy of the ledger. A call is in it from its arrival, an effect before its answer is sent, and a
// call's end before its client can have read the whole answer.
func (v *Vendor) Ledger() Ledger {
	v.mu.Lock()
	defer v.mu.Unlock()
	return Ledger{
		Calls:    slices.Clone(v.calls),
		Effects:  slices.Clone(v.effects),
		Declined: slices.Clone(v.declined),
		Counts:   v.counts(),
	}
}

// Counts returns the totals of the ledger.
func (v *Vendor) Counts() VendorCounts {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.counts()
}

func (v *Vendor) counts() VendorCounts {
	return VendorCounts{
		Open: v.open, MaxOpen: v.maxOpen, Calls: len(v.calls), Effects: len(v.effects),
		Declined: len(v.declined), Doubles: v.doubles, Lookups: v.lookups, Faults: maps.Clone(v.faults),
	}
}

// WaitEffects waits until there are at least n effects.
func (v *Vendor) WaitEffects(ctx context.Context, n int) error {
	return v.waitFor(ctx, n, "effects", func() int { return len(v.effects) })
}

// event is one line of the ledger file.
type event struct {
	Kind   string        `json:"event"` // start, call, record, end
	Call   *VendorCall   `json:"call,omitempty"`
	Record *VendorRecord `json:"record,omitempty"`
}

// append writes one event. A write that has returned survives the end of this process. v.mu is held.
func (v *Vendor) append(e event) error {
	if v.broken != nil || v.file == nil {
		return v.broken
	}
	line, err := json.Marshal(e)
	if err == nil {
		_, err = v.file.Write(append(line, '\n'))
	}
	if err != nil {
		v.broken = fmt.Errorf("samekeytest: vendor ledger: %w", err)
	}
	return v.broken
}

func (v *Vendor) openLedger(path string) error {
	whole, err := v.load(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	file, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return fmt.Errorf("samekeytest: vendor ledger: %w", err)
	}
	// A vendor that was killed during a write leaves half a line. Its answer was not sent.
	if err := file.Truncate(whole); err != nil {
		_ = file.Close()
		return fmt.Errorf("samekeytest: vendor ledger: %w", err)
	}
	v.file = file
	v.apply(event{Kind: "start"})
	return v.append(event{Kind: "start"})
}

// load replays the file into memory and returns the length of its complete lines.
func (v *Vendor) load(path string) (int64, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return 0, fmt.Errorf("samekeytest: vendor ledger: %w", err)
	}
	whole := bytes.LastIndexByte(data, '\n') + 1
	for i, line := range bytes.Split(data[:whole], []byte("\n")) {
		if len(line) == 0 {
			continue
		}
		var e event
		if err := json.Unmarshal(line, &e); err != nil {
			return 0, fmt.Errorf("samekeytest: vendor ledger: line %d: %w", i+1, err)
		}
		if !v.apply(e) {
			return 0, fmt.Errorf("samekeytest: vendor ledger: line %d: %q does not follow from the lines before it", i+1, e.Kind)
		}
	}
	return int64(whole), nil
}

// apply replays one event. It returns false if the event cannot follow the ones before it.
func (v *Vendor) apply(e event) bool {
	switch {
	case e.Kind == "start":
		v.open = 0 // open calls ended with the vendor
	case e.Kind == "call" && e.Call != nil:
		if e.Call.Call != int64(len(v.calls))+1 {
			return false
		}
		v.calls = append(v.calls, *e.Call)
		v.state(e.Call.Key).calls++
		if e.Call.Fault != "" {
			v.faults[e.Call.Fault.kind()]++
		}
		v.open++
		v.maxOpen = max(v.maxOpen, v.open)
	case e.Kind == "record" && e.Record != nil && v.has(e.Record.Call):
		v.calls[e.Record.Call-1].Effect = e.Record.effect()
		v.keep(*e.Record)
	case e.Kind == "end" && e.Call != nil && v.has(e.Call.Call):
		v.calls[e.Call.Call-1] = *e.Call
		v.open--
	default:
		return false
	}
	return true
}

func (v *Vendor) has(call int64) bool { return call >= 1 && call <= int64(len(v.calls)) }

// ReadLedger reads a vendor's ledger file, even while the vendor writes it or after the vendor was killed.
func ReadLedger(path string) (Ledger, error) {
	v, err := NewVendor(nil)
	if err != nil {
		return Ledger{}, err
	}
	if _, err := v.load(path); err != nil {
		return Ledger{}, err
	}
	return v.Ledger(), nil
}
