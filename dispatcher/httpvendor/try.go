package httpvendor

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/samekey/samekey/dispatcher"
	"github.com/samekey/samekey/internal/wirehttp"
)

// Answer is an answer of a vendor that [Client.Try] judges, such as a recorded one.
type Answer struct {
	// Status is the status, 200 to 999.
	Status int

	// Header has the headers. Transfer-Encoding and Content-Encoding are ignored.
	Header http.Header

	// Body is the body, decoded.
	Body []byte

	// BrokenOff means that the answer broke off after Body.
	BrokenOff bool

	// Lookup makes it an answer to the action's lookup of this call, whose fields the templates of the lookup's rules
	// use. Nil: an answer to an attempt.
	Lookup *dispatcher.Call
}

// Verdict is what an answer means for an action, and what decided that.
type Verdict struct {
	// Outcome is what the action's Send or Lookup returns for the answer.
	Outcome dispatcher.Outcome

	// AskAgain means that the answer to a lookup tells nothing: the lookup is made again. Outcome is then unknown.
	AskAgain bool

	// Reference is the vendor's id that is stored with the answer, or empty.
	Reference string

	// Wait is the time that the answer asks to wait, at most a day. ForAccount means that it applies to the whole
	// destination, or endpoint. See the methods of dispatcher.Outcome.
	Wait       time.Duration
	ForAccount bool

	// Reason is the text for a person that is stored in the history, or empty.
	Reason string

	// By is the field that decided: a rule, such as Action.Rules[2], Destination.Rules[1] or Destination.Lookup.Rules[1]
	// (the rules of a preset are the destination's); a list of statuses, such as Action.Delivered, also if it is the
	// default; or Destination.JSONAnswers. Empty: the table of the package comment decided. Why says more, if there is
	// more to say.
	By, Why string
}

// maxWait is the dispatcher's limit of a wait.
const maxWait = 24 * time.Hour

// Try returns what an answer would mean for an action, without a call: to test rules against recorded answers. The
// error has the mistakes of the destination and the action, or is about the answer. Nothing of a secret is in the
// verdict.
func (c *Client) Try(action Action, answer Answer) (Verdict, error) {
	o := c.operation(action)
	if err := o.mistakes.Err(); err != nil {
		return Verdict{}, err
	}
	if answer.Status < 200 || answer.Status > 999 {
		return Verdict{}, fmt.Errorf("httpvendor: %d is not the status of an answer", answer.Status)
	}
	resp := &http.Response{StatusCode: answer.Status, Header: answer.Header, Body: io.NopCloser(answer.reader())}
	if resp.Header == nil {
		resp.Header = http.Header{}
	}
	secrets := o.carrying(&c.account, "").secrets
	if answer.Lookup == nil {
		r := o.newReply(resp, o.read(resp, secrets, o.looksIn))
		return o.verdict(r, o.judge(r, secrets), "Rules"), nil
	}
	if o.lookup == nil {
		return Verdict{}, errors.New("httpvendor: the action has no lookup")
	}
	r := o.newReply(resp, o.read(resp, secrets, true))
	f := o.find(r, lookupValues(answer.Lookup), secrets)
	if f.unfilled != nil {
		return Verdict{}, fmt.Errorf("httpvendor: the lookup's rules: %w", f.unfilled)
	}
	return o.verdict(r, f, "Lookup.Rules"), nil
}

func (a Answer) reader() io.Reader {
	if a.BrokenOff {
		return io.MultiReader(bytes.NewReader(a.Body), brokenOff{})
	}
	return bytes.NewReader(a.Body)
}

type brokenOff struct{}

func (brokenOff) Read([]byte) (int, error) { return 0, wirehttp.ErrBrokenOff }

// verdict tells a finding in public. Rules is the field that has its rules.
func (o *operation) verdict(r reply, f finding, rules string) Verdict {
	v := Verdict{
		Outcome: f.outcome, AskAgain: f.failed != nil, Reference: f.reference,
		Wait: min(r.wait, maxWait), ForAccount: f.account, Reason: f.reason, Why: f.by.why,
	}
	if v.AskAgain {
		v.Outcome = dispatcher.Unknown(r.response)
	}
	switch n := f.by.rule; {
	case n == 0 && f.by.field == "":
	case n == 0 && f.by.field == "JSONAnswers":
		v.By = "Destination." + f.by.field
	case n == 0:
		v.By = "Action." + f.by.field
	case rules == "Rules" && n > len(o.action.Rules):
		v.By = fmt.Sprintf("Destination.%s[%d]", rules, n-len(o.action.Rules))
	case rules != "Rules" && o.action.Lookup == nil:
		v.By = fmt.Sprintf("Destination.%s[%d]", rules, n)
	default:
		v.By = fmt.Sprintf("Action.%s[%d]", rules, n)
	}
	return v
}
