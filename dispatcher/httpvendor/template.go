package httpvendor

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"text/template"
	"text/template/parse"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/samekey/samekey/dispatcher"
)

// values are the fields that a template can use.
type values struct {
	Key      string            // the delivery key as the vendor takes it
	ID       string            // the intent's
	Action   string            // the intent's
	Part     string            // the intent's
	Subject  string            // the intent's; may be empty
	Headers  map[string]string // the intent's
	Payload  any               // decoded from JSON, numbers with all their digits; nil if it is not JSON
	Rendered any               // in a lookup: the rendered body, decoded; of a form its fields, each as text
	Response any               // in a lookup: the vendor's last response to an attempt, decoded from JSON; nil if it is not JSON

	Reference string // in a lookup: the vendor's id in its last answer that had one; may be empty
}

func valuesOf(call *dispatcher.Call) values {
	v := values{Key: call.CarriedKey, ID: call.ID.String(), Action: call.Action, Part: call.Part, Subject: call.Subject, Headers: call.Headers}
	if strictJSON(call.Payload) == nil {
		v.Payload, _ = decodeJSON(call.Payload)
	}
	return v
}

// strictJSON refuses what two readers may read differently: a member twice, or invalid UTF-8.
func strictJSON(text []byte) error {
	if !jsontext.Value(text).IsValid() {
		return errors.New("is not JSON, has a member twice, or has invalid UTF-8")
	}
	return nil
}

// The escapes for the values of a template, by their place.
const (
	asPath  = "path"
	asQuery = "query"
	asJSON  = "json"
	asText  = "text"
)

var functions = template.FuncMap{
	asPath: func(value any) (string, error) {
		text, err := plain(value)
		return url.PathEscape(text), err
	},
	asQuery: func(value any) (string, error) {
		text, err := plain(value)
		return url.QueryEscape(text), err
	},
	asJSON: func(value any) (string, error) {
		var buf bytes.Buffer
		encoder := json.NewEncoder(&buf)
		encoder.SetEscapeHTML(false)
		err := encoder.Encode(value)
		return strings.TrimSuffix(buf.String(), "\n"), err
	},
	asText: plain,
}

// plain is a scalar's text. Null, objects and arrays have no text.
func plain(value any) (string, error) {
	if text, ok := textOf(value); ok {
		return text, nil
	}
	if n, ok := value.(int); ok { // of len
		return fmt.Sprint(n), nil
	}
	return "", errors.New("a value is null, an object or an array, and has no text")
}

// parseTemplate parses a template and escapes each of its values for its place. In a target, the query begins after the
// first question mark.
func parseTemplate(text, escape string) (*template.Template, error) {
	t, err := template.New("").Option("missingkey=error").Funcs(functions).Parse(text)
	if err != nil {
		return nil, errors.New("is not a template: " + strings.TrimPrefix(err.Error(), "template: :"))
	}
	if len(t.Templates()) > 1 || t.Tree == nil && text != "" {
		return nil, errors.New("must not define templates")
	}
	if t.Tree != nil {
		e := &escaper{tree: t.Tree, escape: escape}
		e.list(t.Root)
		if e.bad != "" {
			return nil, errors.New(e.bad)
		}
	}
	return t, nil
}

// escaper adds the escape to the end of each pipeline that prints.
type escaper struct {
	tree   *parse.Tree
	escape string
	quoted bool   // inside a string of JSON, as far as the text says
	bad    string // what is wrong
}

func (e *escaper) list(list *parse.ListNode) {
	if list == nil {
		return
	}
	for _, node := range list.Nodes {
		switch n := node.(type) {
		case *parse.TextNode:
			e.text(n.Text)
		case *parse.ActionNode:
			if len(n.Pipe.Decl) > 0 {
				continue
			}
			if e.quoted {
				e.bad = `has a value inside quotes: a value is written as JSON with its own quotes; join texts with {{printf "%s" ..}}`
			}
			e.pipe(n.Pipe)
		case *parse.IfNode:
			e.branches(n.List, n.ElseList)
		case *parse.RangeNode:
			e.branches(n.List, n.ElseList)
		case *parse.WithNode:
			e.branches(n.List, n.ElseList)
		case *parse.TemplateNode:
			e.bad = "must not call templates"
		}
	}
}

// branches starts both branches in the same state. If one of them has the question mark that begins the query, what
// follows may be part of the query. The query's escape is also safe in a path.
func (e *escaper) branches(list, otherwise *parse.ListNode) {
	quoted, escape := e.quoted, e.escape
	e.list(otherwise)
	after := e.escape
	e.quoted, e.escape = quoted, escape
	e.list(list)
	if after == asQuery {
		e.escape = after
	}
}

