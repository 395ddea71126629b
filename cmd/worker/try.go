package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"

	"github.com/samekey/samekey/dispatcher"
	"github.com/samekey/samekey/dispatcher/httpvendor"
)

const tryUsage = `usage: worker config try -action name (-answer file | -status n [-header "Name: value"].. [-body file]) [flags]

Says what a vendor's answer would mean for an action of the configuration: the outcome, the code, the reference, the wait,
and what decided. It sends nothing and needs no database; it reads the configuration with its secrets, and prints none.

-answer reads the answer as "curl -i" saves it: a status line, headers, an empty line, and the body. Of several answers,
such as 100 Continue or a redirect before the last one, the last one counts. "-" reads standard input.

Exit codes: 0 the answer was judged, 1 the answer cannot be read, 2 configuration or usage.

flags:
`

// try is what the flags of config try say.
type try struct {
	action, answer, body, payload string
	status                        int
	header                        http.Header
	lookup, brokenOff             bool
	call                          dispatcher.Call
}

func (m *worker) try(args []string) int {
	set := flag.NewFlagSet("worker config try", flag.ContinueOnError)
	file := m.configFlag(set)
	t := &try{header: http.Header{}}
	set.StringVar(&t.action, "action", "", "the action's `name`")
	set.StringVar(&t.answer, "answer", "", "the `file` with the recorded answer, - for standard input")
	set.IntVar(&t.status, "status", 0, "the answer's `status`, instead of -answer")
	set.Func("header", "a `header` of the answer, with -status, such as \"Retry-After: 30\"; may be repeated", t.addHeader)
	set.StringVar(&t.body, "body", "", "the `file` with the answer's body, with -status")
	set.BoolVar(&t.brokenOff, "broken-off", false, "the answer broke off at the end of the body")
	set.BoolVar(&t.lookup, "lookup", false, "it is an answer to the action's lookup")
	set.StringVar(&t.call.CarriedKey, "key", "", "for -lookup: the delivery `key` as it was sent, for {{.Key}} in the lookup's rules")
	set.StringVar(&t.payload, "payload", "", "for -lookup: the `file` with the intent's payload, for {{.Payload}}")
	set.StringVar(&t.call.Part, "part", "", "for -lookup: the intent's `part`")
	set.StringVar(&t.call.Subject, "subject", "", "for -lookup: the intent's `subject`")
	set.StringVar(&t.call.Reference, "reference", "", "for -lookup: the vendor's `id` from an earlier answer")
	if code, done := m.flags(set, tryUsage, args); done {
		return code
	}
	fail := func(code int, err error) int {
		m.print(m.stderr, fmt.Sprintf("worker: %v\n", err))
		return code
	}
	if err := t.check(); err != nil {
		return fail(mistaken, err)
	}
	c, err := load(*file, m.lookupEnv)
	if err != nil {
		m.print(m.stderr, err.Error()+"\n")
		return mistaken
	}
	a := c.action(t.action)
	if a == nil {
		return fail(mistaken, fmt.Errorf("%q is not one of the actions (%s)", t.action, strings.Join(c.actionNames(), ", ")))
	}
	if t.lookup {
		if err := t.checkLookup(c.lookupOf(a)); err != nil {
			return fail(mistaken, err)
		}
	}
	answer, warning, err := t.read(m.stdin)
	if err != nil {
		return fail(failed, err)
	}
	if warning != "" {
		m.print(m.stderr, "warning: "+warning+"\n")
	}
	verdict, err := c.destination(a.destination).client.Try(a.Action, answer)
	if err != nil {
		return fail(mistaken, err)
	}
	m.print(m.stdout, c.report(a, verdict))
	return 0
}

func (t *try) addHeader(text string) error {
	name, value, ok := strings.Cut(text, ":")
	if name = strings.TrimSpace(name); !ok || name == "" {
		return errors.New(`must be "Name: value"`)
	}
	t.header.Add(name, strings.TrimSpace(value))
	return nil
}

// check refuses flags that do not fit together.
func (t *try) check() error {
	switch {
	case t.action == "":
		return errors.New("-action is missing: name an action of the configuration")
	case (t.answer == "") == (t.status == 0):
		return errors.New("give the answer with -answer, or with -status")
	case t.answer != "" && (t.body != "" || len(t.header) > 0):
		return errors.New("-header and -body go with -status: -answer has its own")
	case t.status != 0 && (t.status < 200 || t.status > 999):
		return fmt.Errorf("-status %d is not the status of an answer", t.status)
	case !t.lookup && (t.call.CarriedKey != "" || t.payload != "" || t.call.Part != "" || t.call.Subject != "" || t.call.Reference != ""):
		return errors.New("-key, -payload, -part, -subject and -reference go with -lookup")
	}
	return nil
}

// checkLookup refuses a lookup whose rules compare the answer with a key that was not given: they would never match.
func (t *try) checkLookup(lookup *httpvendor.Lookup) error {
	if lookup == nil {
		return fmt.Errorf("the action %q has no lookup", t.action)
	}
	for _, rule := range lookup.Rules {
		for _, text := range slices.Concat(rule.Values, rule.Contains, rule.Equals) {
			if strings.Contains(text, "{{") && strings.Contains(text, ".Key") && t.call.CarriedKey == "" {
				return errors.New("-key is missing: the lookup's rules compare the answer with it")
			}
		}
	}
	return nil
}

