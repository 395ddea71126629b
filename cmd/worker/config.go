package main

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"net/netip"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/goccy/go-yaml/ast"

	"github.com/samekey/samekey/dispatcher"
	"github.com/samekey/samekey/dispatcher/httpvendor"
)

// config is what a file says.
type config struct {
	file         string
	worker       dispatcher.Config
	destinations []*destination
	actions      []*action
	warnings     []string // what is allowed and probably wrong, each with its line
}

type destination struct {
	httpvendor.Destination
	preset string // its name in the file
	at     entry
	lines  map[string]int
	client *httpvendor.Client
}

type action struct {
	httpvendor.Action
	at          entry
	lines       map[string]int
	destination string
	secrets     []string // in its headers
}

// load reads and checks a file. The error holds every mistake, each with its line.
func load(file string, lookupEnv func(string) (string, bool)) (*config, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	r := &reader{file: file, lookupEnv: lookupEnv}
	c := &config{file: file}
	if top := r.parse(data); top != nil {
		c.read(r, top)
		c.check(r)
		c.warn(r)
	}
	return c, r.err()
}

// register makes the handlers, once load has found no mistake.
func (c *config) register(d *dispatcher.Dispatcher) error {
	var errs []error
	for _, dest := range c.destinations {
		errs = append(errs, dest.client.Register(d, c.actionsOf(dest)...))
	}
	return errors.Join(errs...)
}

func (c *config) actionsOf(dest *destination) (out []httpvendor.Action) {
	for _, a := range c.actions {
		if a.destination == dest.Name {
			out = append(out, a.Action)
		}
	}
	return out
}

func (c *config) destination(name string) *destination {
	for _, dest := range c.destinations {
		if dest.Name == name {
			return dest
		}
	}
	return nil
}

func (c *config) read(r *reader, top ast.Node) {
	lines := r.fields(entry{path: "", line: 1, node: top}, map[string]func(entry){
		"worker": func(e entry) { c.readWorker(r, e) },
		"destinations": func(e entry) {
			for _, at := range r.entries(e) {
				c.destinations = append(c.destinations, readDestination(r, at))
			}
		},
		"actions": func(e entry) {
			for _, at := range r.entries(e) {
				c.actions = append(c.actions, readAction(r, at))
			}
		},
	})
	if _, mapping := top.(ast.MapNode); !mapping {
		return
	}
	for _, name := range []string{"destinations", "actions"} {
		if _, ok := lines[name]; !ok {
			r.fail(1, "%s is missing", name)
		}
	}
}

func (c *config) readWorker(r *reader, at entry) {
	lines := r.fields(at, map[string]func(entry){
		"name":           func(e entry) { c.worker.Name, _, _ = r.text(e) },
		"sweep_interval": func(e entry) { c.worker.SweepInterval = r.duration(e) },
		"stop_timeout":   func(e entry) { c.worker.StopTimeout = r.duration(e) },
		"retention":      func(e entry) { c.worker.Retention = r.duration(e) },
	})
	config := c.worker
	d := dispatcher.New(nil, &config)
	d.Handle("check", dispatcher.Policy{Class: dispatcher.Read}, nothing)
	r.explain(d.Check(), at, lines)
}

