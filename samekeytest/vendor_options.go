package samekeytest

import (
	"fmt"
	"net/http"
)

// VendorOptions says how a [Vendor] behaves. The zero value honours keys and
// answers every call 201 with an id.
type VendorOptions struct {
	// KeyHeader carries the key, bare or quoted. Default "Idempotency-Key".
	KeyHeader string

	// AttemptHeader carries the caller's attempt number, which goes into the
	// ledger. Default "Samekey-Attempt"; a call without it has attempt 0.
	AttemptHeader string

	// IgnoreKeys makes a vendor that does not honour keys: a call needs none,
	// and each one is an effect.
	IgnoreKeys bool

	// ConflictStatus answers a key that comes back with another body or path.
	// Default 422; some vendors say 409.
	ConflictStatus int

	// Answer is the business rule. It runs once per key (per call with
	// IgnoreKeys), possibly for several calls at once. Default: 201 and an id.
	Answer func(VendorRequest) VendorAnswer

	// Identity names the business operation that a body asks for, such as its
	// order id ([IdentityField]), so that two effects of one operation are seen
	// as a double under whatever keys they came. Default, and where it returns
	// "": the key, or without one the body's hash.
	Identity func(body []byte) string

	// LedgerFile keeps the ledger as JSON lines; each effect is written to it
	// before its answer is sent. A vendor started on an existing file remembers
	// its keys and goes on. Default: in memory only.
	LedgerFile string

	// Faults are the faults to start with; see [Vendor.SetFaults].
	Faults FaultPlan

	// Script, if set, decides the fault of each call that neither
	// [Vendor.Next] nor the plan has one for.
	Script func(VendorCall) Fault
}

// VendorRequest is a call as the business rule sees it.
type VendorRequest struct {
	Call   int64 // the call's number in the ledger, never used twice
	Path   string
	Key    string
	Header http.Header
	Body   []byte
}

// VendorAnswer is what the vendor decided. It is stored under the key and
// replayed byte for byte. A 2xx is an effect; anything else is not.
type VendorAnswer struct {
	Status int         `json:"status"`
	Header http.Header `json:"header,omitempty"` // Content-Type defaults to application/json
	Body   []byte      `json:"body"`

	// Forget stores nothing, as for a failed validation: the same key is judged
	// anew. It is ignored for a 2xx.
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
