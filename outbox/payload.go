package outbox

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/samekey/samekey/internal/jsonvalue"
)

// encodeValue encodes a Go value as JSON, once: every attempt sends the stored bytes. Its errors name types only, since
// an encoder's error may quote the value.
func encodeValue(value any) ([]byte, error) {
	if err := checkType(value); err != nil {
		return nil, err
	}
	encoded, err := jsonvalue.Encode(value)
	switch {
	case err != nil:
		return nil, fmt.Errorf("Payload is a %T that cannot be encoded as JSON (%T)", value, err)
	case bytes.Equal(encoded, []byte("null")):
		return nil, fmt.Errorf("Payload is a %T that encodes to null: give a value", value)
	}
	if err := jsonvalue.Replaced(value, encoded); err != nil {
		return nil, errors.New("Payload has a string that is not valid UTF-8: JSON would replace its bytes")
	}
	return encoded, nil
}

// checkType returns an error if no value of this type can be a payload.
func checkType(value any) error {
	switch {
	case jsonvalue.Opaque(value):
		return fmt.Errorf("Payload is a %T, whose content JSON leaves out: give its bytes", value)
	case jsonvalue.Text(value):
		return fmt.Errorf("Payload is a %T, which JSON puts in quotation marks: give []byte(..) for the text itself, or a struct that contains the string", value)
	}
	return nil
}

// decodeJSON reads a payload without losing digits: numbers go straight from the text into T's fields.
func decodeJSON[T any](stored []byte) (payload T, err error) {
	if jsonvalue.SetBytes(&payload, stored) {
		return payload, nil
	}
	decoder := json.NewDecoder(bytes.NewReader(stored))
	if err := decoder.Decode(&payload); err != nil {
		return payload, fmt.Errorf("payload does not decode into %T: %w", payload, cleanJSONError(err))
	}
	if decoder.More() {
		return payload, fmt.Errorf("payload does not decode into %T: there is data after it", payload)
	}
	return payload, nil
}

// cleanJSONError leaves out what encoding/json quotes from the payload.
func cleanJSONError(err error) error {
	var syntax *json.SyntaxError
	var kind *json.UnmarshalTypeError
	switch {
	case errors.As(err, &syntax):
		return fmt.Errorf("not JSON at byte %d", syntax.Offset)
	case errors.As(err, &kind):
		return fmt.Errorf("member %q at byte %d does not fit %v", kind.Field, kind.Offset, kind.Type)
	}
	return errors.New("its decoder refused it")
}
