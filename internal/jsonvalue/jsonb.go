package jsonvalue

import (
	"bytes"
	"errors"
	"io"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
)

// The limits of FitsJSONB are far below those of Postgres: 131,072 digits before the point, 16,383 after it, and a stack
// for some thousand levels.
const (
	jsonbDepth  = 1000
	jsonbDigits = 1000
)

// FitsJSONB reports whether doc is one JSON document that Postgres takes as jsonb, whatever its version: in valid UTF-8,
// without U+0000 and lone surrogates, and with numbers and levels of a normal size. (jsonb keeps the last of members
// with one name.)
func FitsJSONB(doc []byte) bool {
	decoder := jsontext.NewDecoder(bytes.NewBuffer(doc), jsontext.AllowDuplicateNames(true))
	for {
		token, err := decoder.ReadToken()
		switch {
		case errors.Is(err, io.EOF):
			return false // an empty document
		case err != nil || decoder.StackDepth() > jsonbDepth:
			return false
		case token.Kind() == '"' && strings.Contains(token.String(), "\x00"):
			return false
		case token.Kind() == '0' && !fitsNumeric(token.String()):
			return false
		}
		if decoder.StackDepth() == 0 {
			_, err := decoder.ReadToken()
			return errors.Is(err, io.EOF)
		}
	}
}

// fitsNumeric reports whether a JSON number has a normal size.
func fitsNumeric(number string) bool {
	digits, exponent, ok := strings.Cut(strings.ToLower(number), "e")
	if len(digits) > jsonbDigits {
		return false
	}
	n, err := strconv.Atoi(exponent)
	return !ok || err == nil && -jsonbDigits <= n && n <= jsonbDigits
}
