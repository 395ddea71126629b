package httpvendor

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"text/template"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/samekey/samekey/dispatcher"
)

// Format is how a body is written.
type Format string

// The formats.
const (
	AsIs Format = ""     // the payload's bytes
	JSON Format = "json" // a JSON object
	Form Format = "form" // application/x-www-form-urlencoded, nested as in metadata[order] and items[0][price]
)

// Body is what a request sends. The zero Body is the payload's bytes, unchanged.
//
// A [JSON] or [Form] body is made once from an object: the result of Template, or the payload, followed by Fields. The
// members keep their order, and numbers keep their digits. In a form, null is an error, and so are two members with the
// same field; an empty array or object adds nothing.
type Body struct {
	Format Format

	// Template makes the object, in JSON: {"amount": {{.Payload.amount}}, "note": {{printf "order %s" .Payload.id}}}.
	// It is a text/template that writes each value as JSON, so put no quotes around it. The package comment says what
	// it can use. Default: the payload.
	Template string

	// Fields are added in this order: constants, or templates of text. A name that the object also has is an error.
	Fields []Field
}

// Field is a member of a body.
type Field struct{ Name, Value string }

type field struct {
	name  string
	value *template.Template
}

// body is a Body, ready to be filled.
type body struct {
	format   Format
	template *template.Template
	fields   []field
	keyField string // carries the delivery key; empty: none
}

func newBody(b Body, keyField string, m mistakes) body {
	m = m.in("Body")
	out := body{format: b.Format, keyField: keyField}
	switch {
	case !slices.Contains([]Format{AsIs, JSON, Form}, b.Format):
		m.add("Format", "%q is not one of json and form", b.Format)
	case b.Format == AsIs && (b.Template != "" || len(b.Fields) > 0):
		m.add("Format", "missing: a body with %s or %s is json or form", word("Template"), word("Fields"))
	}
	if keyField != "" && b.Format == AsIs {
		out.format = JSON
	}
	var err error
	if b.Template != "" {
		if out.template, err = parseTemplate(b.Template, asJSON); err != nil {
			m.add("Template", "%v", err)
		}
	}
	seen := map[string]bool{}
	for i, f := range b.Fields {
		at := m.in(fmt.Sprintf("Fields[%q]", f.Name))
		switch {
		case f.Name == "":
			m.at("Fields", i).add("", "has no name")
		case f.Name == keyField:
			at.add("", "carries the delivery key and cannot be set")
		case seen[f.Name]:
			at.add("", "set twice")
		}
		seen[f.Name] = true
		t, err := parseTemplate(f.Value, asText)
		if err != nil {
			at.add("", "%v", err)
		}
		out.fields = append(out.fields, field{f.Name, t})
	}
	return out
}

// make returns the body's bytes.
func (b body) make(data values, payload []byte) ([]byte, error) {
	object := payload
	if b.template != nil {
		text, err := execute(b.template, data)
		if err != nil {
			return nil, err
		}
		object = []byte(text)
	}
	object = bytes.TrimSpace(object)
	if err := strictJSON(object); err != nil || object[0] != '{' {
		return nil, errors.New("the source of the body is not a JSON object, has a member twice, or has invalid UTF-8")
	}
	for _, f := range b.fields {
		value, err := execute(f.value, data)
		if err != nil {
			return nil, err
		}
		object = add(object, f.name, value)
	}
	if b.keyField != "" {
		object = add(object, b.keyField, data.Key)
	}
	if err := strictJSON(object); err != nil {
		return nil, errors.New("an added field exists already: remove it from the payload or the template")
	}
	if b.format != Form {
		return object, nil
	}
	return form(object)
}

// add appends a member with a text to an object.
func add(object []byte, name, value string) []byte {
	object = bytes.TrimRight(bytes.Clone(object), " \t\r\n")
	object = bytes.TrimRight(object[:len(object)-1], " \t\r\n")
	if object[len(object)-1] != '{' {
		object = append(object, ',')
	}
	for i, text := range []string{name, value} {
		object, _ = jsontext.AppendQuote(object, text)
		object = append(object, ":}"[i])
	}
	return object
}

// form writes an object's members as the fields of a form, in their order. Two members with the same field, such as
// {"metadata": {"order": 1}, "metadata[order]": 2}, are an error: readers differ in which one they take.
func form(object []byte) ([]byte, error) {
	var out []byte
	seen := map[string]bool{}
	decoder := jsontext.NewDecoder(bytes.NewReader(object))
	var walk func(name string) error
	walk = func(name string) error {
		switch decoder.PeekKind() {
		case '{', '[':
			open, err := decoder.ReadToken()
			if err != nil {
				return err
			}
			isObject := open.Kind() == '{'
			for i := 0; decoder.PeekKind() != '}' && decoder.PeekKind() != ']'; i++ {
				member := strconv.Itoa(i)
				if isObject {
					token, err := decoder.ReadToken()
					if err != nil {
						return err
					}
					member = token.String()
				}
				if name != "" {
					member = name + "[" + member + "]"
				}
				if err := walk(member); err != nil {
					return err
				}
			}
			_, err = decoder.ReadToken()
			return err
		case 'n':
			return fmt.Errorf("a form cannot contain null: remove the member, or give it a text")
		}
		raw, err := decoder.ReadValue()
		if err != nil {
			return err
		}
		text := string(raw)
		if raw.Kind() == '"' {
			if err := json.Unmarshal(raw, &text); err != nil {
				return err
			}
		}
		if seen[name] {
			return errors.New("a form has a field twice: remove it from the payload, the template or the fields")
		}
		seen[name] = true
		if out != nil {
			out = append(out, '&')
		}
		out = append(append(append(out, url.QueryEscape(name)...), '='), url.QueryEscape(text)...)
		return nil
	}
	err := walk("")
	return out, err
}

