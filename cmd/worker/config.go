package main

import (
	"net/netip"
	"os"
	"regexp"
	"strconv"
	"time"

	"github.com/goccy/go-yaml/ast"

	"github.com/samekey/samekey/dispatcher"
	"github.com/samekey/samekey/dispatcher/httpvendor"
	"github.com/samekey/samekey/outbox"
)

// config is what a file says.
type config struct {
	file         string
	worker       dispatcher.Config
	destinations []*destination
	actions      []*action
	lines        map[string]int   // of each path in the file
	places       map[string]entry // of the items of dispatcher.ConfigError
	warnings     []string         // about what is allowed and probably wrong, each with its line
}

type destination struct {
	httpvendor.Destination
	preset string        // its name in the file
	files  bool          // it or an action of it has secrets in files
	window time.Duration // the preset's key window; zero: the preset has none
	at     entry
	client *httpvendor.Client
}

type action struct {
	httpvendor.Action
	name        string
	at          entry
	destination string
	secrets     []string // in its headers
	version     int      // the newest of its payloads that the file fits; 0: 1
	files       bool     // they are in files

	apply, attention string // SQL functions
}

// of is what the action is registered as, under this name.
func (a *action) of(name string) outbox.Action[[]byte] {
	if a.version < 2 {
		return outbox.NewAction[[]byte](name)
	}
	return outbox.NewAction[[]byte](name).Version(a.version)
}

// delivery is the action's, with its client.
func (a *action) delivery(client *httpvendor.Client) dispatcher.Delivery[[]byte] {
	delivery := httpvendor.Delivery[[]byte](client, a.Action)
	delivery.ApplyFunction, delivery.AttentionFunction = a.apply, a.attention
	return delivery
}

// load reads and checks a file. The error has every mistake, each with its line.
func load(file string, lookupEnv func(string) (string, bool)) (*config, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	r := &reader{file: file, lookupEnv: lookupEnv, lines: map[string]int{}, files: &secretFiles{texts: map[string]string{}, bad: map[string]bool{}}}
	c := &config{file: file, lines: r.lines, places: map[string]entry{"dispatcher": {path: "actions", line: 1}, "dispatcher.Config": {path: "worker", line: 1}}}
	if top := r.parse(data); top != nil {
		c.read(r, top)
		c.check(r)
		c.warn(r)
	}
	return c, r.err()
}

// explain words mistakes that only the database shows, each with its line.
func (c *config) explain(errs dispatcher.ConfigErrors) error {
	r := &reader{file: c.file, lines: c.lines}
	for _, err := range errs {
		r.explain(err, c.places[err.Item])
	}
	return r.err()
}

// register registers all actions. The file was checked by load.
func (c *config) register(d *dispatcher.Dispatcher) {
	for _, dest := range c.destinations {
		dest.client.Register(d)
	}
	for _, a := range c.actions {
		dispatcher.Handle(d, a.of(a.name), a.delivery(c.destination(a.destination).client))
	}
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
	at := entry{path: "", line: 1, node: top}
	has := r.fields(at, map[string]func(entry){
		"worker": func(e entry) { c.readWorker(r, e) },
		"destinations": func(e entry) {
			for _, at := range r.entries(e) {
				c.destinations = append(c.destinations, readDestination(r, at))
			}
		},
		"actions": func(e entry) {
			c.places["dispatcher"] = e
			for _, at := range r.entries(e) {
				c.actions = append(c.actions, readAction(r, at))
			}
		},
	})
	if _, mapping := top.(ast.MapNode); !mapping {
		return
	}
	c.readDeployment(r)
	for _, name := range []string{"destinations", "actions"} {
		if !has[name] {
			r.fail(entry{path: name, line: 1}, "missing")
		}
	}
}

func (c *config) readWorker(r *reader, at entry) {
	c.places["dispatcher.Config"] = at
	r.fields(at, map[string]func(entry){
		"name":           func(e entry) { c.worker.Name, _, _ = r.text(e) },
		"deployment":     func(e entry) { c.worker.Deployment, _, _ = r.text(e) },
		"sweep_interval": func(e entry) { c.worker.SweepInterval = r.duration(e) },
		"stop_timeout":   func(e entry) { c.worker.StopTimeout = r.duration(e) },
		"retention":      func(e entry) { c.worker.Retention = r.duration(e) },
		"archive":        func(e entry) { c.worker.ArchiveFunction, _, _ = r.text(e) },
	})
}

