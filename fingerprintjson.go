package samekey

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
)

const (
	// maxDepth bounds the nesting. Requests stay below 20 levels; 100 leaves room and keeps the recursion's stack
	// small.
	maxDepth = 100
	// maxExponent bounds the exponent of a normalized number. IEEE 754's widest decimal format ends at 6,144, so no
	// number in practical use is refused.
	maxExponent = 10_000
)

// canonicalJSON returns the one form that all documents with the same meaning share. The form is JSON itself, so any
// language can produce it:
//
//   - no white space;
//   - an object's members in the order of their names' UTF-8 bytes, which is the order of code points. RFC 8785 orders
//     by UTF-16 units instead; that order differs above U+FFFF and would need a conversion here for no benefit;
//   - strings with the shortest escapes, as in RFC 8785, section 3.2.2.2;
//   - numbers as an optional "-", the digits of a whole number without leading or trailing zeros, "e", and an exponent
//     without "+" or leading zeros: 10.50 is 105e-1, 1 is 1e0. Every zero is 0.
func canonicalJSON(doc []byte) ([]byte, error) {
	if at := invalidUTF8(doc); at >= 0 {
		return nil, refuse(at, "invalid UTF-8", "send UTF-8, or fingerprint the bytes as they are")
	}
	c := canonicalizer{dec: jsontext.NewDecoder(bytes.NewBuffer(doc)), out: make([]byte, 0, len(doc)+16)}
	if err := c.value(0); err != nil {
		return nil, c.explain(err, doc)
	}
	end := c.dec.InputOffset()
	if _, err := c.dec.ReadToken(); !errors.Is(err, io.EOF) {
		return nil, refuse(end, "there is data after the document", "send one JSON document")
	}
	return c.out, nil
}

type canonicalizer struct {
	dec     *jsontext.Decoder
	out     []byte
	scratch []byte
}

// member is a member's name and the position of its text ("name":value) in out.
type member struct {
	name     string
	from, to int
}

func (c *canonicalizer) value(depth int) error {
	tok, err := c.dec.ReadToken()
	if err != nil {
		return err
	}
	switch tok.Kind() {
	case '{', '[':
		if depth == maxDepth {
			return refuse(c.dec.InputOffset()-1, fmt.Sprintf("more than %d levels of arrays and objects", maxDepth),
				"send a flatter document, or fingerprint the bytes as they are")
		}
		if tok.Kind() == '{' {
			return c.object(depth + 1)
		}
		return c.array(depth + 1)
	case '"':
		return c.str(tok)
	case '0':
		text, ok := tok.String(), false
		if c.out, ok = appendNumber(c.out, text); !ok {
			return refuse(c.dec.InputOffset()-int64(len(text)), fmt.Sprintf("a number with an exponent beyond %d", maxExponent),
				"send a smaller number, or send it as a string")
		}
		return nil
	}
	c.out = append(c.out, tok.String()...) // null, true, false
	return nil
}

func (c *canonicalizer) str(tok jsontext.Token) (err error) {
	c.out, err = jsontext.AppendQuote(c.out, tok.String())
	return err
}

func (c *canonicalizer) array(depth int) error {
	c.out = append(c.out, '[')
	for i := 0; c.dec.PeekKind() != ']'; i++ {
		if i > 0 {
			c.out = append(c.out, ',')
		}
		if err := c.value(depth); err != nil {
			return err
		}
	}
	c.out = append(c.out, ']')
	_, err := c.dec.ReadToken()
	return err
}

func (c *canonicalizer) object(depth int) error {
	c.out = append(c.out, '{')
	start := len(c.out)
	var members []member
	for c.dec.PeekKind() != '}' {
		tok, err := c.dec.ReadToken()
		if err != nil {
			return err
		}
		m := member{name: tok.String(), from: len(c.out)}
		if err := c.str(tok); err != nil {
			return err
		}
		c.out = append(c.out, ':')
		if err := c.value(depth); err != nil {
			return err
		}
		c.out = append(c.out, ',')
		m.to = len(c.out)
		members = append(members, m)
	}
	c.sort(start, members)
	c.out = append(bytes.TrimSuffix(c.out, []byte(",")), '}')
	_, err := c.dec.ReadToken()
	return err
}

