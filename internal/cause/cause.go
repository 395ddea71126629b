// Package cause makes one short text of the many messages that have the same cause, so that intents can be grouped by
// it.
package cause

import (
	"encoding/json"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Limit is the longest shape in bytes.
const Limit = 120

// Shape returns a message without its values: numbers, ids, hexadecimal digits, addresses and paths become "#", and
// quoted text becomes "*". It is at most Limit bytes of valid UTF-8 without control characters. Values that are plain
// words stay, so a caller removes what it knows to be personal first.
func Shape(message string) string {
	text := strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || unicode.IsSpace(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(message, " "))
	text = quoted.ReplaceAllString(text, "${1}*")
	text = token.ReplaceAllStringFunc(text, func(word string) string {
		end := len(strings.TrimRight(word, ".:-+/&?"))
		if isValue(word[:end]) {
			return "#" + word[end:]
		}
		return word
	})
	text = repeated.ReplaceAllString(text, "#")
	return cut(strings.Join(strings.Fields(text), " "), Limit)
}

var (
	// A quote opens at the beginning of a word, so that the apostrophe of "don't" opens nothing.
	quoted = regexp.MustCompile("(^|[^\\pL\\pN])(?:\"[^\"]*\"|'[^']*'|`[^`]*`|“[^”]*”|«[^»]*»)")
	token  = regexp.MustCompile(`[\pL\pN_@.:/%+&?~#*-]+`)
	// Several values in a row are one, so that lists of different lengths have one shape.
	repeated = regexp.MustCompile(`#(?:[,; ]+#)+`)
	hex      = regexp.MustCompile(`^[0-9a-fA-F]{8,}$`)
)

const longestWord = 32

func isValue(word string) bool {
	return strings.ContainsFunc(word, unicode.IsNumber) || strings.Contains(word, "@") || strings.Contains(word, "://") ||
		strings.HasPrefix(word, "/") || len(word) > longestWord || hex.MatchString(word)
}

// cut cuts between runes.
func cut(text string, limit int) string {
	if len(text) <= limit {
		return text
	}
	for !utf8.RuneStart(text[limit]) {
		limit--
	}
	return strings.TrimRight(text[:limit], " ")
}

// Message returns the message of an answer in JSON, from the members that vendors use for it, or "".
func Message(body []byte) string {
	var answer map[string]json.RawMessage
	if json.Unmarshal(body, &answer) != nil {
		return ""
	}
	return message(answer, 0)
}

func message(answer map[string]json.RawMessage, depth int) string {
	for _, name := range []string{"message", "detail", "error_description", "title", "error"} {
		var text string
		if json.Unmarshal(answer[name], &text) == nil && text != "" {
			return text
		}
	}
	var inner map[string]json.RawMessage
	if depth == 0 && json.Unmarshal(answer["error"], &inner) == nil {
		return message(inner, 1)
	}
	return ""
}