// readDeployment takes the deployment from the environment if the file has none: it is what differs between two that
// run the same file.
func (c *config) readDeployment(r *reader) {
	if c.worker.Deployment != "" || r.failed("worker") {
		return
	}
	at := entry{path: "worker.deployment", line: r.lineOf("worker", 1)}
	if c.worker.Deployment, _ = r.lookupEnv("DEPLOYMENT"); c.worker.Deployment == "" {
		r.fail(at, "missing: name the deployment whose intents this worker delivers, such as production, here or in the environment variable DEPLOYMENT")
	}
}

func readDestination(r *reader, at entry) *destination {
	r.read = false
	preset, made := readPreset(r, at)
	dest := &destination{Destination: made, preset: preset, window: made.Vendor.Window, at: at}
	presetRules := dest.Rules // come after the file's own, which are numbered in mistakes
	dest.Name, dest.Rules = at.name, nil
	secret := func(e entry) string {
		value, secrets, _ := r.text(e)
		dest.Secrets = append(dest.Secrets, secrets...)
		return value
	}
	var mismatch dispatcher.Mismatch
	has := r.fields(at, map[string]func(entry){
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
		"signature":       func(e entry) { dest.Signature = readSignature(r, e) },
		"headers":         func(e entry) { dest.Headers = readHeaders(r, e, secret) },
		"retry_after":     func(e entry) { dest.RetryAfter, _ = r.raw(e) },
		"http2":           func(e entry) { dest.HTTP2 = readBool(r, e) },
		"json_answers":    func(e entry) { dest.JSONAnswers = readBool(r, e) },
		"rules":           func(e entry) { dest.Rules = readRules(r, e, sends) },
		"lookup":          func(e entry) { dest.Lookup = readLookup(r, e) },
		"reference":       func(e entry) { dest.Reference, _ = r.raw(e) },
		"concurrency":     func(e entry) { dest.Limits.Concurrency = r.number(e, 1, 10_000) },
		"rate":            func(e entry) { dest.Limits.Rate = readRate(r, e) },
		"burst":           func(e entry) { dest.Limits.Burst = r.number(e, 1, 1_000_000) },
		"per_endpoint":    func(e entry) { dest.Limits.PerEndpoint = r.number(e, 1, 10_000) },
		"stop_after":      func(e entry) { dest.Limits.StopEndpointAfter = r.duration(e) },
		"break_after":     func(e entry) { dest.Limits.BreakAfter = readBreakAfter(r, e) },
		"break_delay":     func(e entry) { dest.Limits.BreakDelay = r.duration(e) },
		"max_break_delay": func(e entry) { dest.Limits.MaxBreakDelay = r.duration(e) },
		"ca_file":         func(e entry) { dest.CAFile, _, _ = r.text(e) },
		"client_cert":     func(e entry) { dest.ClientCertFile, _, _ = r.text(e) },
		"client_key":      func(e entry) { dest.ClientKeyFile, _, _ = r.text(e) },
		"proxy":           func(e entry) { dest.Proxy = secret(e) },
		"allow_private":   func(e entry) { dest.AllowPrivate = readRanges(r, e) },
	})
	if mismatch != 0 || dest.Vendor.Replay == dispatcher.ReplayNothing { // which the preset's does not fit
		dest.Vendor.Mismatch = mismatch
	}
	if has["url"] && !has["endpoint"] {
		dest.Endpoint = "" // one receiver, whatever the preset says
		if !has["concurrency"] {
			dest.Limits.Concurrency = 0
		}
	}
	dest.Rules = append(dest.Rules, presetRules...)
	dest.files = r.read
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
			r.fail(at, "%q is not a range of addresses such as 10.0.0.0/8 or fd00::/8", text)
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
	a := &action{name: at.name, at: at}
	r.read = false
	p := &a.Policy
	value := func(e entry) string {
		text, secrets, _ := r.text(e)
		a.secrets = append(a.secrets, secrets...)
		return text
	}
	r.fields(at, map[string]func(entry){
		"destination":     func(e entry) { a.destination, _ = r.raw(e) },
		"request":         func(e entry) { a.Request, _ = r.raw(e) },
		"body":            func(e entry) { a.Body = readBody(r, e) },
		"rules":           func(e entry) { a.Rules = readRules(r, e, sends) },
		"lookup":          func(e entry) { a.Lookup = readLookup(r, e) },
		"reference":       func(e entry) { a.Reference, _ = r.raw(e) },
		"retry_after":     func(e entry) { a.RetryAfter, _ = r.raw(e) },
		"headers":         func(e entry) { a.Headers = readHeaders(r, e, value) },
		"delivered":       func(e entry) { a.Delivered = readStatuses(r, e) },
		"refused":         func(e entry) { a.Refused = readStatuses(r, e) },
		"retry":           func(e entry) { a.Retry = readStatuses(r, e) },
		"accepted":        func(e entry) { a.Accepted = readStatuses(r, e) },
		"payload_version": func(e entry) { a.version = r.number(e, 1, 9999) },
		"class":           func(e entry) { p.Class, _ = oneOf(r, e, classes) },
		"timeout":         func(e entry) { p.Timeout = r.duration(e) },
		"lease":           func(e entry) { p.Lease = r.duration(e) },
		"attempts":        func(e entry) { p.Attempts = r.number(e, 1, 1000) },
		"backoff":         func(e entry) { p.Backoff = r.duration(e) },
		"schedule": func(e entry) {
			for _, at := range r.list(e) {
				p.Schedule = append(p.Schedule, r.duration(at))
			}
		},
		"max_backoff":     func(e entry) { p.MaxBackoff = r.duration(e) },
		"deadline":        func(e entry) { p.Deadline = r.duration(e) },
		"key_window":      func(e entry) { p.KeyWindow = readWindow(r, e) },
		"settling_delay":  func(e entry) { p.SettlingDelay = readDelay(r, e) },
		"response_cap":    func(e entry) { p.ResponseCap = readCap(r, e) },
		"fair_by":         func(e entry) { p.FairBy, _ = oneOf(r, e, fairBy) },
		"ordering":        func(e entry) { p.PassFailed = readOrdering(r, e) },
		"resend_absent":   func(e entry) { p.ResendAbsent = readBool(r, e) },
		"completion_time": func(e entry) { p.CompletionTime = r.duration(e) },
		"apply":           func(e entry) { a.apply, _ = r.raw(e) },
		"attention":       func(e entry) { a.attention, _ = r.raw(e) },
	})
	a.files = r.read
	return a
}

