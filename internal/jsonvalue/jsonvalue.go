// Package jsonvalue finds Go values of which encoding/json would silently lose something: their content, or bytes of
// their strings.
package jsonvalue

import (
	"bytes"
	"encoding"
	"encoding/json"
	"io"
	"reflect"
	"strings"

	jsonv2 "github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	jsonv1 "github.com/go-json-experiment/json/v1"
)

// Opaque reports whether the JSON of v lacks its content: a reader, a function, a channel, or a struct of which no
// field is encoded. encoding/json writes {} for every reader and every such struct, so two of them would look equal. A
// type that encodes itself, such as time.Time and big.Int, is not opaque. Neither is struct{}.
func Opaque(v any) bool {
	switch v.(type) {
	case json.Marshaler, encoding.TextMarshaler:
		return false
	case io.Reader:
		return true
	}
	t := reflect.TypeOf(v)
	for t != nil && t.Kind() == reflect.Pointer {
		if t = t.Elem(); marshals(t) {
			return false
		}
	}
	if t == nil {
		return false
	}
	switch t.Kind() {
	case reflect.Func, reflect.Chan:
		return true
	case reflect.Struct:
		return t.NumField() > 0 && !anyEncoded(t)
	}
	return false
}

// Bytes returns the bytes in v: of a []byte, a json.RawMessage, another byte slice that does not encode itself, such as
// sql.RawBytes, or a pointer to one of them. encoding/json would write base64 for most of them.
func Bytes(v any) (b []byte, ok bool) {
	switch b := v.(type) {
	case []byte:
		return b, true
	case json.RawMessage:
		return b, true
	}
	of := reflect.ValueOf(v)
	for of.Kind() == reflect.Pointer && !of.IsNil() {
		of = of.Elem()
	}
	if !of.IsValid() || !isBytes(of.Type()) {
		return nil, false
	}
	return of.Bytes(), true
}

// SetBytes is the reverse of Bytes: v points to a value, which gets b if it is of a type that Bytes takes. Otherwise ok
// is false.
func SetBytes(v any, b []byte) (ok bool) {
	of := reflect.ValueOf(v).Elem()
	t := of.Type()
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if !isBytes(t) {
		return false
	}
	for of.Kind() == reflect.Pointer {
		of.Set(reflect.New(of.Type().Elem()))
		of = of.Elem()
	}
	of.SetBytes(b)
	return true
}

// isBytes reports whether values of a type are bytes that do not encode themselves.
func isBytes(t reflect.Type) bool {
	return t.Kind() == reflect.Slice && t.Elem().Kind() == reflect.Uint8 &&
		(t == reflect.TypeFor[json.RawMessage]() || !marshals(t) && !marshals(reflect.PointerTo(t)))
}

// Text reports whether v is a string of any type, or points to one. As a document it is ambiguous: it may be meant as
// it is, or as a JSON string. json.Number is a number, and a type that encodes itself is not text.
func Text(v any) bool {
	t := reflect.TypeOf(v)
	for t != nil && t.Kind() == reflect.Pointer && !marshals(t) {
		t = t.Elem()
	}
	return t != nil && t.Kind() == reflect.String && t != reflect.TypeFor[json.Number]() && !marshals(t) && !marshals(reflect.PointerTo(t))
}

func marshals(t reflect.Type) bool {
	return t.Implements(reflect.TypeFor[json.Marshaler]()) || t.Implements(reflect.TypeFor[encoding.TextMarshaler]())
}

// anyEncoded reports whether encoding/json writes any field of the struct. The fields of an embedded struct are written
// in its place, even if its own name is not exported.
func anyEncoded(t reflect.Type) bool {
	for _, field := range reflect.VisibleFields(t) {
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		flattened := field.Anonymous && name == "" && indirect(field.Type).Kind() == reflect.Struct && !marshals(field.Type)
		if field.IsExported() && field.Tag.Get("json") != "-" && !flattened {
			return true
		}
	}
	return false
}

func indirect(t reflect.Type) reflect.Type {
	if t.Kind() == reflect.Pointer {
		return t.Elem()
	}
	return t
}

// Replaced returns an error if U+FFFD in doc, the JSON of v, replaces bytes of v that are not UTF-8. encoding/json does
// that silently, and two different values become one. If doc has no U+FFFD, as almost always, the cost is one search.
func Replaced(v any, doc []byte) error {
	if !bytes.Contains(doc, []byte("\ufffd")) && !bytes.Contains(doc, []byte(`\ufffd`)) {
		return nil
	}
	return jsonv2.MarshalWrite(io.Discard, v, jsonv1.DefaultOptionsV1(), jsontext.AllowInvalidUTF8(false))
}

// Encode is json.Marshal without HTML escaping: "&" stays "&".
func Encode(v any) ([]byte, error) {
	var b bytes.Buffer
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}
