package httpvendor

import (
	"slices"
	"strings"

	"github.com/samekey/samekey/dispatcher"
	"github.com/samekey/samekey/internal/redact"
)

// Outcomes of answers that name what the vendor did, or may have done. An answer to a lookup names it only if it found
// it: a list without the intent's own element may hold another's.
var (
	namedBySend   = []string{delivered, refused, kind(dispatcher.Accepted), kind(dispatcher.Unknown), kind(dispatcher.Stuck)}
	namedByLookup = []string{delivered, refused, kind(dispatcher.Accepted)}
)

// referring adds the reference that an answer has at the rule's pointer, or else at the default one.
func (r reply) referring(v finding, rule, fallback string, named []string, matched []string, secrets redact.Secrets) finding {
	pointer := rule
	if pointer == "" && slices.Contains(named, v.outcome.Kind()) {
		pointer = fallback
	}
	if pointer == "" {
		return v
	}
	if text, ok := textAt(r.json, pointer, matched); ok {
		v.reference = string(secrets.Strike([]byte(text), len(text)))
		v.outcome = v.outcome.Reference(v.reference)
	}
	return v
}

// textAt returns the text of the first scalar at the pointer. Each * stands for the element that the rule's field
// matched, as far as both pointers are the same up to there: the id is that of the element with the key, and not of
// another one in the list.
func textAt(body any, pointer string, matched []string) (text string, ok bool) {
	path := strings.Split(pointer[1:], "/")
	for i := 0; i < min(len(path), len(matched)); i++ {
		if path[i] == "*" {
			path[i] = matched[i]
		}
		if path[i] != matched[i] {
			break
		}
	}
	find(body, path, func(at any) bool {
		text, ok = textOf(at)
		ok = ok && text != ""
		return ok
	})
	return text, ok
}

func checkPointer(m mistakes, field, pointer, example string) {
	if pointer != "" && pointer[0] != '/' {
		m.add(field, "%q is not a JSON Pointer: it must begin with /, such as %s", pointer, example)
	}
}
