package main

import (
	"maps"
	"slices"
	"strings"

	"github.com/goccy/go-yaml/ast"

	"github.com/samekey/samekey/dispatcher"
	"github.com/samekey/samekey/dispatcher/httpvendor"
)

// What the file says about vendors: presets, where keys go, authentication, bodies, rules and lookups.

var presets = map[string]func() httpvendor.Destination{
	"stripe": httpvendor.Stripe, "adyen": httpvendor.Adyen, "paypal": httpvendor.PayPal, "square": httpvendor.Square,
	"checkout": httpvendor.Checkout, "resend": httpvendor.Resend, "generic": httpvendor.Generic, "mail": httpvendor.Mail,
	"webhooks": func() httpvendor.Destination { return httpvendor.StandardWebhooks() },
	noPreset:   func() httpvendor.Destination { return httpvendor.Destination{} },
}

// noPreset is the word for a destination that says everything itself.
const noPreset = "none"

// readPreset finds a destination's preset among its fields.
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
		r.fail(e, "%q is not one of %s", text, strings.Join(slices.Sorted(maps.Keys(known)), ", "))
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
	has := r.fields(e, map[string]func(entry){
		"header":     place(dispatcher.KeyInHeader),
		"field":      place(dispatcher.KeyInBody),
		"max_length": func(e entry) { key.MaxLength = r.number(e, 1, 255) },
		"alphabet":   func(e entry) { key.Alphabet, _ = r.raw(e) },
		"quoted":     func(e entry) { key.Quoted = readBool(r, e) },
	})
	if has["header"] && has["field"] {
		r.fail(e, "has both header and field, but the key goes into one of them")
	}
}

func readAuth(r *reader, e entry, auth *httpvendor.Auth, secret func(entry) string) {
	r.fields(e, map[string]func(entry){
		"bearer":   func(e entry) { auth.Bearer = secret(e) },
		"user":     func(e entry) { auth.User = secret(e) },
		"password": func(e entry) { auth.Password = secret(e) },
		"header":   func(e entry) { auth.Header, _ = r.raw(e) },
		"value":    func(e entry) { auth.Value = secret(e) },
		"oauth2":   func(e entry) { auth.OAuth2 = readOAuth2(r, e, secret) },
	})
}

// readSignature reads the forms of the signature: a name, a mapping, or a list of them.
func readSignature(r *reader, e entry) (forms []httpvendor.Signature) {
	for _, at := range r.list(e) {
		var s httpvendor.Signature
		if _, mapping := at.node.(ast.MapNode); mapping {
			r.fields(at, map[string]func(entry){
				"form":     func(e entry) { s.Form, _ = r.raw(e) },
				"header":   func(e entry) { s.Header, _ = r.raw(e) },
				"encoding": func(e entry) { s.Encoding, _ = r.raw(e) },
				"prefix":   func(e entry) { s.Prefix, _ = r.raw(e) },
			})
		} else if s.Form, _ = r.raw(at); s.Form == "" {
			return nil
		}
		forms = append(forms, s)
	}
	return forms
}

func readOAuth2(r *reader, e entry, secret func(entry) string) *httpvendor.OAuth2 {
	o := &httpvendor.OAuth2{}
	r.fields(e, map[string]func(entry){
		"token_url":     func(e entry) { o.TokenURL = secret(e) },
		"client_id":     func(e entry) { o.ClientID = secret(e) },
		"client_secret": func(e entry) { o.ClientSecret = secret(e) },
		"scopes": func(e entry) {
			for _, at := range r.list(e) {
				scope, _ := r.raw(at)
				o.Scopes = append(o.Scopes, scope)
			}
		},
		"audience":   func(e entry) { o.Audience, _ = r.raw(e) },
		"auth_style": func(e entry) { o.AuthStyle, _ = r.raw(e) },
	})
	return o
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

var classes = map[string]dispatcher.Class{}

// The outcomes that rules may have, by their names.
var sends, lookups = map[string]outcome{}, map[string]outcome{}

type outcome = func(dispatcher.Response) dispatcher.Outcome

func init() {
	for _, class := range []dispatcher.Class{dispatcher.Read, dispatcher.IdempotentWrite, dispatcher.NonIdempotentWrite, dispatcher.IrreversibleWrite} {
		classes[class.String()] = class
	}
	for _, of := range []outcome{
		dispatcher.Delivered, dispatcher.Refused, dispatcher.Accepted, dispatcher.Retry, dispatcher.Denied, dispatcher.Dead,
		dispatcher.Gone, dispatcher.Unknown, dispatcher.Stuck, dispatcher.Absent,
	} {
		name := of(dispatcher.Response{}).Kind()
		sends[name], lookups[name] = of, of
	}
	delete(sends, "absent")
	delete(lookups, "gone")
}

// readRules reads a list of rules.
func readRules(r *reader, e entry, outcomes map[string]outcome) (rules []httpvendor.Rule) {
	for _, at := range r.items(e) {
		var rule httpvendor.Rule
		texts := func(of *[]string) func(entry) {
			return func(e entry) {
				for _, at := range r.list(e) {
					text, _ := r.raw(at)
					*of = append(*of, text)
				}
			}
		}
		r.fields(at, map[string]func(entry){
			"status": func(e entry) { rule.Status = readStatuses(r, e) },
			"header": func(e entry) { rule.Header, _ = r.raw(e) },
			"field":  func(e entry) { rule.Field, _ = r.raw(e) },
			"values": texts(&rule.Values), "contains": texts(&rule.Contains), "equals": texts(&rule.Equals),
			"outcome": func(e entry) { rule.Outcome, _ = oneOf(r, e, outcomes) },
			"reason":  func(e entry) { rule.Reason, _ = r.raw(e) },

			"reference": func(e entry) { rule.Reference, _ = r.raw(e) },
		})
		rules = append(rules, rule)
	}
	return rules
}

// readLookup reads a lookup: with rules, or with list and field, which make the rules for an answer that lists what was
// sent.
func readLookup(r *reader, e entry) *httpvendor.Lookup {
	lookup := &httpvendor.Lookup{}
	var list, field string
	has := r.fields(e, map[string]func(entry){
		"request": func(e entry) { lookup.Request, _ = r.raw(e) },
		"body":    func(e entry) { lookup.Body, _ = r.raw(e) },
		"list":    func(e entry) { list, _ = r.raw(e) },
		"field":   func(e entry) { field, _ = r.raw(e) },
		"rules":   func(e entry) { lookup.Rules = readRules(r, e, lookups) },

		"reference": func(e entry) { lookup.Reference, _ = r.raw(e) },
	})
	switch {
	case has["list"] != has["field"]:
		r.fail(e, "has only one of list and field: list is the array in the answer, and field is where the key is in each of its elements")
	case list != "":
		lookup.Rules = append(lookup.Rules, httpvendor.SentLog(lookup.Request, list, field).Rules...)
	}
	return lookup
}