// read reads the answer, and the payload.
func (t *try) read(stdin io.Reader) (answer httpvendor.Answer, warning string, err error) {
	answer.Status, answer.Header = t.status, t.header
	switch {
	case t.answer != "":
		data, err := readUpTo(t.answer, stdin)
		if err != nil {
			return answer, "", err
		}
		if answer, warning, err = parseAnswer(data); err != nil {
			return answer, "", fmt.Errorf("%s: %w", t.answer, err)
		}
	case t.body != "":
		if answer.Body, err = readUpTo(t.body, stdin); err != nil {
			return answer, "", err
		}
	}
	answer.BrokenOff = t.brokenOff
	if t.lookup {
		answer.Lookup = &t.call
		if t.payload != "" {
			t.call.Payload, err = readUpTo(t.payload, stdin)
		}
	}
	return answer, warning, err
}

// maxAnswer is more than any rule looks at.
const maxAnswer = 16 << 20

func readUpTo(file string, stdin io.Reader) ([]byte, error) {
	if file != "-" {
		opened, err := os.Open(file)
		if err != nil {
			return nil, err
		}
		defer func() { _ = opened.Close() }()
		stdin = opened
	}
	data, err := io.ReadAll(io.LimitReader(stdin, maxAnswer+1))
	if err == nil && len(data) > maxAnswer {
		err = fmt.Errorf("%s has more than %d MiB", file, maxAnswer>>20)
	}
	return data, err
}

// report prints a verdict.
func (c *config) report(a *action, v httpvendor.Verdict) string {
	outcome := v.Outcome.Kind()
	if v.AskAgain {
		outcome += ": the lookup is made again"
	}
	wait := "none"
	if v.Wait > 0 {
		wait = v.Wait.String()
		if v.ForAccount {
			wait += ", for all calls of the destination"
			if c.destination(a.destination).Endpoint != "" {
				wait += "'s endpoint"
			}
		}
	}
	or := func(text string) string {
		if text == "" {
			return "none"
		}
		return text
	}
	by := c.explainBy(a, v.By)
	if v.Why != "" {
		by += ": " + v.Why
	}
	var out strings.Builder
	for _, line := range [][2]string{
		{"outcome", outcome}, {"code", v.Outcome.Response().Code}, {"reference", or(v.Reference)}, {"wait", wait},
		{"decided by", by}, {"reason", or(v.Reason)},
	} {
		fmt.Fprintf(&out, "%-11s %s\n", line[0]+":", line[1])
	}
	return out.String()
}

// explainBy names the field that decided in the words of the file, with its line if it is there.
func (c *config) explainBy(a *action, by string) string {
	if by == "" {
		return "the table of answers in the documentation"
	}
	dest := c.destination(a.destination)
	of, field, _ := strings.Cut(by, ".")
	at := a.at
	if of == "Destination" {
		at = dest.at
	}
	path := join(at.path, fileName(field))
	if line, ok := c.lines[path]; ok {
		return fmt.Sprintf("%s:%d: %s", c.file, line, path)
	}
	list, number, isRule := strings.Cut(strings.TrimSuffix(path, "]"), "[")
	switch own := c.items(list); {
	case isRule && strings.HasSuffix(list, ".lookup.rules"): // those of list and field
		return fmt.Sprintf("%s:%d: %s", c.file, c.lines[strings.TrimSuffix(list, ".rules")], strings.TrimSuffix(list, "rules")+"list")
	case isRule:
		var n int
		_, _ = fmt.Sscan(number, &n)
		return fmt.Sprintf("rule %d of the preset %s (%s)", n-own, dest.preset, describeRule(dest.Rules[n-1]))
	case of == "Destination":
		return fmt.Sprintf("%s of the preset %s", fileName(field), dest.preset)
	}
	return "the default of " + fileName(field)
}

// items counts the items of a list in the file.
func (c *config) items(list string) (n int) {
	for {
		if _, ok := c.lines[fmt.Sprintf("%s[%d]", list, n+1)]; !ok {
			return n
		}
		n++
	}
}

// describeRule tells which answers a preset's rule is for.
func describeRule(rule httpvendor.Rule) string {
	var parts []string
	for i, r := range rule.Status {
		text := fmt.Sprint(r[0])
		if r[1] != r[0] {
			text = fmt.Sprintf("%d-%d", r[0], r[1])
		}
		if i == 0 {
			text = "status " + text
		}
		parts = append(parts, text)
	}
	if rule.Header != "" {
		parts = append(parts, "header "+rule.Header)
	}
	if rule.Field != "" {
		parts = append(parts, "field "+rule.Field)
	}
	if len(rule.Values) > 0 {
		parts = append(parts, "values "+strings.Join(rule.Values, " "))
	}
	return strings.Join(parts, ", ")
}

func (c *config) action(name string) *action {
	for _, a := range c.actions {
		if a.name == name {
			return a
		}
	}
	return nil
}

func (c *config) actionNames() (names []string) {
	for _, a := range c.actions {
		names = append(names, a.name)
	}
	return names
}

// lookupOf returns an action's lookup, or its destination's.
func (c *config) lookupOf(a *action) *httpvendor.Lookup {
	if a.Lookup != nil || a.Policy.Class == dispatcher.Read {
		return a.Lookup
	}
	return c.destination(a.destination).Lookup
}
