package samekeytest

import (
	"fmt"
	"net/http"
)

// VendorOptions configures a [Vendor]. The zero value honors keys and answers every call with 201 and an id.
type VendorOptions struct {
	// KeyHeader is the header with the key, bare or quoted. Default: Idempotency-Key.
	KeyHeader string

	// AttemptHeader is the header with the caller's attempt number, for the ledger. Default: Samekey-Attempt. A call
	// without it has attempt 0.
	AttemptHeader string

	// IgnoreKeys makes the vendor ignore keys: a call needs no key, and each call is an effect.
	IgnoreKeys bool

	// ConflictStatus answers a key that is reused with another body or path. Default: 422. Some vendors use 409.
	ConflictStatus int

	// Answer is the business rule. It runs once per key (once per call with IgnoreKeys), possibly for several calls at
	// once. Default: 201 and an id.
	Answer func(VendorRequest) VendorAnswer

	// Identity returns the business operation that a body asks for, such as its order id ([IdentityField]). Two effects
	// of one operation then count as a double even under two keys. Default, and if it returns "": the key, or the
	// body's hash if there is no key.
	Identity func(body []byte) string

	// LedgerFile stores the ledger as JSON lines. Each effect is written before its answer is sent. A vendor that
	// starts with an existing file remembers its keys. Default: in memory only.
	LedgerFile string

	// Faults are the faults to start with; see [Vendor.SetFaults].
	Faults FaultPlan

	// Script decides the fault of each call for which neither Next nor the plan has one. It returns "" for no fault.
	Script func(VendorCall) Fault
}

// VendorRequest is the input of the business rule.
type VendorRequest struct {
	Call   int64 // the call's number in the ledger
	Path   string
	Key    string
	Header http.Header
	Body   []byte
}

// VendorAnswer is the vendor's decision. It is stored under the key and replayed byte for byte. A 2xx is an effect; any
// other status is not.
type VendorAnswer struct {
	Status int         `json:"status"`
	Header http.Header `json:"header,omitempty"` // Content-Type defaults to application/json
	Body   []byte      `json:"body"`

	// Forget stores nothing, as for a failed validation: the next call with this key is decided again. It is ignored
	// for a 2xx.
	Forget bool `json:"-"`
}

func (opts *VendorOptions) withDefaults() VendorOptions {
	var o VendorOptions
	if opts != nil {
		o = *opts
	}
	if o.KeyHeader == "" {
		o.KeyHeader = "Idempotency-Key"
	}
	if o.AttemptHeader == "" {
		o.AttemptHeader = "Samekey-Attempt"
	}
	if o.ConflictStatus == 0 {
		o.ConflictStatus = http.StatusUnprocessableEntity
	}
	if o.Answer == nil {
		o.Answer = func(r VendorRequest) VendorAnswer {
			return VendorAnswer{Status: http.StatusCreated, Body: fmt.Appendf(nil, `{"id":"eff_%d"}`, r.Call)}
		}
	}
	return o
}
