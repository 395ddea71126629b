package webhook

import (
	"fmt"
	"net/http"

	"github.com/samekey/samekey/internal/names"
)

// connection are the headers that say how a request is framed or forwarded. net/http decides them.
var connection = map[string]bool{
	"Host": true, "Content-Length": true, "Transfer-Encoding": true, "Connection": true, "Keep-Alive": true, "Te": true,
	"Trailer": true, "Upgrade": true, "Expect": true, "Accept-Encoding": true, "Proxy-Connection": true,
	"Proxy-Authorization": true, "Proxy-Authenticate": true,
}

// own are the headers that the worker sets on each call to a receiver.
var own = map[string]bool{
	"Webhook-Id": true, "Webhook-Timestamp": true, "Webhook-Signature": true, "X-Hub-Signature-256": true,
	"X-Webhook-Signature": true, "Idempotency-Key": true, "X-Idempotency-Key": true, "Content-Type": true,
	"Traceparent": true, "Samekey-Attempt": true,
}

// OfConnection reports whether a header, by its canonical name, belongs to the connection.
func OfConnection(canonical string) bool { return connection[canonical] }

// CheckHeader returns an error for a header that cannot be sent. The error may hold the name, cleaned, and never the
// value.
func CheckHeader(name, value string) error {
	if len(name) > 255 || !names.IsToken(name) {
		return fmt.Errorf("%.40q is not a valid header name", name)
	}
	if connection[http.CanonicalHeaderKey(name)] {
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
	if own[http.CanonicalHeaderKey(name)] {
		return fmt.Errorf("%q is set by the worker and cannot be set", name)
	}
	return nil
}
