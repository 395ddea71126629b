// Package framed hashes lists of texts, so that no two different lists have the same hash by design: each text is
// hashed after its length. SQL functions of the schema compute the same hashes.
package framed

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
)

// Sum returns the SHA-256 digest of a label and texts.
func Sum(label string, texts ...string) [sha256.Size]byte {
	b := []byte(label)
	for _, text := range texts {
		b = binary.BigEndian.AppendUint32(b, uint32(len(text)))
		b = append(b, text...)
	}
	return sha256.Sum256(b)
}

// LogHash returns the 8 hex digits that logs and errors print instead of the texts. samekey.key_hash (of scope and
// value) and samekey.text_hash (of one text) are the same in SQL.
func LogHash(texts ...string) string {
	sum := Sum("samekey/log/v1", texts...)
	return hex.EncodeToString(sum[:4])
}