func readDestination(r *reader, at entry) *destination {
	preset, made := readPreset(r, at)
	dest := &destination{Destination: made, preset: preset, at: at}
	presetRules := dest.Rules // behind the file's own, whose numbers are in mistakes
	dest.Name, dest.Rules = at.name, nil
	secret := func(e entry) string {
		value, secrets, _ := r.text(e)
		dest.Secrets = append(dest.Secrets, secrets...)
		return value
	}
	var mismatch dispatcher.Mismatch
	var ruleLines, lookupLines map[string]int
	dest.lines = r.fields(at, map[string]func(entry){
		"preset":     func(entry) {}, // see readPreset
		"url":        func(e entry) { dest.URL = secret(e) },
		"endpoint":   func(e entry) { dest.Endpoint, _ = r.raw(e) },
		"key":        func(e entry) { readKey(r, e, &dest.Vendor) },
		"key_window": func(e entry) { dest.Vendor.Window = readWindow(r, e) },
		"replay":     func(e entry) { dest.Vendor.Replay = readReplay(r, e) },
		"mismatch":   func(e entry) { mismatch = readMismatch(r, e) },
		"auth":       func(e entry) { readAuth(r, e, &dest.Auth, secret) },
		"webhook_secrets": func(e entry) {
			for _, at := range r.list(e) {
				dest.WebhookSecrets = append(dest.WebhookSecrets, secret(at))
			}
		},
		"headers":         func(e entry) { dest.Headers = readHeaders(r, e, secret) },
		"json_answers":    func(e entry) { dest.JSONAnswers = readBool(r, e) },
		"rules":           func(e entry) { dest.Rules, ruleLines = readRules(r, e) },
		"lookup":          func(e entry) { dest.Lookup, lookupLines = readLookup(r, e) },
		"concurrency":     func(e entry) { dest.Limits.Concurrency = r.number(e, 1, 10_000) },
		"rate":            func(e entry) { dest.Limits.Rate = readRate(r, e) },
		"burst":           func(e entry) { dest.Limits.Burst = r.number(e, 1, 1_000_000) },
		"per_endpoint":    func(e entry) { dest.Limits.PerEndpoint = r.number(e, 1, 10_000) },
		"break_after":     func(e entry) { dest.Limits.BreakAfter = readBreakAfter(r, e) },
		"break_delay":     func(e entry) { dest.Limits.BreakDelay = r.duration(e) },
		"max_break_delay": func(e entry) { dest.Limits.MaxBreakDelay = r.duration(e) },
		"ca_file":         func(e entry) { dest.CAFile, _, _ = r.text(e) },
		"proxy":           func(e entry) { dest.Proxy = secret(e) },
		"allow_private":   func(e entry) { dest.AllowPrivate = readRanges(r, e) },
	})
	if mismatch != 0 || dest.Vendor.Replay == dispatcher.ReplayNothing { // which a preset's does not go with
		dest.Vendor.Mismatch = mismatch
	}
	if dest.lines["url"] > 0 && dest.lines["endpoint"] == 0 {
		dest.Endpoint = "" // one receiver, whatever the preset says
		if dest.lines["concurrency"] == 0 {
			dest.Limits.Concurrency = 0
		}
	}
	dest.Rules = append(dest.Rules, presetRules...)
	maps.Copy(dest.lines, ruleLines)
	maps.Copy(dest.lines, lookupLines)
	return dest
}

func readRanges(r *reader, e entry) (out []netip.Prefix) {
	for _, at := range r.list(e) {
		text, ok := r.raw(at)
		if !ok {
			continue
		}
		prefix, err := netip.ParsePrefix(text)
		if err != nil {
			r.fail(at.line, "%s: %q is no range of addresses: want such as 10.0.0.0/8 or fd00::/8", at.path, text)
			continue
		}
		out = append(out, prefix)
	}
	return out
}

func readHeaders(r *reader, at entry, value func(entry) string) map[string]string {
	headers := map[string]string{}
	for _, e := range r.entries(at) {
		headers[e.name] = value(e)
	}
	return headers
}

func readWindow(r *reader, e entry) time.Duration {
	if text, _ := scalar(e.node); text == "forever" {
		return dispatcher.Forever
	}
	return r.duration(e)
}

