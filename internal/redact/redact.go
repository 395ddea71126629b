// Package redact removes secrets from texts that are stored or shown: what a vendor answered, and errors.
package redact

import (
	"bytes"
	"encoding/json"
	"net/url"
	"slices"
	"strings"
)

// Mark stands where a secret was.
const Mark = "[redacted]"

// Secrets are texts that must not be stored. The zero value holds none.
type Secrets struct {
	// Shortest is the length in bytes from which a text counts as a secret. What is shorter is part of many words.
	Shortest int

	texts   [][]byte
	longest int
}

// Longest is the length of the longest secret, in bytes.
func (s Secrets) Longest() int { return s.longest }

// With returns s and more secrets, also in the forms in which URLs and JSON escape them.
func (s Secrets) With(more ...string) Secrets {
	s.texts = slices.Clone(s.texts)
	has := map[string]bool{}
	for _, text := range s.texts {
		has[string(text)] = true
	}
	add := func(text string) {
		if len(text) >= max(s.Shortest, 1) && !has[text] {
			has[text] = true
			s.texts = append(s.texts, []byte(text))
			s.longest = max(s.longest, len(text))
		}
	}
	for _, text := range more {
		add(text)
		if !strings.ContainsFunc(text, escaped) {
			continue
		}
		add(url.QueryEscape(text))
		add(url.PathEscape(text))
		if quoted, err := json.Marshal(text); err == nil {
			add(string(quoted[1 : len(quoted)-1]))
			add(strings.ReplaceAll(text, "/", `\/`))
		}
	}
	return s
}

// And returns the secrets of both.
func (s Secrets) And(more Secrets) Secrets {
	s.texts = slices.Clone(s.texts)
	for _, text := range more.texts {
		if !slices.ContainsFunc(s.texts, func(has []byte) bool { return bytes.Equal(has, text) }) {
			s.texts = append(s.texts, text)
			s.longest = max(s.longest, len(text))
		}
	}
	return s
}

// escaped reports whether URLs or JSON may escape the character.
func escaped(r rune) bool {
	return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("-_.", r))
}

// Text returns a whole text with [Mark] in place of each run of bytes that belong to secrets.
func (s Secrets) Text(text string) string {
	return string(cut([]byte(text), s.find([]byte(text)), len(text)))
}

// Strike returns the first limit bytes of body, or fewer, with [Mark] in place of each run of bytes that belong to
// secrets. It finds a secret that the limit cuts in two if body continues for the length of the secret, and one that
// the end of body cuts in two if Shortest bytes of it are there.
func (s Secrets) Strike(body []byte, limit int) []byte {
	end := min(len(body), limit)
	out := cut(body, slices.Concat(s.find(body), s.brokenOff(body)), end)
	return out[:min(len(out), limit)]
}

type run struct{ from, to int }

// cut returns body up to end, with [Mark] in place of the runs. Runs that overlap get one.
func cut(body []byte, runs []run, end int) (out []byte) {
	slices.SortFunc(runs, func(a, b run) int { return a.from - b.from })
	at := 0
	for _, run := range runs {
		if run.from >= end {
			break
		}
		if run.from >= at {
			out = append(append(out, body[at:run.from]...), Mark...)
		}
		at = max(at, run.to)
	}
	return append(out, body[min(at, end):end]...)
}

// find returns where secrets are. They may overlap.
func (s Secrets) find(body []byte) (runs []run) {
	for _, text := range s.texts {
		for at := 0; ; at++ {
			i := bytes.Index(body[at:], text)
			if i < 0 {
				break
			}
			at += i
			runs = append(runs, run{at, at + len(text)})
		}
	}
	return runs
}

// brokenOff returns where a body ends with the beginning of a secret.
func (s Secrets) brokenOff(body []byte) (runs []run) {
	for _, text := range s.texts {
		for n := len(text) - 1; n >= max(s.Shortest, 1); n-- {
			if bytes.HasSuffix(body, text[:n]) {
				runs = append(runs, run{len(body) - n, len(body)})
				break
			}
		}
	}
	return runs
}
