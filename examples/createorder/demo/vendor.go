package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/samekey/samekey/samekeytest"
)

// faults are what the vendors do to the first call of every second key. All kinds are dealt out equally often.
var faults = []samekeytest.Fault{
	samekeytest.FaultLoseAnswer, samekeytest.FaultResetBefore, samekeytest.FaultResetAfter, samekeytest.FaultTruncate,
	"500", "500_after", "503(1)", "429",
	samekeytest.FaultHang, samekeytest.FaultHangAfter, samekeytest.FaultLate, "slow(400ms)",
}

// vendor is a vendor's process and its control.
type vendor struct {
	*process
	kind   string
	action string // whose calls it gets
	ledger string
}

// open waits until at least this many calls are open at the vendor, and returns its counts.
func (v *vendor) open(ctx context.Context, atLeast int, within time.Duration) (counts samekeytest.VendorCounts, err error) {
	return counts, v.control(ctx, "GET", fmt.Sprintf("open?at_least=%d&within=%v", atLeast, within), nil, &counts)
}

// counts asks both vendors.
func (d *demo) counts(ctx context.Context) (payments, mail samekeytest.VendorCounts, err error) {
	payments, err = d.payments.open(ctx, 0, 0)
	mail, err2 := d.mail.open(ctx, 0, 0)
	return payments, mail, errors.Join(err, err2)
}

// hold keeps all further calls open: before the vendor acts, or after it acts and before it answers.
func (v *vendor) hold(ctx context.Context, answers bool) error {
	return v.control(ctx, "POST", fmt.Sprintf("hold?answers=%t", answers), nil, nil)
}

func (v *vendor) release(ctx context.Context) error {
	return v.control(ctx, "POST", "release", nil, nil)
}

// misbehave makes the vendor deal out faults.
func (v *vendor) misbehave(ctx context.Context, seed uint64) error {
	return v.control(ctx, "PUT", "faults", samekeytest.FaultPlan{Faults: faults, Every: 2, Seed: seed}, nil)
}

// behave makes the vendor deal out no more faults.
func (v *vendor) behave(ctx context.Context) error {
	return v.control(ctx, "PUT", "faults", samekeytest.FaultPlan{}, nil)
}

func (v *vendor) control(ctx context.Context, method, path string, body, result any) error {
	encoded, err := json.Marshal(body)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, method, v.url+"/_control/"+path, bytes.NewReader(encoded))
	if err != nil {
		return err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("the %s vendor answered %s to %s %s", v.kind, res.Status, method, path)
	}
	if result == nil {
		return nil
	}
	return json.NewDecoder(res.Body).Decode(result)
}
