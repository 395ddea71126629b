package stripevendor

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/samekey/samekey/dispatcher"
	"github.com/samekey/samekey/internal/httpstatus"
	"github.com/samekey/samekey/internal/redact"
	"github.com/samekey/samekey/internal/retryafter"
	"github.com/samekey/samekey/internal/wire"
	"github.com/samekey/samekey/internal/wirehttp"
)

// judge returns what an attempt means: the table of the package comment. Own and said are what the application's
// function returned.
func (c *Client) judge(ctx context.Context, x *exchange, own dispatcher.Outcome, said error) (dispatcher.Outcome, error) {
	failed := func(format string, args ...any) error {
		return fmt.Errorf("stripevendor: %w", fmt.Errorf(format, args...))
	}
	dead := func(err error) (dispatcher.Outcome, error) {
		return dispatcher.Dead(dispatcher.Response{Code: "request"}).Because(err), nil
	}
	switch {
	case x.asked == 0 && ctx.Err() != nil:
		return dispatcher.Unknown(dispatcher.Response{Code: "timeout"}), failed("%w: the attempt's time was over before it made a request", dispatcher.ErrUnsent)
	case x.asked == 0 && errors.Is(said, errOutside):
		return dead(errOutside)
	case x.asked == 0:
		return dead(errNone)
	case x.refused != nil && !errors.Is(x.refused, errSecond) && !x.sent:
		return dead(failed("%w", x.refused))
	case !x.sent:
		code, text := describe(x.failure)
		return dispatcher.Unknown(dispatcher.Response{Code: code}), failed("%w: %s", dispatcher.ErrUnsent, text)
	case x.status == 0:
		code, text := describe(x.failure)
		return dispatcher.Unknown(dispatcher.Response{Code: code}), failed("no answer: %s", text)
	}
	response := c.response(x)
	switch {
	case x.failure != nil:
		_, text := describe(x.failure)
		return dispatcher.Unknown(response), failed("the answer, %d, broke off: %s", x.status, text)
	case x.refused != nil:
		return dispatcher.Unknown(response), failed("%w; the first was answered %d", x.refused, x.status)
	case x.status >= 200 && x.status < 300 && !json.Valid(x.body):
		return dispatcher.Unknown(response), failed("the answer, %d, is not JSON", x.status)
	case x.status >= 200 && x.status < 300 && said != nil && strings.Contains(said.Error(), sdkQuotes):
		return dispatcher.Unknown(response), failed("the answer, %d, is not what this SDK expects", x.status)
	}
	_, waits := retryafter.Read(x.header, time.Now())
	if httpstatus.Of(x.status, waits) != httpstatus.Acted {
		return x.notDone(response).Reference(parseError(x.body).PaymentIntent.ID), nil
	}
	switch {
	case errors.Is(said, dispatcher.ErrUnsent): // the error of something else that the function did
		_, text := describe(said)
		return dispatcher.Unknown(response), failed("answered %d, after which the function failed: %s", x.status, text)
	case said != nil:
		return dispatcher.Unknown(response), said
	case own.Kind() == unsent:
		return dispatcher.Unknown(response), failed("answered %d, and the function returned Unsent", x.status)
	case own.Kind() != "":
		return own, nil
	}
	return x.done(response), nil
}

var unsent = dispatcher.Unsent(nil).Kind()

