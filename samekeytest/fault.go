package samekeytest

import (
	"fmt"
	"regexp"
	"strings"
	"time"
)

// Fault is what goes wrong with one call at a [Vendor] or a [Proxy]. It is text, so that flags and JSON can carry it.
// Besides the constants below, a fault can be:
//
//	503             answer with this status, any from 200 to 599, and do not act
//	503_after       act, then answer with this status; the retry with the same key gets the stored success
//	429(7)          as 429, with the header Retry-After: 7; 429() has no header, and 429 has Retry-After: 1
//	slow(250ms)     act, and answer after this time
//	402             at a vendor: decline; see below
//
// To act is: a vendor makes the effect, or declines, and stores its answer under the key, or replays a stored answer; a
// proxy sends the request to its backend and reads the answer.
//
// The fault 402 makes a vendor decline the call: it has no effect, and the 402 is stored under the key. A key that has
// its answer already is replayed instead. A proxy cannot decline: to it, 402 is a status as any other.
type Fault string

const (
	// FaultNone lets a call through. It takes a place in a queue of faults.
	FaultNone Fault = "none"
	// FaultLoseAnswer acts, then closes the connection without an answer.
	FaultLoseAnswer Fault = "lose_answer"
	// FaultResetBefore reads the request, does not act, and resets the connection.
	FaultResetBefore Fault = "reset_before"
	// FaultResetAfter acts, then resets the connection.
	FaultResetAfter Fault = "reset_after"
	// FaultHang parks the call until Release, then acts and answers. If the client goes away first, it does not act.
	FaultHang Fault = "hang"
	// FaultHangAfter acts, then parks the answer until Release.
	FaultHangAfter Fault = "hang_after"
	// FaultLate parks the call until its client has gone away (or until Release), and acts only then.
	FaultLate Fault = "late"
	// FaultTruncate acts and sends half of the answer's body.
	FaultTruncate Fault = "truncate"
	// FaultDuplicate is for a [Proxy] only. It sends the request to the backend twice at once. When both are answered,
	// the client gets the first answer.
	FaultDuplicate Fault = "duplicate"
	// FaultResend is for a [Proxy] only. It sends the request to the backend, and once more after the answer. The
	// client gets the first answer.
	FaultResend Fault = "resend"
)

const faultSlow = "slow"

var statusFault = regexp.MustCompile(`^([1-5]\d\d)(_after)?$`)

// ParseFaults returns the faults of a comma-separated list, for a [Vendor]. The error lists the faults that exist.
func ParseFaults(list string) ([]Fault, error) {
	var faults []Fault
	for s := range strings.SplitSeq(list, ",") {
		f := Fault(strings.TrimSpace(s))
		if f == "" {
			continue
		}
		if err := checkVendorFault(f); err != nil {
			return nil, err
		}
		faults = append(faults, f)
	}
	return faults, nil
}

func checkVendorFault(f Fault) error {
	kind, arg, hasArg := f.split()
	switch Fault(kind) {
	case FaultNone, FaultLoseAnswer, FaultResetBefore, FaultResetAfter, FaultHang, FaultHangAfter, FaultLate, FaultTruncate:
		if !hasArg {
			return nil
		}
	case faultSlow:
		if d, err := time.ParseDuration(arg); err == nil && d >= 0 {
			return nil
		}
	default:
		if statusFault.MatchString(kind) && kind >= "200" {
			return nil
		}
	}
	return fmt.Errorf("samekeytest: unknown fault %q: want none, lose_answer, reset_before, reset_after, hang, hang_after, late, truncate, "+
		"slow(250ms), or a status such as 500, 500_after, 429(2), 402", string(f))
}

func checkProxyFault(f Fault) error {
	if f == FaultDuplicate || f == FaultResend {
		return nil
	}
	if err := checkVendorFault(f); err != nil {
		return fmt.Errorf("%w; or, at a proxy, duplicate, resend", err)
	}
	return nil
}

// split returns the two parts of "kind(arg)".
func (f Fault) split() (kind, arg string, hasArg bool) {
	kind, arg, hasArg = strings.Cut(string(f), "(")
	if !hasArg {
		return kind, "", false
	}
	arg, ok := strings.CutSuffix(arg, ")")
	if !ok {
		return string(f), "", false
	}
	return kind, arg, true
}

func (f Fault) kind() string {
	kind, _, _ := f.split()
	return kind
}
