package httpvendor

import (
	"fmt"

	"github.com/samekey/samekey/dispatcher"
)

// mistakes collects what is wrong with an item, or with one of its fields.
type mistakes struct {
	all   *dispatcher.ConfigErrors
	item  string // empty: the action, whose name the dispatcher knows
	field string
}

func (m mistakes) add(field, format string, args ...any) {
	m.all.Add(m.item, m.path(field), format, args...)
}

// path is the path of a field within the item.
func (m mistakes) path(field string) string {
	if m.field == "" || field == "" {
		return m.field + field
	}
	return m.field + "." + field
}

// in is for the fields of a field.
func (m mistakes) in(field string) mistakes {
	m.field = m.path(field)
	return m
}

// at is for an element of a list.
func (m mistakes) at(field string, i int) mistakes { return m.in(fmt.Sprintf("%s[%d]", field, i+1)) }

// word is a Go name in a reason, which a configuration file calls something else.
type word = dispatcher.GoName
