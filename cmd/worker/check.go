package main

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"unicode"

	"github.com/samekey/samekey/dispatcher"
	"github.com/samekey/samekey/dispatcher/httpvendor"
	"github.com/samekey/samekey/internal/names"
)

// check has dispatcher and httpvendor check what the file says, and translates their mistakes.
func (c *config) check(r *reader) {
	d := dispatcher.New(nil, &c.worker)
	var errs dispatcher.ConfigErrors
	for _, dest := range c.destinations {
		for _, a := range c.actions {
			if a.destination == dest.Name {
				dest.Secrets = append(dest.Secrets, a.secrets...)
				dest.files = dest.files || a.files
			}
		}
		var err error
		dest.client, err = httpvendor.New(dest.Destination)
		errs.Join(err)
		if err == nil && dest.files {
			c.rotate(r, dest)
			dest.client, _ = httpvendor.New(dest.Destination)
		}
		dest.client.Register(d)
		c.places[fmt.Sprintf("destination %q", dest.Name)] = dest.at
	}
	for i, a := range c.actions {
		name := a.name
		if err := names.CheckAction(name); err != nil {
			r.mistake(a.at.line, a.at.path, "the name %v", err)
			name = fmt.Sprintf("action-%d", i) // to check the rest of it
		}
		c.places[fmt.Sprintf("action %q", name)] = a.at
		c.checkFairBy(r, a)
		dispatcher.Handle(d, a.of(name), a.delivery(c.clientOf(r, a)))
	}
	errs.Join(d.Check())
	for _, err := range errs {
		r.explain(err, c.places[err.Item])
	}
}

var endpointIsPart = regexp.MustCompile(`^\{\{-? *\.Part *-?\}\}$`)

// checkFairBy refuses shares of endpoints that the part does not name: a writer knows the part, and not the endpoint.
func (c *config) checkFairBy(r *reader, a *action) {
	dest := c.destination(a.destination)
	if a.Policy.FairBy != dispatcher.FairByPart || dest == nil || endpointIsPart.MatchString(dest.Endpoint) {
		return
	}
	path := join(a.at.path, "fair_by")
	r.mistake(r.lineOf(path, a.at.line), path, "endpoint needs a destination with `endpoint: \"{{.Part}}\"`: share by scope, or name the endpoint by the intent's part")
}

// clientOf returns the client of an action's destination. If there is none, it returns one to check the rest of the
// action.
func (c *config) clientOf(r *reader, a *action) *httpvendor.Client {
	if dest := c.destination(a.destination); dest != nil {
		return dest.client
	}
	at := entry{path: join(a.at.path, "destination")}
	at.line = r.lineOf(at.path, a.at.line)
	switch {
	case r.failed(at.path):
	case a.destination == "":
		r.fail(at, "missing")
	case len(c.destinations) > 0: // else that is the mistake
		r.fail(at, "%q is not one of the destinations (%s)", a.destination, c.names())
	}
	r.unread = append(r.unread, at.path)
	client, _ := httpvendor.New(httpvendor.Destination{Name: "unknown", URL: "https://vendor.invalid"})
	return client
}

func (c *config) names() string {
	names := map[string]bool{}
	for _, dest := range c.destinations {
		names[dest.Name] = true
	}
	return strings.Join(slices.Sorted(maps.Keys(names)), ", ")
}

// explain adds a mistake with the file's names and line, unless it follows from a value that could not be read.
func (r *reader) explain(err *dispatcher.ConfigError, at entry) {
	path := at.path
	follows := slices.ContainsFunc(r.unread, func(unread string) bool { return within(path, unread) })
	if err.Field != "" {
		path = join(at.path, fileName(err.Field))
		follows = r.failed(path)
	}
	reason := err.ReasonIn(func(goName string) string {
		name := fileName(goName)
		follows = follows || r.failed(join(at.path, name))
		return name
	})
	if !follows {
		r.mistake(r.lineOf(path, at.line), path, "%s", reason)
	}
}

// lineOf returns the line of a path, or of the closest thing around it.
func (r *reader) lineOf(path string, otherwise int) int {
	for path != "" {
		if line, ok := r.lines[path]; ok {
			return line
		}
		path = path[:max(strings.LastIndexAny(path, ".["), 0)]
	}
	return otherwise
}

// fileNames are the file's names for Go's. A Go name that is not here has the same words in the file: CAFile is
// ca_file.
var fileNames = map[string]string{
	"ClientCertFile":    "client_cert",
	"ClientKeyFile":     "client_key",
	"OAuth2":            "oauth2",
	"PassFailed":        "ordering",
	"StopEndpointAfter": "stop_after",
	"ApplyFunction":     "apply",
	"ArchiveFunction":   "archive",
	"AttentionFunction": "attention",
	"Vendor":            "key",
	"Vendor.Key":        "key",
	"Vendor.Key.Place":  "key",
	"Vendor.Key.Name":   "key",
	"Vendor.Window":     "key_window",
	"Vendor.Replay":     "replay",
	"Vendor.Mismatch":   "mismatch",
	"KeyInHeader":       "header",
	"KeyInBody":         "field",
	"KeyNowhere":        "none",
	"ReplayAnswer":      "answer",
	"ReplaySuccess":     "success",
	"ReplayState":       "state",
	"ReplayNothing":     "nothing",
	"MismatchRefused":   "refused",
	"MismatchIgnored":   "ignored",
}

// fileName returns the file's name for the path of a Go field, or for a constant.
func fileName(goName string) string {
	if name, ok := fileNames[goName]; ok {
		return name
	}
	if rest, ok := strings.CutPrefix(goName, "Vendor.Key."); ok {
		return "key." + fileName(rest)
	}
	field, rest, dot := strings.Cut(goName, ".")
	field, key, keyed := strings.Cut(field, "[")
	switch {
	case keyed && strings.HasPrefix(key, `"`): // a member of a map, whose name may have dots
		return snake(field) + "." + strings.TrimSuffix(strings.TrimPrefix(goName, field+`["`), `"]`)
	case keyed:
		field = snake(field) + "[" + key
	case field == "OAuth2":
		field = fileNames[field]
	default:
		field = snake(field)
	}
	if !dot {
		return field
	}
	return field + "." + fileName(rest)
}

// snake turns CAFile into ca_file.
func snake(name string) string {
	var out strings.Builder
	runes := []rune(name)
	for i, c := range runes {
		if i > 0 && unicode.IsUpper(c) && (!unicode.IsUpper(runes[i-1]) || i+1 < len(runes) && unicode.IsLower(runes[i+1])) {
			out.WriteByte('_')
		}
		out.WriteRune(unicode.ToLower(c))
	}
	return out.String()
}
