package httpkey_test

import (
	"encoding/json"
	"net/http"

	"github.com/samekey/samekey"
	"github.com/samekey/samekey/processed/httpkey"
)

func withoutSentAt(r *http.Request, body []byte) (samekey.Fingerprint, error) {
	var members map[string]json.RawMessage
	if err := json.Unmarshal(body, &members); err != nil {
		return samekey.Fingerprint{}, err
	}
	delete(members, "sent_at")
	body, err := json.Marshal(members)
	if err != nil {
		return samekey.Fingerprint{}, err
	}
	return httpkey.Fingerprint(r, body)
}
