package outbox

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/samekey/samekey/internal/jsonvalue"
)

// encodeValue encodes a Go value as JSON, once: what is stored is what every
// attempt sends. Its errors name types only: an encoder's may quote the value.
func encodeValue(value any) ([]byte, error) {
	if err := checkType(value); err != nil {
		return nil, err
	}
	encoded, err := encodeJSON(value)
	switch {
	case err != nil:
		return nil, fmt.Errorf("Payload is a %T that cannot be encoded as JSON (%T)", value, err)
	case bytes.Equal(encoded, []byte("null")):
		return nil, fmt.Errorf("Payload is a %T that encodes to null: give a value", value)
	}
	if err := jsonvalue.Replaced(value, encoded); err != nil {
		return nil, errors.New("Payload has a string that is not valid UTF-8, and would not arrive as it is")
	}
	return encoded, nil
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

// checkType returns an error if no value of this type can be a payload.
func checkType(value any) error {
	switch {
	case jsonvalue.Opaque(value):
		return fmt.Errorf("Payload is a %T: read it and give its bytes", value)
	case jsonvalue.Text(value):
		return fmt.Errorf("Payload is a %T, which JSON would put in quotation marks: give []byte(..) for the text itself, or a struct with the string in it", value)
	}
	return nil
}