func readAction(r *reader, at entry) *action {
	a := &action{at: at}
	a.Name = at.name
	p := &a.Policy
	value := func(e entry) string {
		text, secrets, _ := r.text(e)
		a.secrets = append(a.secrets, secrets...)
		return text
	}
	var ruleLines, lookupLines map[string]int
	a.lines = r.fields(at, map[string]func(entry){
		"destination":     func(e entry) { a.destination, _ = r.raw(e) },
		"request":         func(e entry) { a.Request, _ = r.raw(e) },
		"body":            func(e entry) { a.Body = readBody(r, e) },
		"rules":           func(e entry) { a.Rules, ruleLines = readRules(r, e) },
		"lookup":          func(e entry) { a.Lookup, lookupLines = readLookup(r, e) },
		"headers":         func(e entry) { a.Headers = readHeaders(r, e, value) },
		"success":         func(e entry) { a.Success = readStatuses(r, e) },
		"refused":         func(e entry) { a.Refused = readStatuses(r, e) },
		"wait":            func(e entry) { a.Wait = readStatuses(r, e) },
		"accepted":        func(e entry) { a.Accepted = readStatuses(r, e) },
		"class":           func(e entry) { p.Class = readClass(r, e) },
		"timeout":         func(e entry) { p.Timeout = r.duration(e) },
		"lease":           func(e entry) { p.Lease = r.duration(e) },
		"attempts":        func(e entry) { p.Attempts = r.number(e, 1, 1000) },
		"backoff":         func(e entry) { p.Backoff = r.duration(e) },
		"max_backoff":     func(e entry) { p.MaxBackoff = r.duration(e) },
		"deadline":        func(e entry) { p.Deadline = r.duration(e) },
		"key_window":      func(e entry) { p.KeyWindow = readWindow(r, e) },
		"settling_delay":  func(e entry) { p.SettlingDelay = readDelay(r, e) },
		"response_cap":    func(e entry) { p.ResponseCap = readCap(r, e) },
		"ordering":        func(e entry) { p.PassFailed = readOrdering(r, e) },
		"resend_absent":   func(e entry) { p.ResendAbsent = readBool(r, e) },
		"completion_time": func(e entry) { p.CompletionTime = r.duration(e) },
	})
	maps.Copy(a.lines, ruleLines)
	maps.Copy(a.lines, lookupLines)
	return a
}

func readClass(r *reader, e entry) dispatcher.Class {
	text, ok := r.raw(e)
	class, known := dispatcher.ParseClass(text)
	if ok && !known {
		r.fail(e.line, "%s: %q is none of read, idempotent_write, non_idempotent_write, irreversible_write", e.path, text)
	}
	return class
}

func readStatuses(r *reader, e entry) (out httpvendor.Statuses) {
	for _, at := range r.list(e) {
		text, ok := r.raw(at)
		if !ok {
			continue
		}
		statuses, err := httpvendor.ParseStatuses(text)
		if err != nil {
			r.fail(at.line, "%s: %v", at.path, err)
		}
		out = append(out, statuses...)
	}
	return out
}

// readDelay and readCap: 0 means none, which a policy says by a negative value.
func readDelay(r *reader, e entry) time.Duration {
	if text, _ := scalar(e.node); text == "0" || text == "0s" {
		return -1
	}
	return r.duration(e)
}

func readCap(r *reader, e entry) int {
	if text, _ := scalar(e.node); text == "0" {
		return -1
	}
	return r.number(e, 0, 1<<20)
}

// readBreakAfter: 0 means that there is no breaker.
func readBreakAfter(r *reader, e entry) int {
	if text, _ := scalar(e.node); text == "0" {
		return -1
	}
	return r.number(e, 0, 1_000_000)
}

var rates = regexp.MustCompile(`^([0-9]+(?:\.[0-9]+)?)(?:/(s|m|h))?$`)

// readRate reads such as 25, 25/s or 600/m: calls a second.
func readRate(r *reader, e entry) float64 {
	text, ok := r.raw(e)
	if !ok {
		return 0
	}
	m := rates.FindStringSubmatch(text)
	if m == nil {
		r.fail(e.line, "%s: %q is not a rate: want such as 25 (a second), 600/m or 10/h", e.path, text)
		return 0
	}
	n, err := strconv.ParseFloat(m[1], 64)
	if err != nil || n == 0 {
		r.fail(e.line, "%s: %q is not more than 0", e.path, text)
	}
	return n / map[string]float64{"": 1, "s": 1, "m": 60, "h": 3600}[m[2]]
}

