package stripevendor

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/samekey/samekey/dispatcher"
	"github.com/samekey/samekey/internal/httpstatus"
	"github.com/samekey/samekey/internal/retryafter"
	"github.com/samekey/samekey/internal/wire"
)

// judge says what an attempt came to: the table of the package comment. said is what the registered function returned.
func (c *Client) judge(ctx context.Context, x *exchange, action string, said error) (dispatcher.Answer, error) {
	failed := func(format string, args ...any) error {
		return fmt.Errorf("stripevendor: %s: %s", action, fmt.Sprintf(format, args...))
	}
	switch {
	case x.asked == 0 && ctx.Err() != nil:
		return dispatcher.Answer{Code: "timeout"}, dispatcher.Unsent(failed("the attempt's time was over before it made a request"))
	case x.asked == 0 && errors.Is(said, errOutside):
		return dispatcher.Answer{}, dispatcher.Dead(dispatcher.Answer{Code: "request"}, errOutside)
	case x.asked == 0:
		return dispatcher.Answer{}, dispatcher.Dead(dispatcher.Answer{Code: "request"}, failed("the function made no request"))
	case x.refused != nil && x.refused != errSecond && !x.sent:
		return dispatcher.Answer{}, dispatcher.Dead(dispatcher.Answer{Code: "request"}, failed("%v", x.refused))
	case !x.sent:
		code, text := describe(x.failure)
		return dispatcher.Answer{Code: code}, dispatcher.Unsent(failed("nothing was sent: %s", text))
	case x.status == 0:
		code, text := describe(x.failure)
		return dispatcher.Answer{}, dispatcher.Unknown(dispatcher.Answer{Code: code}, failed("no answer: %s", text))
	}
	answer := c.answer(x)
	switch {
	case x.failure != nil:
		_, text := describe(x.failure)
		return answer, dispatcher.Unknown(answer, failed("the answer, %d, broke off: %s", x.status, text))
	case x.refused != nil:
		return answer, dispatcher.Unknown(answer, failed("%v; the first was answered %d", x.refused, x.status))
	}
	apiErr := parseError(x.body)
	wait, waits := retryafter.Read(x.header, time.Now())
	again, never := x.shouldRetry("true"), x.shouldRetry("false")
	effect := httpstatus.Of(x.status, waits)
	switch {
	case x.status == http.StatusConflict && never:
		answer.Code = firstOf(apiErr.Code, answer.Code)
		return answer, dispatcher.NotBefore(wait, dispatcher.Stuck(answer, failed("answered 409, and that to try again changes nothing")))
	case apiErr.Type == "idempotency_error" && apiErr.Code != inUse && x.status >= 400 && x.status < 500:
		answer.Code = apiErr.Type
		return answer, dispatcher.Dead(answer, failed("answered %d: this key was used with other parameters. Find out what it was used for, then resolve the intent", x.status))
	case x.status >= 200 && x.status < 300 && !json.Valid(x.body):
		return answer, dispatcher.Unknown(answer, failed("the answer, %d, is no JSON", x.status))
	case x.status >= 200 && x.status < 300 && said != nil && strings.Contains(said.Error(), sdkQuotes):
		return answer, dispatcher.Unknown(answer, failed("the answer, %d, is not what this SDK expects", x.status))
	case effect == httpstatus.Acted && said == nil:
		return answer, x.unfinished(answer, wait)
	case effect == httpstatus.Acted:
		return answer, said
	}
	answer.Code = firstOf(apiErr.Code, answer.Code)
	switch {
	case effect == httpstatus.Denied:
		return answer, dispatcher.NotBefore(wait, dispatcher.Denied(answer, failed("answered %d: correct the account's key", x.status)))
	case effect == httpstatus.Later:
		return answer, dispatcher.Throttled(wait, failed("answered %d: ask again later", x.status))
	case x.status >= 400 && x.status < 500 && again || httpstatus.PutOff(x.status, waits):
		return answer, dispatcher.RetryAfter(wait, failed("answered %d, and to try again", x.status))
	case x.status == http.StatusPaymentRequired:
		answer.Code = firstOf(apiErr.DeclineCode, answer.Code)
		return answer, dispatcher.Refused(answer)
	case x.status == http.StatusConflict:
		return answer, dispatcher.RetryAfter(wait, failed("answered 409: it conflicts with a call that is still running"))
	case effect == httpstatus.Silent && strings.EqualFold(x.header.Get("Idempotent-Replayed"), "true"):
		answer.Code = fmt.Sprintf("replayed_%d", x.status)
		return answer, dispatcher.NotBefore(wait, dispatcher.Stuck(answer, failed("answered %d, which is stored under this key: it can never succeed", x.status)))
	case effect == httpstatus.Silent && never:
		return answer, dispatcher.NotBefore(wait, dispatcher.Stuck(answer, failed("answered %d, and that to try again changes nothing", x.status)))
	case effect == httpstatus.Silent:
		return answer, dispatcher.NotBefore(wait, dispatcher.Unknown(answer, failed("answered %d", x.status)))
	case x.status >= 300 && x.status < 400:
		return answer, dispatcher.NotBefore(wait, dispatcher.Stuck(answer, failed("answered %d: redirects are not followed, correct Account.URL", x.status)))
	case effect == httpstatus.Stuck:
		return answer, dispatcher.NotBefore(wait, dispatcher.Stuck(answer, failed("answered %d: it may have been done", x.status)))
	}
	return answer, dispatcher.Dead(answer, failed("answered %d", x.status))
}

