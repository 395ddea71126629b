package httpkey

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"time"

	"github.com/samekey/samekey"
	"github.com/samekey/samekey/internal/keyheader"
	"github.com/samekey/samekey/processed"
)

// Problem is an answer of the middleware itself (RFC 9457). Code is stable, for programs:
//
//	key-missing        400  send a key
//	key-invalid        400  send one valid key
//	body-invalid       400  the body has no single meaning
//	body-incomplete    408  send the same again
//	body-too-large     413
//	replay-forbidden   403  it was done before, and the principal may not see the answer any more
//	in-flight          409  send the same again, after Retry-After
//	answer-erased      410  it was done, its answer was erased, and it will not be done again
//	key-reused         422  a new operation needs a new key
//	unavailable        503  send the same again, after Retry-After
//	internal           500  sending the same again is safe, and may not help
//	answer-not-kept         the first answer's status: it was done, and will not be done again
//
// Type is Options.ProblemTypes followed by Code: the address of a page about what to do. Title and Detail are prose,
// and may change. A Problem holds nothing of the key or the request.
type Problem struct {
	Code   string `json:"-"`
	Type   string `json:"type"`
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail"`

	retrySeconds int // Retry-After; 0 for none
}

const defaultTypes = "https://github.com/samekey/samekey/blob/main/docs/callers.md#"

// The codes. Each is a heading of docs/callers.md.
const (
	codeKeyMissing      = "key-missing"
	codeKeyInvalid      = "key-invalid"
	codeBodyInvalid     = "body-invalid"
	codeBodyIncomplete  = "body-incomplete"
	codeBodyTooLarge    = "body-too-large"
	codeReplayForbidden = "replay-forbidden"
	codeInFlight        = "in-flight"
	codeAnswerErased    = "answer-erased"
	codeKeyReused       = "key-reused"
	codeUnavailable     = "unavailable"
	codeInternal        = "internal"
	codeAnswerNotKept   = "answer-not-kept"
)

func writeProblem(w http.ResponseWriter, _ *http.Request, p Problem) {
	body, _ := json.Marshal(p) // text and a number: it cannot fail
	w.Header().Set("Content-Type", "application/problem+json")
	sendBody(w, p.Status, append(body, '\n'))
}

var (
	problemTrailer = Problem{Code: codeBodyInvalid, Title: "The request has trailers", Status: http.StatusBadRequest,
		Detail: "Send their content as headers or in the body: trailers cannot be compared with a repetition."}
	problemCut = Problem{Code: codeBodyIncomplete, Title: "The body did not arrive in full", Status: http.StatusRequestTimeout,
		Detail: "It ended early or took too long. Nothing was done. Send the same again, with the same key."}
	problemFraming = Problem{Code: codeBodyInvalid, Title: "The body cannot be read", Status: http.StatusBadRequest,
		Detail: "Its framing is not valid HTTP, such as a chunk without a valid length. Nothing was done."}
	problemEmpty = Problem{Code: codeBodyInvalid, Title: "The body is empty", Status: http.StatusBadRequest,
		Detail: "A body of this media type without a Content-Length cannot be empty. Send the document, or Content-Length: 0. Nothing was done."}
	problemForm = Problem{Code: codeBodyInvalid, Title: "The form cannot be read", Status: http.StatusBadRequest,
		Detail: "The body does not match its media type, so it cannot be compared with a repetition. Nothing was done."}
	problemForbidden = Problem{Code: codeReplayForbidden, Title: "You may not see the answer any more", Status: http.StatusForbidden,
		Detail: "The request was done before. It was not done again, and its answer is not sent."}
	problemReused = Problem{Code: codeKeyReused, Title: "The key was used with another request", Status: http.StatusUnprocessableEntity,
		Detail: "Nothing was done. A new operation needs a new key; the same operation needs the same request as the first time."}
	problemErased = Problem{Code: codeAnswerErased, Title: "The answer was erased", Status: http.StatusGone,
		Detail: "The request was done before. It was not done again, and never will be under this key. Read the resource itself for its current state."}
	problemInFlight = Problem{Code: codeInFlight, Title: "The first request with this key is still running", Status: http.StatusConflict,
		Detail: "Send the same again, with the same key, after the time in Retry-After.", retrySeconds: 1}
	problemUnavailable = Problem{Code: codeUnavailable, Title: "There is no answer yet", Status: http.StatusServiceUnavailable,
		Detail: "Send the same again, with the same key, after the time in Retry-After, until there is an answer.", retrySeconds: 1}
	problemInternal = Problem{Code: codeInternal, Title: "The service failed", Status: http.StatusInternalServerError,
		Detail: "Nothing was stored. You may send the same again, with the same key."}
)

