package main

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/samekey/samekey/dispatcher"
	"github.com/samekey/samekey/dispatcher/httpvendor"
)

// Each Go field has a name in the file, so that a mistake in it can be explained there.
func TestFieldsHaveNamesInTheFile(t *testing.T) {
	notInTheFile := []string{"Policy", "Limits", "Match", "Secrets", "Credentials", "Logger", "Key", "Place"}
	known := func(text, path string) string {
		_, err := loadText(t, text, nil)
		if err == nil || !strings.Contains(err.Error(), path+".unknown: unknown field: use one of ") {
			t.Fatalf("the test is void: %v", err)
		}
		_, list, _ := strings.Cut(err.Error(), path+".unknown: unknown field: use one of ")
		list, _, _ = strings.Cut(list, "\n")
		return ", " + list + ", name, "
	}
	const rest = "\nactions: {}\n"
	destination := known("destinations: {a: {unknown: 1}}"+rest, "destinations.a")
	action := known("destinations: {}\nactions: {a: {unknown: 1}}", "actions.a")
	for of, fields := range map[reflect.Type]string{
		reflect.TypeFor[dispatcher.Config]():      known("worker: {unknown: 1}\ndestinations: {}"+rest, "worker"),
		reflect.TypeFor[dispatcher.Limits]():      destination,
		reflect.TypeFor[httpvendor.Destination](): destination,
		reflect.TypeFor[httpvendor.Auth]():        known("destinations: {a: {auth: {unknown: 1}}}"+rest, "destinations.a.auth"),
		reflect.TypeFor[httpvendor.OAuth2]():      known("destinations: {a: {auth: {oauth2: {unknown: 1}}}}"+rest, "destinations.a.auth.oauth2"),
		reflect.TypeFor[dispatcher.KeyRules]():    known("destinations: {a: {key: {unknown: 1}}}"+rest, "destinations.a.key"),
		reflect.TypeFor[dispatcher.Policy]():      action,
		reflect.TypeFor[httpvendor.Action]():      action,
		reflect.TypeFor[httpvendor.Body]():        known("destinations: {}\nactions: {a: {body: {unknown: 1}}}", "actions.a.body"),
		reflect.TypeFor[httpvendor.Lookup]():      known("destinations: {}\nactions: {a: {lookup: {unknown: 1}}}", "actions.a.lookup"),
		reflect.TypeFor[httpvendor.Rule]():        known("destinations: {}\nactions: {a: {rules: [{unknown: 1}]}}", "actions.a.rules[1]"),
		reflect.TypeFor[httpvendor.Match]():       known("destinations: {}\nactions: {a: {rules: [{unknown: 1}]}}", "actions.a.rules[1]"),
	} {
		for i := range of.NumField() {
			field := of.Field(i).Name
			if !of.Field(i).IsExported() || slices.Contains(notInTheFile, field) {
				continue
			}
			if name := fileName(field); !strings.Contains(fields, ", "+name+", ") {
				t.Errorf("%v.%s is %q, which the file does not have: %s", of, field, name, fields)
			}
		}
	}
	for goName, want := range map[string]string{
		"CAFile": "ca_file", "Auth.OAuth2.TokenURL": "auth.oauth2.token_url", "JSONAnswers": "json_answers", "KeyWindow": "key_window", "URL": "url", "Vendor.Key.MaxLength": "key.max_length",
		"Vendor.Window": "key_window", `Headers["X-A.b"]`: "headers.X-A.b", "Lookup.Rules[2].Outcome": "lookup.rules[2].outcome",
		"IdempotentWrite": "idempotent_write", "Forever": "forever", `Body.Fields["metadata[a.b]"]`: "body.fields.metadata[a.b]", "PassFailed": "ordering",
	} {
		if got := fileName(goName); got != want {
			t.Errorf("%s is %q, want %q", goName, got, want)
		}
	}
}