// shouldRetry reports whether Stripe says so.
func (x *exchange) shouldRetry(want string) bool {
	return strings.EqualFold(x.header.Get("Stripe-Should-Retry"), want)
}

// unfinished is the verdict on a payment intent or a setup intent that a call confirmed or captured, and that is not done
// with that. Nil: it is, or the answer is about something else. What creates an intent without confirming it is done with
// any status.
func (x *exchange) unfinished(answer dispatcher.Answer, wait time.Duration) error {
	var object struct{ Object, Status string }
	if json.Unmarshal(x.body, &object) != nil || object.Object != "payment_intent" && object.Object != "setup_intent" || !x.confirms {
		return nil
	}
	switch object.Status {
	case "processing", "requires_action", "requires_confirmation":
		return dispatcher.Accepted(answer, wait)
	case "requires_payment_method":
		answer.Code = object.Status
		return dispatcher.Refused(answer)
	}
	return nil
}

// sdkQuotes begins the SDK's error that quotes the answer.
const sdkQuotes = "Couldn't deserialize JSON"

// inUse is the code of a call that came while another with its key was running, of whatever type Stripe says that is.
const inUse = "idempotency_key_in_use"

func firstOf(code, otherwise string) string {
	if code == "" {
		return otherwise
	}
	return code
}

// apiError is what Stripe says of what it did not do.
type apiError struct {
	Type        string `json:"type"`
	Code        string `json:"code"`
	DeclineCode string `json:"decline_code"`
}

func parseError(body []byte) apiError {
	var answer struct {
		Error apiError `json:"error"`
	}
	if json.Unmarshal(body, &answer) != nil {
		return apiError{}
	}
	return answer.Error
}

var clientSecret = regexp.MustCompile(`("client_secret"\s*:\s*)"(?:[^"\\]|\\.)*"`)

// answer is what is kept: client secrets let their bearer act on a payment, and Stripe asks that they are not stored.
func (c *Client) answer(x *exchange) dispatcher.Answer {
	body := clientSecret.ReplaceAll(x.body, []byte(`${1}"[redacted]"`))
	body = bytes.ReplaceAll(body, []byte(c.key), []byte("[redacted]"))
	kind := x.header.Get("Content-Type")
	if len(kind) > 255 {
		kind = ""
	}
	return dispatcher.Answer{Code: strconv.Itoa(x.status), ContentType: kind, Body: body}
}

// describe is [wire.Describe], and knows what only this package says.
func describe(err error) (code, text string) {
	switch {
	case err == nil: // it had not come when the function returned
		err = wire.ErrEnded
	case errors.Is(err, errTooLong):
		return "too_long", errTooLong.Error()
	}
	return wire.Describe(err, "HTTP/1.1")
}
