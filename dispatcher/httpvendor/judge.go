package httpvendor

import (
	"errors"
	"net/http"
	"strings"

	"github.com/samekey/samekey/dispatcher"
	"github.com/samekey/samekey/internal/httpstatus"
	"github.com/samekey/samekey/internal/redact"
)

// finding is what an answer means, and what decided it.
type finding struct {
	outcome   dispatcher.Outcome
	failed    error // a lookup could not be made
	unfilled  error // failed: a template of the lookup's rules
	reference string
	reason    string
	account   bool // the wait is for the whole account
	by        decision
}

// decision is what decided about an answer: a rule, a list of statuses, another field, or else a line of the table of
// the package comment.
type decision struct {
	rule  int    // from 1, among those of the operation or of the lookup; 0: none
	field string // a field of an Action or a Destination
	why   string // in addition, or instead
}

// judge returns what an answer means: the table of the package comment, line by line.
func (o *operation) judge(r reply, secrets redact.Secrets) finding {
	refers, found := "", []string(nil) // the rule's Reference, and where it matched
	is := func(by decision, outcome func(dispatcher.Response) dispatcher.Outcome, reason string) finding {
		v := o.outcome(outcome, reason, r)
		v.by = by
		return r.referring(v, refers, o.reference, namedBySend, found, secrets)
	}
	blind, blindBy := r.opaque && o.client.dest.JSONAnswers, decision{field: "JSONAnswers"}
	for i, rule := range o.rules {
		if r.opaque && rule.Field != "" && (len(rule.Status) == 0 || rule.Status.has(r.status)) && !blind {
			blind, blindBy = true, decision{rule: i + 1}
		}
		matches, undecided, where := rule.matches(r)
		if matches {
			refers, found = rule.Reference, where
		}
		by := decision{rule: i + 1}
		switch {
		case undecided:
			by.why = "its body broke off or is too long, and a rule looks into it"
			return is(by, dispatcher.Unknown, by.why)
		case matches && kind(rule.Outcome) == retry && !o.repeatable && r.status != http.StatusTooManyRequests:
			by.why = "the rule means retry, but the call may not be repeated, and only a 429 proves that the vendor did not act"
			return is(by, dispatcher.Unknown, rule.Reason)
		case matches && r.broken != nil && (kind(rule.Outcome) == delivered || kind(rule.Outcome) == refused):
			by.why = brokeOff(r.broken)
			return is(by, dispatcher.Unknown, by.why)
		case matches:
			return is(by, rule.Outcome, rule.Reason)
		}
	}
	effect := httpstatus.Of(r.status, r.waits)
	of := func(field string) decision { return decision{field: field} }
	table := decision{why: httpstatus.Why(r.status)}
	later := decision{why: table.why + "; with a time to wait for, the vendor did not act"}
	switch status := r.status; {
	case r.broken != nil && (o.delivered.has(status) || o.action.Refused.has(status)):
		by := decision{why: brokeOff(r.broken)}
		return is(by, dispatcher.Unknown, by.why)
	case blind && (o.delivered.has(status) || o.action.Refused.has(status)):
		blindBy.why = "its body is not JSON, as it should be: it may be a proxy's page"
		return is(blindBy, dispatcher.Unknown, blindBy.why)
	case o.delivered.has(status):
		return is(of("Delivered"), dispatcher.Delivered, "")
	case o.action.Refused.has(status):
		return is(of("Refused"), dispatcher.Refused, "")
	case o.action.Accepted.has(status):
		return is(of("Accepted"), dispatcher.Accepted, "")
	case o.action.Retry.has(status):
		return is(of("Retry"), dispatcher.Retry, "")
	case status == http.StatusTooManyRequests:
		return is(table, dispatcher.Retry, "")
	case effect == httpstatus.Later || httpstatus.PutOff(status, r.waits):
		return is(later, dispatcher.Retry, "")
	case effect == httpstatus.Silent && status >= 400 && status <= 599 && strings.EqualFold(r.header.Get("Idempotent-Replayed"), "true"):
		return is(decision{why: "Idempotent-Replayed: true"}, dispatcher.Stuck, "this answer is stored under the key, which can never succeed")
	case effect == httpstatus.Silent && r.waits && o.repeatable:
		later.why = table.why + "; with a time to wait for, a call that may be repeated is postponed"
		return is(later, dispatcher.Retry, "")
	case effect == httpstatus.Silent:
		return is(table, dispatcher.Unknown, "")
	case (effect == httpstatus.Stuck || effect == httpstatus.Acted) && o.action.Policy.Class == dispatcher.Read:
		return is(table, dispatcher.Dead, "correct the destination's URL, the action's request or its rules, then redrive")
	case status >= 300 && status < 400:
		return is(table, dispatcher.Stuck, "the vendor may have acted: it is looked up, else parked. Redirects are not followed, so correct the destination's URL or the action's request")
	case effect == httpstatus.Stuck || effect == httpstatus.Acted:
		return is(table, dispatcher.Stuck, "the vendor may have acted, and the same call gets the same answer: it is looked up, else parked")
	case effect == httpstatus.Denied:
		return is(table, dispatcher.Denied, "")
	case status == http.StatusForbidden:
		return is(table, dispatcher.Dead, "correct the destination's credentials, then redrive")
	}
	return is(table, dispatcher.Dead, "")
}

func brokeOff(err error) string {
	if errors.Is(err, errLong) {
		return "and its body is longer than 1 MiB, which is as far as rules look"
	}
	_, text := describe(err)
	return "and the answer broke off: " + text
}

// outcome makes an outcome with the wait that the answer asks for, and with a reason if a person may need one.
func (o *operation) outcome(of func(dispatcher.Response) dispatcher.Outcome, reason string, r reply) (v finding) {
	v.outcome = of(r.response).After(r.wait)
	if v.outcome.Kind() == retry && aboutAccount(r) {
		v.outcome, v.account = v.outcome.ForAccount(), true
	}
	kindOf := v.outcome.Kind()
	if reason == "" {
		reason = reasons[kindOf]
	}
	if reason != "" && kindOf != delivered && kindOf != refused && kindOf != kind(dispatcher.Accepted) {
		v.reason = reason
		v.outcome = v.outcome.Because(o.failed("answered %d: %s", r.status, reason))
	}
	return v
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