// notDone returns what an answer other than success means.
func (x *exchange) notDone(response dispatcher.Response) dispatcher.Outcome {
	apiErr := parseError(x.body)
	wait, waits := retryafter.Read(x.header, time.Now())
	again, never := x.shouldRetry("true"), x.shouldRetry("false")
	effect := httpstatus.Of(x.status, waits)
	is := func(outcome dispatcher.Outcome, format string, args ...any) dispatcher.Outcome {
		return outcome.After(wait).Because(fmt.Errorf("stripevendor: answered %d%s", x.status, fmt.Sprintf(format, args...)))
	}
	mismatch := apiErr.Type == "idempotency_error" && apiErr.Code != inUse && x.status >= 400 && x.status < 500
	if mismatch && !(x.status == http.StatusConflict && never) {
		response.Code = apiErr.Type
		return is(dispatcher.Dead(response), ": this key was used with other parameters. Find out for what it was used, then resolve the intent")
	}
	response.Code = cmp.Or(apiErr.Code, response.Code)
	switch {
	case x.status == http.StatusConflict && never:
		return is(dispatcher.Stuck(response), ": Stripe reports that a retry changes nothing")
	case effect == httpstatus.Denied:
		return is(dispatcher.Denied(response), ": correct the account's key")
	case effect == httpstatus.Later:
		return is(dispatcher.Retry(response).ForAccount(), ": Stripe asks to retry later")
	case x.status >= 400 && x.status < 500 && again || httpstatus.PutOff(x.status, waits):
		return is(dispatcher.Retry(response), ": Stripe says to retry")
	case x.status == http.StatusPaymentRequired:
		response.Code = cmp.Or(apiErr.DeclineCode, response.Code)
		return dispatcher.Refused(response)
	case x.status == http.StatusConflict:
		return is(dispatcher.Retry(response), ": it conflicts with a call that is still running")
	case effect == httpstatus.Silent && strings.EqualFold(x.header.Get("Idempotent-Replayed"), "true"):
		response.Code = fmt.Sprintf("replayed_%d", x.status)
		return is(dispatcher.Stuck(response), ", which is stored under this key, so the call can never succeed")
	case effect == httpstatus.Silent && never:
		return is(dispatcher.Stuck(response), ": Stripe reports that a retry changes nothing")
	case effect == httpstatus.Silent:
		return is(dispatcher.Unknown(response), "")
	case x.status >= 300 && x.status < 400:
		return is(dispatcher.Stuck(response), ": redirects are not followed, correct Account.URL")
	case effect == httpstatus.Stuck:
		return is(dispatcher.Stuck(response), ": Stripe may have acted")
	}
	return is(dispatcher.Dead(response), "")
}

// shouldRetry reports whether the header Stripe-Should-Retry has a value.
func (x *exchange) shouldRetry(want string) bool {
	return strings.EqualFold(x.header.Get("Stripe-Should-Retry"), want)
}

// done returns what a success means, with the object's id as the reference. A payment intent or a setup intent that the call confirmed or captured may not be
// done yet. A call that creates an intent without confirming it is done with any status.
func (x *exchange) done(response dispatcher.Response) dispatcher.Outcome {
	var object struct{ ID, Object, Status string }
	known := json.Unmarshal(x.body, &object) == nil
	outcome := dispatcher.Delivered(response)
	if known && x.confirms && (object.Object == "payment_intent" || object.Object == "setup_intent") {
		switch object.Status {
		case "processing", "requires_action", "requires_confirmation":
			wait, _ := retryafter.Read(x.header, time.Now())
			outcome = dispatcher.Accepted(response).After(wait)
		case "requires_payment_method":
			response.Code = object.Status
			outcome = dispatcher.Refused(response)
		}
	}
	return outcome.Reference(object.ID)
}

// sdkQuotes is in the SDK's error that quotes the answer.
const sdkQuotes = "Couldn't deserialize JSON"

// inUse is the code of a call that came while another one with its key was running, whatever its type is.
const inUse = "idempotency_key_in_use"

// apiError is the error object of Stripe's API.
type apiError struct {
	Type        string `json:"type"`
	Code        string `json:"code"`
	DeclineCode string `json:"decline_code"`

	PaymentIntent struct {
		ID string `json:"id"`
	} `json:"payment_intent"`
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

// shortestSecret is the length in bytes from which a key is removed from answers.
const shortestSecret = 6

var clientSecret = regexp.MustCompile(`("client_secret"\s*:\s*)"(?:[^"\\]|\\.)*"`)

// response is what is stored of an answer. Client secrets are removed: they let their bearer act on a payment, and
// Stripe asks not to store them.
func (c *Client) response(x *exchange) dispatcher.Response {
	body := clientSecret.ReplaceAll(x.body, []byte(`${1}"`+redact.Mark+`"`))
	body = redact.Secrets{Shortest: shortestSecret}.With(c.key).Strike(body, math.MaxInt)
	kind := x.header.Get("Content-Type")
	if len(kind) > 255 {
		kind = ""
	}
	return dispatcher.Response{Code: strconv.Itoa(x.status), ContentType: kind, Body: body}
}

// describe is [wirehttp.Describe], and knows the errors of this package as well.
func describe(err error) (code, text string) {
	switch {
	case err == nil: // no answer had come when the function returned
		err = wire.ErrEnded
	case errors.Is(err, errTooLong):
		return "too_long", errTooLong.Error()
	}
	return wirehttp.Describe(err)
}
