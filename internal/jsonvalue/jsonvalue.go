// Package jsonvalue finds Go values of which encoding/json would lose something without saying so: their content, or
// bytes of their strings.
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

// Opaque reports whether v's content is not in its JSON: a reader, a function, a channel, or a struct with fields of
// which none is encoded. Each of the first and the last kind is {} whatever it holds, so that two of them would pass for
// one value. A type that says itself how it is encoded, as time.Time and big.Int do, is not opaque, and neither is
// struct{}.
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

// Bytes returns what v holds if it is bytes: a []byte, a json.RawMessage, another type of that kind that does not say
// itself how it is encoded, such as sql.RawBytes, or a pointer to one of them. encoding/json would write base64 for most.
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
	if of.Kind() != reflect.Slice || of.Type().Elem().Kind() != reflect.Uint8 {
		return nil, false
	}
	if t := of.Type(); t != reflect.TypeFor[json.RawMessage]() && (marshals(t) || marshals(reflect.PointerTo(t))) {
		return nil, false
	}
	return of.Bytes(), true
}

// Text reports whether v is a string, of whatever type, or points to one: as a document it may be meant as it is, or as a
// JSON string. json.Number is a number, and a type that says itself how it is encoded is what it says.
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

// anyEncoded reports whether encoding/json writes any field of the struct. Those of an embedded struct are written in
// its place, also where its own name is not exported.
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

// Replaced returns an error if U+FFFD in doc, the JSON of v, stands for bytes of v that are not UTF-8: encoding/json puts
// it in their place, which would make two different values one. Where doc has none, as nearly always, it costs a search.
func Replaced(v any, doc []byte) error {
	if !bytes.Contains(doc, []byte("\ufffd")) && !bytes.Contains(doc, []byte(`\ufffd`)) {
		return nil
	}
	return jsonv2.MarshalWrite(io.Discard, v, jsonv1.DefaultOptionsV1(), jsontext.AllowInvalidUTF8(false))
}