// fairBy are the file's names. An endpoint is a share if the part names it, see checkFairBy.
var fairBy = map[string]dispatcher.FairBy{"scope": dispatcher.FairByScope, "endpoint": dispatcher.FairByPart}

func readStatuses(r *reader, e entry) (out httpvendor.Statuses) {
	for _, at := range r.list(e) {
		text, ok := r.raw(at)
		if !ok {
			continue
		}
		statuses, err := httpvendor.ParseStatuses(text)
		if err != nil {
			r.fail(at, "%v", err)
		}
		out = append(out, statuses...)
	}
	return out
}

// In readDelay and readCap 0 means none, which is a negative value in a policy.
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

// readBreakAfter reads 0 as no breaker, which is a negative value in limits.
func readBreakAfter(r *reader, e entry) int {
	if text, _ := scalar(e.node); text == "0" {
		return -1
	}
	return r.number(e, 0, 1_000_000)
}

var rates = regexp.MustCompile(`^([0-9]+(?:\.[0-9]+)?)(?:/(s|m|h))?$`)

// readRate reads a rate such as 25, 25/s or 600/m, and returns calls a second.
func readRate(r *reader, e entry) float64 {
	text, ok := r.raw(e)
	if !ok {
		return 0
	}
	m := rates.FindStringSubmatch(text)
	if m == nil {
		r.fail(e, "%q is not a rate such as 25 (a second), 600/m or 10/h", text)
		return 0
	}
	n, err := strconv.ParseFloat(m[1], 64)
	if err != nil || n == 0 {
		r.fail(e, "%s must be greater than 0", text)
	}
	return n / map[string]float64{"": 1, "s": 1, "m": 60, "h": 3600}[m[2]]
}

func readOrdering(r *reader, e entry) (passFailed bool) {
	passFailed, _ = oneOf(r, e, map[string]bool{"wait": false, "pass_failed": true})
	return passFailed
}