// renderedType names the form of a rendered request: the request line without the protocol, the content type, a blank
// line, the body, as in HTTP/1.1. It contains only the action's part of the URL; the rest of the URL and the
// credentials are the destination's at the time of the attempt.
const renderedType = "samekey/http-request; v=1"

// sending is what a request sends besides its headers.
type sending struct {
	method      string
	path        string // with its query
	contentType string // empty: none
	body        []byte // nil: none
}

func (s sending) bytes() []byte {
	out := []byte(s.method + " " + s.path + "\r\n")
	if s.contentType != "" {
		out = append(out, "Content-Type: "+s.contentType+"\r\n"...)
	}
	return append(append(out, "\r\n"...), s.body...)
}

func parseSending(text []byte) (s sending, err error) {
	head, body, ok := bytes.Cut(text, []byte("\r\n\r\n"))
	line, header, _ := strings.Cut(string(head), "\r\n")
	s.method, s.path, _ = strings.Cut(line, " ")
	s.contentType = strings.TrimPrefix(header, "Content-Type: ")
	if !ok || !slices.Contains(methods, s.method) {
		return s, errors.New("has a form that this release does not know")
	}
	if s.path != "" {
		if _, err := parsePath(s.path); err != nil {
			return s, err
		}
	}
	if hasBody(s.method) {
		s.body = body
	}
	return s, nil
}

func hasBody(method string) bool { return method != "GET" && method != "HEAD" }

// render is the action's Render.
func (o *operation) render(call *dispatcher.Call) (dispatcher.Rendered, error) {
	s, err := o.fill(call)
	if err != nil {
		return dispatcher.Rendered{}, o.failed("%v", err)
	}
	return dispatcher.Rendered{Request: s.bytes(), Type: renderedType}, nil
}

// fill makes the request of an intent by the current action.
func (o *operation) fill(call *dispatcher.Call) (s sending, err error) {
	data := valuesOf(call)
	s.method = o.target.method
	if s.path, err = o.target.fill(data); err != nil {
		return s, fmt.Errorf("Request: %w", err)
	}
	if !hasBody(s.method) {
		return s, nil
	}
	s.contentType = call.ContentType
	if at := o.header["Content-Type"]; at != nil {
		s.contentType = at[0]
	}
	if o.body.format == AsIs {
		s.body = call.Payload
	} else {
		if s.body, err = o.body.make(data, call.Payload); err != nil {
			return s, fmt.Errorf("Body: %w", err)
		}
		if o.action.Body.Format != AsIs && o.header["Content-Type"] == nil || s.contentType == "" {
			s.contentType = map[Format]string{JSON: "application/json", Form: "application/x-www-form-urlencoded"}[o.body.format]
		}
	}
	if err := checkHeader("Content-Type", s.contentType); err != nil {
		return s, fmt.Errorf("the intent's content type: %w", err)
	}
	return s, nil
}

// renders reports whether the request must be made and stored before its first attempt.
func (o *operation) renders() bool { return o.target.tmpl != nil || o.body.format != AsIs }

// form describes what makes a request with the same key another call, and is neither rendered nor the payload.
func (o *operation) form() (key, request string) {
	key = o.client.keyHeader
	if o.client.dest.Vendor.Key.Quoted {
		key = strconv.Quote(key)
	}
	if !o.renders() {
		request = o.target.method + " " + o.target.text
	}
	return key, request
}

// sending returns what this attempt sends: what was rendered before the first attempt, if anything was. If it cannot be
// sent, the outcome is not nil.
func (o *operation) sending(call *dispatcher.Call) (s sending, failed *dispatcher.Outcome) {
	stuck := func(format string, args ...any) *dispatcher.Outcome {
		out := dispatcher.Stuck(dispatcher.Response{Code: "rendered"}).Because(o.failed(format, args...))
		return &out
	}
	var err error
	switch {
	case call.Rendered != nil && call.Rendered.Type != renderedType:
		return s, stuck("the request was rendered by something else, and may have been sent in that form")
	case call.Rendered != nil:
		if s, err = parseSending(call.Rendered.Request); err != nil {
			return s, stuck("the rendered request cannot be sent: it %v", err)
		}
		return s, nil
	case o.renders() && o.action.Policy.Class != dispatcher.Read:
		return s, stuck("the request may have been sent by a release that did not render it, so its bytes are not known")
	}
	if s, err = o.fill(call); err != nil {
		out := dispatcher.Dead(dispatcher.Response{Code: "request"}).Because(o.failed("%v", err))
		return s, &out
	}
	return s, nil
}
