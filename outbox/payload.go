package outbox

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"

	jsonv2 "github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	jsonv1 "github.com/go-json-experiment/json/v1"
)

// encodeValue encodes a Go value as JSON, once: what is stored is what every
// attempt sends.
func encodeValue(value any) ([]byte, error) {
	encoded, err := encodeJSON(value)
	switch {
	case err != nil:
		return nil, fmt.Errorf("Payload cannot be encoded: %w", err)
	case bytes.Equal(encoded, []byte("null")):
		return nil, fmt.Errorf("Payload is a %T that encodes to null: give a value", value)
	}
	if err := checkReplaced(value, encoded); err != nil {
		return nil, fmt.Errorf("Payload has a string that is not valid UTF-8, and would not arrive as it is: %w", err)
	}
	return encoded, nil
}

// checkReplaced returns an error if U+FFFD in encoded stands for bytes of value
// that are not UTF-8, as encoding/json puts it there. Where there is none, as
// nearly always, it costs a search.
func checkReplaced(value any, encoded []byte) error {
	if !bytes.Contains(encoded, []byte("\ufffd")) && !bytes.Contains(encoded, []byte(`\ufffd`)) {
		return nil
	}
	return jsonv2.MarshalWrite(io.Discard, value, jsonv1.DefaultOptionsV1(), jsontext.AllowInvalidUTF8(false))
}

// encodeJSON is json.Marshal without HTML escaping: "&" stays "&".
func encodeJSON(value any) ([]byte, error) {
	var b bytes.Buffer
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(value); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}