// sort orders the members whose text begins at start. Members that are already in order, as most are, are not copied.
func (c *canonicalizer) sort(start int, members []member) {
	byName := func(a, b member) int { return cmp.Compare(a.name, b.name) }
	if slices.IsSortedFunc(members, byName) {
		return
	}
	slices.SortFunc(members, byName)
	c.scratch = c.scratch[:0]
	for _, m := range members {
		c.scratch = append(c.scratch, c.out[m.from:m.to]...)
	}
	copy(c.out[start:], c.scratch)
}

// appendNumber appends the canonical form of a valid JSON number. It reports false if the exponent is out of range. It
// works on the text alone: no digit is rounded, and no exponent is expanded.
func appendNumber(out []byte, text string) ([]byte, bool) {
	mantissa, exponentText := text, ""
	if at := strings.IndexAny(text, "eE"); at >= 0 {
		mantissa, exponentText = text[:at], text[at+1:]
	}
	mantissa, negative := strings.CutPrefix(mantissa, "-")
	whole, fraction, _ := strings.Cut(mantissa, ".")
	digits := strings.TrimLeft(whole+fraction, "0")
	if digits == "" {
		return append(out, '0'), true
	}
	exponent, ok := parseExponent(exponentText)
	if !ok {
		return out, false
	}
	significant := strings.TrimRight(digits, "0")
	exponent += int64(len(digits)-len(significant)) - int64(len(fraction))
	if exponent < -maxExponent || exponent > maxExponent {
		return out, false
	}
	if negative {
		out = append(out, '-')
	}
	out = append(append(out, significant...), 'e')
	return strconv.AppendInt(out, exponent, 10), true
}

// parseExponent reads the text of an exponent, which may be empty. It reports false if the exponent does not fit 64
// bits. Near those limits the sum with the number of digits may wrap around, but it stays out of range: no document is
// that long.
func parseExponent(text string) (int64, bool) {
	if text == "" {
		return 0, true
	}
	exponent, err := strconv.ParseInt(text, 10, 64)
	return exponent, err == nil
}

// invalidUTF8 returns the offset of the first byte that is not UTF-8, or -1.
func invalidUTF8(doc []byte) int64 {
	for at := 0; at < len(doc); {
		r, size := utf8.DecodeRune(doc[at:])
		if r == utf8.RuneError && size == 1 {
			return int64(at)
		}
		at += size
	}
	return -1
}

func refuse(offset int64, reason, do string) *FingerprintError {
	return &FingerprintError{Offset: offset, Reason: reason, Do: do}
}

// explain turns the decoder's error into a FingerprintError, which quotes nothing of the document.
func (c *canonicalizer) explain(err error, doc []byte) error {
	if ours, ok := errors.AsType[*FingerprintError](err); ok {
		return ours
	}
	offset := c.dec.InputOffset()
	if syntactic, ok := errors.AsType[*jsontext.SyntacticError](err); ok {
		offset = syntactic.ByteOffset
	}
	switch {
	case len(bytes.TrimSpace(doc)) == 0:
		return refuse(0, "the document is empty", "send a JSON document, or fingerprint the bytes as they are")
	case errors.Is(err, jsontext.ErrDuplicateName):
		return refuse(offset, "an object has a member name twice", "send each name once: parsers disagree on which one counts")
	case errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.EOF):
		return refuse(int64(len(doc)), "the document is incomplete", "send all of it")
	}
	if offset < int64(len(doc)) && startsSurrogate(doc[offset:]) {
		return refuse(offset, "a lone surrogate", "send whole characters, or fingerprint the bytes as they are")
	}
	return refuse(offset, "not valid JSON", "send a JSON document, or fingerprint the bytes as they are")
}

// startsSurrogate reports whether text begins with an escape in \ud800 to \udfff.
func startsSurrogate(text []byte) bool {
	if len(text) < 6 || string(text[:2]) != `\u` {
		return false
	}
	unit, err := strconv.ParseUint(string(text[2:6]), 16, 16)
	return err == nil && utf16.IsSurrogate(rune(unit))
}