func readOrdering(r *reader, e entry) (passFailed bool) {
	text, ok := r.raw(e)
	if ok && text != "wait" && text != "pass_failed" {
		r.fail(e.line, "%s: %q is neither wait nor pass_failed", e.path, text)
	}
	return text == "pass_failed"
}

// check asks the packages that will work with the values, item by item, so that each mistake finds its line.
func (c *config) check(r *reader) {
	for _, dest := range c.destinations {
		for _, a := range c.actions {
			if a.destination == dest.Name {
				dest.Secrets = append(dest.Secrets, a.secrets...)
			}
		}
		var err error
		dest.client, err = httpvendor.New(dest.Destination)
		r.explain(err, dest.at, dest.lines)
		d := dispatcher.New(nil, nil)
		d.Destination(dest.Name, dest.Limits)
		if dest.client != nil {
			d.Vendor(dest.Name, dest.client.Vendor())
		}
		var options []dispatcher.Option
		if dest.Endpoint != "" {
			options = append(options, dispatcher.WithEndpoint(func(*dispatcher.Call) string { return "" }))
		}
		d.Handle("check", dispatcher.Policy{Class: dispatcher.Read, Destination: dest.Name}, nothing, options...)
		r.explain(d.Check(), dest.at, dest.lines)
	}
	for _, a := range c.actions {
		c.checkAction(r, a)
	}
}

func (c *config) checkAction(r *reader, a *action) {
	line := cmp.Or(a.lines["destination"], a.at.line)
	dest := c.destination(a.destination)
	switch {
	case dest == nil && a.destination == "":
		r.fail(line, "%s.destination is missing", a.at.path)
	case dest == nil:
		r.fail(line, "%s.destination: %q is not among the destinations (%s)", a.at.path, a.destination, c.names())
	}
	client, window := anyClient, time.Duration(0)
	if dest != nil {
		window = dest.Vendor.Window
		if dest.client != nil {
			client = dest.client
		}
	}
	if a.Policy.Class == dispatcher.IdempotentWrite && a.Policy.KeyWindow == 0 {
		a.Policy.KeyWindow = window
	}
	_, options, err := client.Handler(a.Action)
	r.explain(err, a.at, a.lines)
	if dest != nil && dest.client == nil && dest.Lookup != nil { // it could not be made, and is not missing
		options = append(options, dispatcher.WithLookup(noLookup))
	}
	d, policy := dispatcher.New(nil, nil), a.Policy
	if dest != nil {
		policy.Destination = dest.Name
		d.Destination(dest.Name, dispatcher.Limits{})
		d.Vendor(dest.Name, client.Vendor())
	}
	d.Handle(a.Name, policy, nothing, options...)
	r.explain(withoutDestinations(d.Check()), a.at, a.lines)
}

// withoutDestinations leaves out what was said of the destinations already.
func withoutDestinations(err error) error {
	return errors.Join(slices.DeleteFunc(split(err), func(one error) bool {
		return strings.HasPrefix(one.Error(), "dispatcher: destination ")
	})...)
}

func (c *config) names() string {
	names := map[string]bool{}
	for _, dest := range c.destinations {
		names[dest.Name] = true
	}
	return strings.Join(slices.Sorted(maps.Keys(names)), ", ")
}

// anyClient stands in for one that could not be made, so that its actions are checked too.
var anyClient = func() *httpvendor.Client {
	client, err := httpvendor.New(httpvendor.Destination{Name: "any", URL: "https://vendor.invalid"})
	if err != nil {
		panic(err)
	}
	return client
}()

// nothing is a handler for a policy that is only checked.
func nothing(context.Context, *dispatcher.Call) (dispatcher.Answer, error) {
	return dispatcher.Answer{}, nil
}

func noLookup(context.Context, *dispatcher.Call, []byte) (dispatcher.Finding, error) {
	return dispatcher.Finding{}, nil
}

