package httpvendor

import (
	"net/http"
	"strings"
	"time"

	"github.com/samekey/samekey/dispatcher"
	"github.com/samekey/samekey/internal/httpstatus"
	"github.com/samekey/samekey/internal/redact"
	"github.com/samekey/samekey/internal/retryafter"
)

// judge returns what an answer means: the table of the package comment, line by line.
func (o *operation) judge(r reply, response dispatcher.Response, broken error, secrets redact.Secrets) dispatcher.Outcome {
	refers, found := "", []string(nil) // the rule's Reference, and where it matched
	is := func(outcome func(dispatcher.Response) dispatcher.Outcome, reason string) dispatcher.Outcome {
		return r.referring(o.outcome(outcome, reason, r, response), refers, o.reference, namedBySend, found, secrets)
	}
	blind := r.opaque && o.client.dest.JSONAnswers
	for _, rule := range o.rules {
		blind = blind || r.opaque && rule.Field != "" && (len(rule.Status) == 0 || rule.Status.has(r.status))
		matches, undecided, where := rule.matches(r, rule.Values)
		if matches {
			refers, found = rule.Reference, where
		}
		switch {
		case undecided:
			return is(dispatcher.Unknown, "its body broke off or is too long, and a rule looks into it")
		case matches && kind(rule.Outcome) == retry && !o.repeatable && r.status != http.StatusTooManyRequests:
			return is(dispatcher.Unknown, rule.Reason)
		case matches && broken != nil && (kind(rule.Outcome) == delivered || kind(rule.Outcome) == refused):
			return is(dispatcher.Unknown, brokeOff(broken))
		case matches:
			return is(rule.Outcome, rule.Reason)
		}
	}
	_, waits := retryafter.Read(r.header, time.Now())
	effect := httpstatus.Of(r.status, waits)
	switch status := r.status; {
	case broken != nil && (o.delivered.has(status) || o.action.Refused.has(status)):
		return is(dispatcher.Unknown, brokeOff(broken))
	case blind && (o.delivered.has(status) || o.action.Refused.has(status)):
		return is(dispatcher.Unknown, "its body is not JSON, as it should be: it may be a proxy's page")
	case o.delivered.has(status):
		return is(dispatcher.Delivered, "")
	case o.action.Refused.has(status):
		return is(dispatcher.Refused, "")
	case o.action.Accepted.has(status):
		return is(dispatcher.Accepted, "")
	case o.action.Retry.has(status) || effect == httpstatus.Later || httpstatus.PutOff(status, waits):
		return is(dispatcher.Retry, "")
	case effect == httpstatus.Silent && status >= 400 && status <= 599 && strings.EqualFold(r.header.Get("Idempotent-Replayed"), "true"):
		return is(dispatcher.Stuck, "this answer is stored under the key, which can never succeed")
	case effect == httpstatus.Silent && waits && o.repeatable:
		return is(dispatcher.Retry, "")
	case effect == httpstatus.Silent:
		return is(dispatcher.Unknown, "")
	case (effect == httpstatus.Stuck || effect == httpstatus.Acted) && o.action.Policy.Class == dispatcher.Read:
		return is(dispatcher.Dead, "correct the destination's URL, the action's request or its rules, then redrive")
	case status >= 300 && status < 400:
		return is(dispatcher.Stuck, "the vendor may have acted: it is looked up, else parked. Redirects are not followed, so correct the destination's URL or the action's request")
	case effect == httpstatus.Stuck || effect == httpstatus.Acted:
		return is(dispatcher.Stuck, "the vendor may have acted, and the same call gets the same answer: it is looked up, else parked")
	case effect == httpstatus.Denied:
		return is(dispatcher.Denied, "")
	case status == http.StatusForbidden:
		return is(dispatcher.Dead, "correct the destination's credentials, then redrive")
	}
	return is(dispatcher.Dead, "")
}

func brokeOff(err error) string {
	_, text := describe(err)
	return "and the answer broke off: " + text
}

// waitOf is how long an answer asks to wait. The dispatcher cuts it.
func waitOf(header http.Header) time.Duration {
	wait, _ := retryafter.Read(header, time.Now())
	return wait
}

// outcome makes an outcome with the wait that the answer asks for, and with a reason if a person may need one.
func (o *operation) outcome(of func(dispatcher.Response) dispatcher.Outcome, reason string, r reply, response dispatcher.Response) dispatcher.Outcome {
	out := of(response).After(waitOf(r.header))
	if out.Kind() == retry && aboutAccount(r) {
		out = out.ForAccount()
	}
	if reason == "" {
		reason = reasons[out.Kind()]
	}
	if reason == "" || out.Kind() == delivered || out.Kind() == refused || out.Kind() == kind(dispatcher.Accepted) {
		return out
	}
	return out.Because(o.failed("answered %d: %s", r.status, reason))
}

// aboutAccount reports whether an answer limits the rate of the whole account: 429, or 403 with Retry-After. Other
// answers are about this call.
func aboutAccount(r reply) bool {
	return r.status == http.StatusTooManyRequests || r.status == http.StatusForbidden
}

// reasons are the default reasons of outcomes.
var reasons = map[string]string{
	retry:                    "the vendor asks to retry later",
	kind(dispatcher.Denied):  "correct the destination's credentials",
	kind(dispatcher.Dead):    "correct the action or the payload, then redrive",
	kind(dispatcher.Gone):    "the receiver wants no more calls",
	kind(dispatcher.Stuck):   "the same key gets the same failure every time",
	kind(dispatcher.Unknown): "the vendor may have acted",
}
