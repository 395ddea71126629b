package httpkey

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	"github.com/samekey/samekey"
	"github.com/samekey/samekey/internal/keyheader"
	"github.com/samekey/samekey/processed"
)

// Problem is what the middleware itself answers (RFC 9457). Type is stable, for
// programs, and the address of what to do about it, for people: one of the Type
// constants. Title and Detail are prose, and may change. There is nothing of the
// key or the request in it.
type Problem struct {
	Type   string `json:"type"`
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail"`

	retrySeconds int // Retry-After; 0 for none
}

// The types of problems. Each is a heading of docs/callers.md.
const (
	types = "https://github.com/samekey/samekey/blob/main/docs/callers.md#"

	TypeKeyMissing      = types + "key-missing"      // 400: send a key
	TypeKeyInvalid      = types + "key-invalid"      // 400: send one valid key
	TypeBodyInvalid     = types + "body-invalid"     // 400: the body has no single meaning
	TypeBodyIncomplete  = types + "body-incomplete"  // 408: the same again
	TypeBodyTooLarge    = types + "body-too-large"   // 413
	TypeReplayForbidden = types + "replay-forbidden" // 403: done before, and not for you any more
	TypeInFlight        = types + "in-flight"        // 409: the same again, after Retry-After
	TypeKeyReused       = types + "key-reused"       // 422: a new operation needs a new key
	TypeUnavailable     = types + "unavailable"      // 503: the same again, after Retry-After
	TypeInternal        = types + "internal"         // 500: the same again is safe, and may not help
	TypeAnswerNotKept   = types + "answer-not-kept"  // the first answer's status: it was done, and will not be again
)

func writeProblem(w http.ResponseWriter, _ *http.Request, p Problem) {
	body, _ := json.Marshal(p) // of text and a number
	w.Header().Set("Content-Type", "application/problem+json")
	sendBody(w, p.Status, append(body, '\n'))
}

var (
	problemTrailer = Problem{Type: TypeBodyInvalid, Title: "The request has trailers", Status: http.StatusBadRequest,
		Detail: "Send what is in them as headers or in the body: a repetition could not be held against them."}
	problemCut = Problem{Type: TypeBodyIncomplete, Title: "The body did not arrive in full", Status: http.StatusRequestTimeout,
		Detail: "It ended early, or took too long. Nothing was done. Send the same again, with the same key."}
	problemFraming = Problem{Type: TypeBodyInvalid, Title: "The body cannot be read", Status: http.StatusBadRequest,
		Detail: "It is not framed as HTTP says, such as a chunk without a valid length. Nothing was done."}
	problemEmpty = Problem{Type: TypeBodyInvalid, Title: "The body is empty", Status: http.StatusBadRequest,
		Detail: "A body of this media type that is sent without a Content-Length cannot be empty. Send the document, or Content-Length: 0. Nothing was done."}
	problemForm = Problem{Type: TypeBodyInvalid, Title: "The form cannot be read", Status: http.StatusBadRequest,
		Detail: "The body is not what its media type says, so that no repetition could be held against it. Nothing was done."}
	problemForbidden = Problem{Type: TypeReplayForbidden, Title: "The answer is not yours any more", Status: http.StatusForbidden,
		Detail: "The request was done before. It was not done again, and its answer is not sent."}
	problemReused = Problem{Type: TypeKeyReused, Title: "The key was used with another request", Status: http.StatusUnprocessableEntity,
		Detail: "Nothing was done. A new operation needs a new key; the same operation needs the same request as the first time."}
	problemInFlight = Problem{Type: TypeInFlight, Title: "The first request with this key is still running", Status: http.StatusConflict,
		Detail: "Send the same again, with the same key, after the time in Retry-After.", retrySeconds: 1}
	problemUnavailable = Problem{Type: TypeUnavailable, Title: "There is no answer yet", Status: http.StatusServiceUnavailable,
		Detail: "Send the same again, with the same key, after the time in Retry-After, until there is an answer.", retrySeconds: 1}
	problemInternal = Problem{Type: TypeInternal, Title: "The service failed", Status: http.StatusInternalServerError,
		Detail: "Nothing was stored. The same may be sent again, with the same key."}
)

// problemHeader says what is wrong with the key's header.
func problemHeader(err error, header string) *Problem {
	p := Problem{Type: TypeKeyInvalid, Status: http.StatusBadRequest}
	switch {
	case errors.Is(err, keyheader.ErrMissing):
		p.Type, p.Title = TypeKeyMissing, "The request has no key"
		p.Detail = "Mint a key for the operation, such as a UUID, and send it in the header " + header + " with every attempt."
	case errors.Is(err, keyheader.ErrSeveral):
		p.Title = "The request has more than one key"
		p.Detail = "Send the header " + header + " once, with one key in it: nobody could say which of several counts."
	default:
		p.Title = "The key is not quoted well"
		p.Detail = "Send the key bare, or as a string of RFC 9651 in double quotes and without parameters, in the header " + header + "."
	}
	return &p
}

func problemKey(err error) *Problem {
	p := Problem{Type: TypeKeyInvalid, Title: "The key is not valid", Status: http.StatusBadRequest}
	if wrong, ok := errors.AsType[*samekey.KeyError](err); ok {
		p.Detail = fmt.Sprintf("The key's %s %s: %s.", wrong.Field, wrong.Reason, wrong.Do)
	}
	return &p
}

func problemTooLarge(limit int64) *Problem {
	return &Problem{Type: TypeBodyTooLarge, Title: "The body is too large", Status: http.StatusRequestEntityTooLarge,
		Detail: fmt.Sprintf("At most %d bytes are taken here. Nothing was done.", limit)}
}

// problemBody says why the body has no fingerprint.
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
	p := Problem{Type: TypeAnswerNotKept, Title: "The request was done, and its answer was too large to be kept", Status: status,
		Detail: "It was not done again, and never will be under this key. The status is the first answer's; read what came of it where it lives now."}
	if status >= 400 {
		p.Title = "The request was refused, and the answer was too large to be kept"
		p.Detail = "It was not tried again, and never will be under this key. The status is the first answer's."
	}
	return p
}

// problemOf says what the client can do about an error of Run's.
func problemOf(err error) Problem {
	switch {
	case errors.Is(err, processed.ErrInFlight):
		return problemInFlight
	case errors.Is(err, processed.ErrConflict):
		return problemReused
	case errors.Is(err, processed.ErrAmbiguous), processed.SafeToRetry(err), isEnded(err):
		return problemUnavailable
	}
	return problemInternal
}

// problemOfHandler says the same about an error that the handler could not
// answer. What Run's errors are called by says nothing about this request then:
// the handler may have done another one.
func problemOfHandler(err error) Problem {
	if errors.Is(err, errStrayed) || processed.SafeToRetry(err) || isEnded(err) {
		return problemUnavailable
	}
	return problemInternal
}

func isEnded(err error) bool {
	return errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}