// explain turns each of the joined errors of a package, "package: item: Field words", into a mistake at the line of the
// field or else of the item, in the file's own names.
func (r *reader) explain(err error, at entry, lines map[string]int) {
	for _, one := range split(err) {
		_, text, _ := strings.Cut(one.Error(), ": ")
		line, path := at.line, at.path
		if m := aboutField.FindStringSubmatch(text); m != nil {
			name := fileNames[m[1]]
			line, path, text = cmp.Or(lines[name], at.line), join(path, name), m[2]
			if n := ruleNumber.FindStringSubmatch(text); n != nil {
				if name == "lookup" {
					path += ".rules"
				}
				line, path, text = cmp.Or(lines[name+" "+n[1]], line), path+"["+n[1]+"]", n[2]
			}
		}
		if !r.failed(path) {
			r.fail(line, "%s: %s", path, translate.Replace(text))
		}
	}
}

// fileNames are the names of fields, in Go and in the file.
var fileNames = map[string]string{
	"Name": "name", "URL": "url", "Endpoint": "endpoint", "PerEndpoint": "per_endpoint", "Headers": "headers", "KeyWindow": "key_window", "Vendor": "key", "Vendor.Key": "key",
	"Vendor.Window": "key_window", "Vendor.Replay": "replay", "Vendor.Mismatch": "mismatch", "Auth": "auth", "WebhookSecrets": "webhook_secrets", "AllowPrivate": "allow_private", "Rules": "rules",
	"Concurrency": "concurrency", "Rate": "rate", "Burst": "burst",
	"BreakAfter": "break_after", "BreakDelay": "break_delay", "MaxBreakDelay": "max_break_delay", "CAFile": "ca_file", "Proxy": "proxy", "Request": "request", "Body": "body", "Lookup": "lookup",
	"Success": "success", "Refused": "refused", "Wait": "wait", "Accepted": "accepted", "Class": "class",
	"Destination": "destination", "Timeout": "timeout", "Lease": "lease", "Attempts": "attempts", "Backoff": "backoff",
	"MaxBackoff": "max_backoff", "Deadline": "deadline", "SettlingDelay": "settling_delay", "ResponseCap": "response_cap",
	"PassFailed": "ordering", "ResendAbsent": "resend_absent", "CompletionTime": "completion_time",
	"SweepInterval": "sweep_interval", "StopTimeout": "stop_timeout", "Retention": "retention",
}

// words are more of what the packages' errors say, and the file's words for it.
var words = []string{
	"dispatcher.Forever", "forever", "register one with WithLookup", "give it a lookup", "the vendor's Window", "the vendor's key_window",
	"Key.Name: ", "", "MaxLength", "max_length", "Alphabet", "alphabet", "Quoted", "quoted", "Status", "status", "Header", "header",
	"Field", "field", "Values", "values", "Means", "means", "Format", "format", "Template", "template",
}

var (
	aboutField = regexp.MustCompile(`^(?:[^ ]+: |destination "[^"]*": |Config\.)(` + alternatives() + `)[ .](.*)$`)
	ruleNumber = regexp.MustCompile(`^(?:has rule )?number ([0-9]+): (.*)$`)
	translate  = func() *strings.Replacer {
		pairs := slices.Clone(words)
		for _, name := range slices.Backward(slices.Sorted(maps.Keys(fileNames))) {
			if name != "URL" { // a word of its own
				pairs = append(pairs, name, fileNames[name])
			}
		}
		return strings.NewReplacer(pairs...)
	}()
)

// alternatives are the names, the longer of two that begin alike first.
func alternatives() string {
	names := slices.Sorted(maps.Keys(fileNames))
	slices.Reverse(names)
	for i, name := range names {
		names[i] = regexp.QuoteMeta(name)
	}
	return strings.Join(names, "|")
}

func split(err error) []error {
	if err == nil {
		return nil
	}
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		var out []error
		for _, one := range joined.Unwrap() {
			out = append(out, split(one)...)
		}
		return out
	}
	return []error{err}
}