// problemHeader describes what is wrong with the key's header.
func problemHeader(err error, header string) *Problem {
	p := Problem{Code: codeKeyInvalid, Status: http.StatusBadRequest}
	switch {
	case errors.Is(err, keyheader.ErrMissing):
		p.Code, p.Title = codeKeyMissing, "The request has no key"
		p.Detail = "Mint a key for the operation, such as a UUID, and send it in the header " + header + " with every attempt."
	case errors.Is(err, keyheader.ErrSeveral):
		p.Title = "The request has more than one key"
		p.Detail = "Send the header " + header + " once, with one key in it: of several keys it is unknown which counts."
	default:
		p.Title = "The key is not quoted correctly"
		p.Detail = "Send the key bare, or as a string of RFC 9651 in double quotes and without parameters, in the header " + header + "."
	}
	return &p
}

func problemKey(err error) *Problem {
	p := Problem{Code: codeKeyInvalid, Title: "The key is not valid", Status: http.StatusBadRequest}
	if wrong, ok := errors.AsType[*samekey.KeyError](err); ok {
		p.Detail = fmt.Sprintf("The key's %s %s: %s.", wrong.Field, wrong.Reason, wrong.Do)
	}
	return &p
}

func problemTooLarge(limit int64) *Problem {
	return &Problem{Code: codeBodyTooLarge, Title: "The body is too large", Status: http.StatusRequestEntityTooLarge,
		Detail: fmt.Sprintf("At most %d bytes are accepted here. Nothing was done.", limit)}
}

// problemBody describes why the body has no fingerprint.
func problemBody(err error) *Problem {
	p := problemForm
	if wrong, ok := errors.AsType[*samekey.FingerprintError](err); ok {
		p.Title = "The body has no single meaning"
		p.Detail = wrong.Reason
		if wrong.Offset >= 0 {
			p.Detail += fmt.Sprintf(" at offset %d", wrong.Offset)
		}
		p.Detail += ": " + wrong.Do + ". Nothing was done."
	}
	return &p
}

func problemNotKept(status int) Problem {
	p := Problem{Code: codeAnswerNotKept, Title: "The request was done, and its answer was too large to store", Status: status,
		Detail: "It was not done again, and never will be under this key. The status is the first answer's. Read the resource itself for its current state."}
	if status >= 400 {
		p.Title = "The request was refused, and the answer was too large to store"
		p.Detail = "It was not tried again, and never will be under this key. The status is the first answer's."
	}
	return p
}

// parkedWait is what a client is asked to wait while a person finds out what a vendor did.
const parkedWait = time.Minute

// after returns the problem with this Retry-After, in whole seconds.
func (p Problem) after(d time.Duration) Problem {
	p.retrySeconds = max(1, int(math.Ceil(d.Seconds())))
	return p
}

// problemOf returns the problem for an error of Run: what the client can do.
func problemOf(err error) Problem {
	switch {
	case errors.Is(err, processed.ErrInFlight):
		return problemInFlight.after(processed.RetryAfter(err))
	case errors.Is(err, processed.ErrConflict):
		return problemReused
	case errors.Is(err, processed.ErrErased):
		return problemErased
	case errors.Is(err, processed.ErrAmbiguous), processed.SafeToRetry(err), isEnded(err):
		return problemUnavailable
	}
	return problemInternal
}

// problemOfHandler does the same for an error that the handler could not answer. The names of Run's errors mean nothing
// about this request then: the handler may have made another one.
func problemOfHandler(err error) Problem {
	switch {
	case errors.Is(err, processed.ErrInDoubt):
		return problemUnavailable.after(processed.RetryAfter(err))
	case errors.Is(err, processed.ErrParked):
		return problemUnavailable.after(parkedWait)
	case errors.Is(err, errStrayed), errors.Is(err, processed.ErrUnsent), processed.SafeToRetry(err), isEnded(err):
		return problemUnavailable
	}
	return problemInternal
}

func isEnded(err error) bool {
	return errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}