func (e *escaper) text(text []byte) {
	switch e.escape {
	case asPath:
		if bytes.ContainsRune(text, '?') {
			e.escape = asQuery
		}
	case asJSON:
		for i := 0; i < len(text); i++ {
			switch {
			case text[i] == '"':
				e.quoted = !e.quoted
			case text[i] == '\\' && e.quoted:
				i++
			}
		}
	}
}

func (e *escaper) pipe(p *parse.PipeNode) {
	last := p.Cmds[len(p.Cmds)-1]
	if name, ok := last.Args[0].(*parse.IdentifierNode); ok && name.Ident == e.escape {
		return
	}
	ident := parse.NewIdentifier(e.escape).SetTree(e.tree).SetPos(p.Pos)
	p.Cmds = append(p.Cmds, &parse.CommandNode{NodeType: parse.NodeCommand, Pos: p.Pos, Args: []parse.Node{ident}})
}

const maxRendered = 2 << 20 // the dispatcher's limit

// execute runs a template. Errors contain the place and the missing name, and never a value.
func execute(t *template.Template, data values) (string, error) {
	var buf bytes.Buffer
	out := writer(func(p []byte) (int, error) {
		if buf.Len()+len(p) > maxRendered {
			return 0, errors.New("is longer than 2 MiB")
		}
		return buf.Write(p)
	})
	if err := t.Execute(out, data); err != nil {
		return "", withoutValues(err)
	}
	return buf.String(), nil
}

type writer func(p []byte) (int, error)

func (w writer) Write(p []byte) (int, error) { return w(p) }

// withoutValues keeps the place, the template's own text and the cause of a template's error.
func withoutValues(err error) error {
	text := strings.TrimPrefix(err.Error(), "template: :")
	for _, known := range []string{"map has no entry for key", "nil pointer evaluating", "has no text", "longer than 2 MiB", "can't evaluate field"} {
		if strings.Contains(text, known) {
			if known == "nil pointer evaluating" {
				text += " (its parent is null or missing, or the source is not JSON or has a member twice)"
			}
			return errors.New(text)
		}
	}
	if at, _, ok := strings.Cut(text, ": executing"); ok {
		return fmt.Errorf("the template failed at %s", at)
	}
	return errors.New("the template failed")
}

// isTemplate reports whether a text has something to fill in.
func isTemplate(text string) bool { return strings.Contains(text, "{{") }

// target is the path and query of a request, which may be a template.
type target struct {
	method string
	text   string
	tmpl   *template.Template // nil if there is nothing to fill in
}

var methods = []string{"DELETE", "GET", "HEAD", "PATCH", "POST", "PUT"}

func parseTarget(text string) (target, error) {
	method, path, ok := strings.Cut(text, " ")
	t := target{method: method, text: path}
	switch {
	case text == "":
		return t, errors.New("is missing")
	case !ok && slices.Contains(methods, method):
		return t, nil // the URL without a path
	case !ok || !strings.HasPrefix(path, "/"):
		return t, errors.New(`must be a method and a path, such as "POST /v1/charges"`)
	case !slices.Contains(methods, method):
		return t, errors.New("must begin with one of DELETE, GET, HEAD, PATCH, POST, PUT")
	}
	if isTemplate(path) {
		var err error
		t.tmpl, err = parseTemplate(path, asPath)
		return t, err
	}
	_, err := parsePath(path)
	return t, err
}

// parsePath reads a path with its query.
func parsePath(path string) (*url.URL, error) {
	ref, err := url.Parse(path)
	if err != nil || !strings.HasPrefix(path, "/") || strings.HasPrefix(path, "//") || strings.ContainsAny(path, " #") {
		return nil, errors.New(`must be a method and a path, such as "POST /v1/charges"`)
	}
	return ref, nil
}

// plainPath reports whether each part of a path stays one part after it is unescaped, which many servers do before they
// resolve dots.
func plainPath(path string) bool {
	plain, err := url.PathUnescape(path)
	if err != nil {
		return false
	}
	for part := range strings.SplitSeq(strings.TrimPrefix(plain, "/"), "/") {
		between := strings.Split(part, `\`)
		if part == "" || slices.Contains(between, ".") || slices.Contains(between, "..") {
			return false
		}
	}
	return true
}

// fill returns the path with its query.
func (t target) fill(data values) (string, error) {
	if t.tmpl == nil {
		return t.text, nil
	}
	text, err := execute(t.tmpl, data)
	if err != nil {
		return "", err
	}
	path, _, _ := strings.Cut(text, "?")
	if own, _, _ := strings.Cut(t.text, "?"); strings.HasSuffix(own, "/") { // intended, and not caused by a value
		path = strings.TrimSuffix(path, "/")
	}
	if path != "" && !plainPath(path) {
		return "", errors.New(`a part of the path is empty, "." or ".."`)
	}
	if _, err := parsePath(text); err != nil {
		return "", errors.New("does not result in a valid path")
	}
	return text, nil
}
