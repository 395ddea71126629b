package dispatcher

import (
	"strings"
	"unicode/utf8"
)

// clean makes any text fit for a text column: Postgres refuses NUL and broken UTF-8 (one such byte in an error's text
// would otherwise cost the whole batch that it is settled in), and the columns have limits. It cuts between runes.
func clean(text string, limit int) string {
	text = strings.ToValidUTF8(strings.ReplaceAll(text, "\x00", "\uFFFD"), "\uFFFD")
	if len(text) <= limit {
		return text
	}
	for limit > 0 && !utf8.RuneStart(text[limit]) {
		limit--
	}
	return text[:limit]
}

const (
	codeLimit  = 128
	errorLimit = 4096
	typeLimit  = 255

	referenceLimit = 255
)
