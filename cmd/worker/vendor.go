package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/goccy/go-yaml/ast"

	"github.com/samekey/samekey/dispatcher"
	"github.com/samekey/samekey/dispatcher/httpvendor"
)

// What the file says of vendors: presets, where keys go, who calls, what is sent, what answers mean, look-ups.

var presets = map[string]func() httpvendor.Destination{
	"stripe": httpvendor.Stripe, "adyen": httpvendor.Adyen, "paypal": httpvendor.PayPal, "square": httpvendor.Square,
	"checkout": httpvendor.Checkout, "resend": httpvendor.Resend, "generic": httpvendor.Generic, "mail": httpvendor.Mail,
	"webhooks": func() httpvendor.Destination { return httpvendor.StandardWebhooks() },
	noPreset:   func() httpvendor.Destination { return httpvendor.Destination{} },
}

// noPreset is the word for a destination that says everything itself.
const noPreset = "none"

// readPreset looks for a destination's preset, wherever it stands among its fields.
func readPreset(r *reader, at entry) (name string, dest httpvendor.Destination) {
	mapping, ok := at.node.(ast.MapNode)
	if !ok {
		return "", dest
	}
	for it := mapping.MapRange(); it.Next(); {
		if name, _ := scalar(it.Key()); name != "preset" {
			continue
		}
		e := entry{path: join(at.path, "preset"), name: "preset", line: it.Key().GetToken().Position.Line, node: it.Value()}
		if preset, ok := oneOf(r, e, presets); ok {
			name, _ = scalar(e.node)
			return name, preset()
		}
	}
	return "", dest
}

// oneOf reads a word that stands for a value.
func oneOf[T any](r *reader, e entry, known map[string]T) (value T, ok bool) {
	text, ok := r.raw(e)
	if !ok {
		return value, false
	}
	if value, ok = known[text]; !ok {
		r.fail(e.line, "%s: %q is none of %s", e.path, text, strings.Join(slices.Sorted(maps.Keys(known)), ", "))
	}
	return value, ok
}

func readBool(r *reader, e entry) bool {
	value, _ := oneOf(r, e, map[string]bool{"true": true, "false": false})
	return value
}

func readReplay(r *reader, e entry) dispatcher.Replay {
	value, _ := oneOf(r, e, map[string]dispatcher.Replay{
		"answer": dispatcher.ReplayAnswer, "success": dispatcher.ReplaySuccess,
		"state": dispatcher.ReplayState, "nothing": dispatcher.ReplayNothing,
	})
	return value
}

func readMismatch(r *reader, e entry) dispatcher.Mismatch {
	value, _ := oneOf(r, e, map[string]dispatcher.Mismatch{"refused": dispatcher.MismatchRefused, "ignored": dispatcher.MismatchIgnored})
	return value
}

// readKey reads where the key goes: key: none, or a mapping.
func readKey(r *reader, e entry, vendor *dispatcher.Vendor) {
	key := &vendor.Key
	if text, _ := scalar(e.node); text == "none" {
		vendor.Key, vendor.Replay = dispatcher.KeyRules{Place: dispatcher.KeyNowhere}, dispatcher.ReplayNothing
		return
	}
	place := func(place dispatcher.KeyPlace) func(entry) {
		return func(e entry) { key.Place = place; key.Name, _ = r.raw(e) }
	}
	lines := r.fields(e, map[string]func(entry){
		"header":     place(dispatcher.KeyInHeader),
		"field":      place(dispatcher.KeyInBody),
		"max_length": func(e entry) { key.MaxLength = r.number(e, 1, 255) },
		"alphabet":   func(e entry) { key.Alphabet, _ = r.raw(e) },
		"quoted":     func(e entry) { key.Quoted = readBool(r, e) },
	})
	if lines["header"] > 0 && lines["field"] > 0 {
		r.fail(e.line, "%s has header and field: the key goes into one of them", e.path)
	}
}

func readAuth(r *reader, e entry, auth *httpvendor.Auth, secret func(entry) string) {
	r.fields(e, map[string]func(entry){
		"bearer":   func(e entry) { auth.Bearer = secret(e) },
		"user":     func(e entry) { auth.User = secret(e) },
		"password": func(e entry) { auth.Password = secret(e) },
		"header":   func(e entry) { auth.Header, _ = r.raw(e) },
		"value":    func(e entry) { auth.Value = secret(e) },
	})
}

func readBody(r *reader, e entry) (body httpvendor.Body) {
	r.fields(e, map[string]func(entry){
		"format": func(e entry) {
			body.Format, _ = oneOf(r, e, map[string]httpvendor.Format{"json": httpvendor.JSON, "form": httpvendor.Form})
		},
		"template": func(e entry) { body.Template, _ = r.raw(e) },
		"fields": func(e entry) {
			for _, at := range r.entries(e) {
				value, _ := r.raw(at)
				body.Fields = append(body.Fields, httpvendor.Field{Name: at.name, Value: value})
			}
		},
	})
	return body
}

// readRules reads a list of rules, and the line of each.
func readRules(r *reader, e entry) (rules []httpvendor.Rule, lines map[string]int) {
	lines = map[string]int{}
	for i, at := range r.items(e) {
		var rule httpvendor.Rule
		fields := matchFields(r, &rule.Match)
		fields["means"] = func(e entry) {
			text, _ := r.raw(e)
			rule.Means = httpvendor.Meaning(text)
		}
		fields["reason"] = func(e entry) { rule.Reason, _ = r.raw(e) }
		r.fields(at, fields)
		rules = append(rules, rule)
		lines[fmt.Sprintf("rules %d", i+1)] = at.line
	}
	return rules, lines
}

func matchFields(r *reader, match *httpvendor.Match) map[string]func(entry) {
	return map[string]func(entry){
		"status": func(e entry) { match.Status = readStatuses(r, e) },
		"header": func(e entry) { match.Header, _ = r.raw(e) },
		"field":  func(e entry) { match.Field, _ = r.raw(e) },
		"values": func(e entry) {
			for _, at := range r.list(e) {
				value, _ := r.raw(at)
				match.Values = append(match.Values, value)
			}
		},
	}
}

// readLookup reads a look-up: with rules, or with list and field, which make the rules of a log of what was sent.
func readLookup(r *reader, e entry) (lookup *httpvendor.Lookup, lines map[string]int) {
	lookup, lines = &httpvendor.Lookup{}, map[string]int{}
	var list, field string
	at := r.fields(e, map[string]func(entry){
		"request": func(e entry) { lookup.Request, _ = r.raw(e) },
		"body":    func(e entry) { lookup.Body, _ = r.raw(e) },
		"list":    func(e entry) { list, _ = r.raw(e) },
		"field":   func(e entry) { field, _ = r.raw(e) },
		"rules": func(e entry) {
			for i, at := range r.items(e) {
				var rule httpvendor.LookupRule
				fields := matchFields(r, &rule.Match)
				fields["means"] = func(e entry) {
					text, _ := r.raw(e)
					rule.Means = httpvendor.Finding(text)
				}
				r.fields(at, fields)
				lookup.Rules = append(lookup.Rules, rule)
				lines[fmt.Sprintf("lookup %d", i+1)] = at.line
			}
		},
	})
	switch {
	case (at["list"] > 0) != (at["field"] > 0):
		r.fail(e.line, "%s has one of list and field: both say where the key is in a log of what was sent", e.path)
	case list != "":
		lookup.Rules = append(lookup.Rules, httpvendor.SentLog(lookup.Request, list, field).Rules...)
	}
	return lookup, lines
}
