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

// values are what a template finds under its dot.
type values struct {
	Key      string            // the delivery key as the vendor takes it
	ID       string            // the intent's
	Action   string            // the intent's
	Part     string            // the intent's
	Headers  map[string]string // the intent's
	Payload  any               // decoded from JSON, numbers with the digits that they have; nil where it is no JSON
	Rendered any               // of a look-up: the body that was rendered, decoded; of a form: its fields, each as text
	Answer   any               // of a look-up: what the vendor last answered to an attempt, decoded from JSON; nil where it is none
}

func valuesOf(call *dispatcher.Call) values {
	v := values{Key: call.CarriedKey, ID: call.ID.String(), Action: call.Action, Part: call.Part, Headers: call.Headers}
	if strictJSON(call.Payload) == nil {
		v.Payload, _ = decodeJSON(call.Payload)
	}
	return v
}

// strictJSON refuses what two readers may read differently: a member that is there twice, broken UTF-8.
func strictJSON(text []byte) error {
	if !jsontext.Value(text).IsValid() {
		return errors.New("is not JSON, or has a member twice, or broken UTF-8")
	}
	return nil
}

// The escapes that each value of a template goes through by itself, by where it stands.
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

// plain is a scalar's text. There is none for null, an object or an array.
func plain(value any) (string, error) {
	if text, ok := textOf(value); ok {
		return text, nil
	}
	if n, ok := value.(int); ok { // of len
		return fmt.Sprint(n), nil
	}
	return "", errors.New("a value is null, an object or an array, and has no text")
}

// parseTemplate reads a template each of whose values is escaped as the place wants it. In a target, what stands behind
// the first ? is the query.
func parseTemplate(text, escape string) (*template.Template, error) {
	t, err := template.New("").Option("missingkey=error").Funcs(functions).Parse(text)
	if err != nil {
		return nil, errors.New("is no template: " + strings.TrimPrefix(err.Error(), "template: :"))
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

// escaper puts the escape at the end of each pipeline that prints.
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
				e.bad = `has a value inside quotes: it is written as JSON with its own; join texts with {{printf "%s" ..}}`
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

// branches both begin where they stand. Where one of them has the ? that begins the query, what follows may be of the
// query, whose escape lets nothing break out of a path either.
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

// execute runs a template. Errors tell where and what is missing, never a value.
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

// withoutValues keeps of a template's error the place, the template's own text and the cause.
func withoutValues(err error) error {
	text := strings.TrimPrefix(err.Error(), "template: :")
	for _, known := range []string{"map has no entry for key", "nil pointer evaluating", "has no text", "longer than 2 MiB", "can't evaluate field"} {
		if strings.Contains(text, known) {
			if known == "nil pointer evaluating" {
				text += " (what it is a member of is no JSON, or has a member twice, or there is a null on the way)"
			}
			return errors.New(text)
		}
	}
	if at, _, ok := strings.Cut(text, ": executing"); ok {
		return fmt.Errorf("the template failed at %s", at)
	}
	return errors.New("the template failed")
}

// isTemplate reports whether a text has anything to fill in.
func isTemplate(text string) bool { return strings.Contains(text, "{{") }

// target is the path and query of a request, which may be a template.
type target struct {
	method string
	text   string
	tmpl   *template.Template // nil where nothing is to fill in
}

var methods = []string{"DELETE", "GET", "HEAD", "PATCH", "POST", "PUT"}

func parseTarget(text string) (target, error) {
	method, path, ok := strings.Cut(text, " ")
	t := target{method: method, text: path}
	switch {
	case text == "":
		return t, errors.New("is missing")
	case !ok && slices.Contains(methods, method):
		return t, nil // the URL as it stands
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

// plainPath reports whether each part of a path is one for whoever unescapes it, too, as many servers do before they look at
// its dots.
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
	if own, _, _ := strings.Cut(t.text, "?"); strings.HasSuffix(own, "/") { // which is meant, and no value's doing
		path = strings.TrimSuffix(path, "/")
	}
	if path != "" && !plainPath(path) {
		return "", errors.New(`a part of the path is empty, "." or ".."`)
	}
	if _, err := parsePath(text); err != nil {
		return "", errors.New("does not make a path")
	}
	return text, nil
}
