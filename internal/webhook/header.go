package webhook

import (
	"fmt"
	"slices"
	"strings"

	"github.com/samekey/samekey/internal/names"
)

// signatures are the headers of webhooks and their signatures, which the worker sets too.
var signatures = []string{"webhook-id", "webhook-timestamp", "webhook-signature", "x-hub-signature-256", "x-webhook-signature"}

// OfConnection reports whether a header belongs to the connection.
func OfConnection(name string) bool {
	return slices.Contains(names.ConnectionHeaders, strings.ToLower(name))
}

// CheckHeader returns an error for a header that cannot be sent. The error may hold the name, cleaned, and never the
// value.
func CheckHeader(name, value string) error {
	if len(name) > 255 || !names.IsToken(name) {
		return fmt.Errorf("%.40q is not a valid header name", name)
	}
	if OfConnection(name) {
		return fmt.Errorf("%q belongs to the connection and cannot be set", name)
	}
	for i := range len(value) {
		if b := value[i]; b < ' ' && b != '\t' || b == 0x7f {
			return fmt.Errorf("the value of %q has a control character at byte %d", name, i)
		}
	}
	return nil
}

// CheckReceiverHeader is CheckHeader for a receiver's own header, which must also leave alone what the worker sets.
// samekey.endpoint_headers_wrong has the same rules.
func CheckReceiverHeader(name, value string) error {
	if err := CheckHeader(name, value); err != nil {
		return err
	}
	if lower := strings.ToLower(name); slices.Contains(names.WorkerHeaders, lower) || slices.Contains(signatures, lower) {
		return fmt.Errorf("%q is set by the worker and cannot be set", name)
	}
	return nil
}
