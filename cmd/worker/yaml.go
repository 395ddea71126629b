package main

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
)

// reader walks the tree of a YAML file and keeps every mistake with its line. (A decoder into structs stops at its
// first error.)
type reader struct {
	file      string
	lookupEnv func(string) (string, bool)
	lines     map[string]int // of each path in the file
	mistakes  []mistake
	unread    []string // paths of values that could not be read
	files     *secretFiles
	read      bool // a text of a file was expanded
}

type mistake struct {
	line int
	text string
}

// entry is a value in the file: its path from the top, such as "actions.pay.timeout", its name, its line and its node.
type entry struct {
	path string
	name string
	line int
	node ast.Node
}

// fail notes that an entry could not be read.
func (r *reader) fail(e entry, format string, args ...any) {
	r.mistake(e.line, e.path, format, args...)
	r.unread = append(r.unread, e.path)
}

// mistake notes a mistake about a path.
func (r *reader) mistake(line int, path, format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if path != "" {
		text = path + ": " + text
	}
	r.mistakes = append(r.mistakes, mistake{line, text})
}

// failed reports whether a value at a path, a part of it, or what it is a part of could not be read. Another mistake
// about it would only follow from that one.
func (r *reader) failed(path string) bool {
	return slices.ContainsFunc(r.unread, func(unread string) bool { return within(path, unread) || within(unread, path) })
}

func within(path, whole string) bool {
	rest, ok := strings.CutPrefix(path, whole)
	return ok && (rest == "" || rest[0] == '.' || rest[0] == '[')
}

// err joins the mistakes in the order of their lines, each as "file:line: path: text".
func (r *reader) err() error {
	slices.SortStableFunc(r.mistakes, func(a, b mistake) int { return a.line - b.line })
	var errs []error
	for _, m := range r.mistakes {
		errs = append(errs, fmt.Errorf("%s:%d: %s", r.file, m.line, m.text))
	}
	return errors.Join(errs...)
}

// parse returns the file's one document, or nil.
func (r *reader) parse(data []byte) ast.Node {
	file, err := parser.ParseBytes(data, 0, parser.AllowDuplicateMapKey())
	if err != nil {
		var syntax *yaml.SyntaxError
		if errors.As(err, &syntax) {
			r.mistake(syntax.Token.Position.Line, "", "%s", syntaxMistake(syntax.Message))
		} else {
			r.mistake(1, "", "is not valid YAML")
		}
		return nil
	}
	var bodies []ast.Node
	for _, doc := range file.Docs {
		if doc.Body != nil {
			bodies = append(bodies, doc.Body)
		}
	}
	switch len(bodies) {
	case 0:
		r.mistake(1, "", "the file is empty: it needs destinations and actions")
		return nil
	case 1:
		return bodies[0]
	}
	r.mistake(bodies[1].GetToken().Position.Line, "", "a second document: the file must have one")
	return nil
}

// syntaxMistake returns what to say about a syntax error, given the parser's message.
func syntaxMistake(message string) string {
	if strings.Contains(message, "'\t'") {
		return "is not valid YAML: indent with spaces, not with tabs"
	}
	return "is not valid YAML: " + message
}

// entries are the members of a mapping, without repeated ones.
func (r *reader) entries(at entry) []entry {
	mapping, ok := at.node.(ast.MapNode)
	if !ok {
		if at.node == nil || at.node.Type() == ast.NullType {
			r.fail(at, "empty")
		} else {
			r.fail(at, "must be a mapping (name: value)")
		}
		return nil
	}
	var out []entry
	lines := map[string]int{}
	for it := mapping.MapRange(); it.Next(); {
		key := it.Key()
		line := key.GetToken().Position.Line
		if key.IsMergeKey() {
			r.mistake(line, at.path, "<< is not supported: repeat the fields")
			continue
		}
		name, ok := scalar(key)
		if !ok {
			r.mistake(line, at.path, "a name must be plain text")
			continue
		}
		if first, twice := lines[name]; twice {
			r.mistake(line, join(at.path, name), "defined twice, first in line %d", first)
			continue
		}
		lines[name] = line
		e := entry{path: join(at.path, name), name: name, line: line, node: it.Value()}
		r.lines[e.path] = line
		out = append(out, e)
	}
	return out
}

// fields calls a function for each member, and returns which there are. A name that has no function is a mistake.
func (r *reader) fields(at entry, known map[string]func(entry)) (has map[string]bool) {
	has = map[string]bool{}
	for _, e := range r.entries(at) {
		set := known[e.name]
		if set == nil {
			names := slices.Sorted(maps.Keys(known))
			if near := nearest(e.name, names); near != "" {
				r.fail(e, "unknown field: did you mean %q?", near)
				r.unread = append(r.unread, join(at.path, near)) // that it is missing follows
			} else {
				r.fail(e, "unknown field: use one of %s", strings.Join(names, ", "))
			}
			continue
		}
		has[e.name] = true
		set(e)
	}
	return has
}

// nearest returns the name that differs from the given one by a typing mistake, or "".
func nearest(name string, names []string) (near string) {
	least := 2 // edits; fewer in a short name, where two edits make another word
	if len(name) < 5 {
		least = 1
	}
	for _, known := range names {
		if n := edits(name, known); n <= least {
			near, least = known, n-1
		}
	}
	return near
}

// edits returns how many bytes must be inserted, removed or replaced to make b of a.
func edits(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			replaced := diagonal
			if a[i] != b[j] {
				replaced++
			}
			diagonal = row[j+1]
			row[j+1] = min(replaced, row[j]+1, diagonal+1)
		}
	}
	return row[len(b)]
}

func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}

// scalar is a node's text as it is written in the file, without its quotes.
func scalar(node ast.Node) (string, bool) {
	switch n := node.(type) {
	case *ast.StringNode:
		return n.Value, true
	case *ast.LiteralNode:
		return n.Value.Value, true
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode, *ast.InfinityNode, *ast.NanNode:
		return n.GetToken().Value, true
	}
	return "", false
}

// raw reads a text and expands nothing in it.
func (r *reader) raw(e entry) (string, bool) {
	text, ok := scalar(e.node)
	switch {
	case e.node == nil || e.node.Type() == ast.NullType || ok && text == "":
		r.fail(e, "empty: remove the field to get its default")
		return "", false
	case !ok:
		r.fail(e, "must be a single value")
	}
	return text, ok
}

// text reads a text and expands ${env:..} and ${file:..} in it. It also returns what they were expanded to. Mistakes
// quote the file, never the value.
func (r *reader) text(e entry) (value string, secrets []string, ok bool) {
	raw, ok := r.raw(e)
	if !ok {
		return "", nil, false
	}
	value, secrets, err := r.expand(raw)
	if err != nil {
		r.fail(e, "%v", err)
		return "", nil, false
	}
	return value, secrets, true
}

var reference = regexp.MustCompile(`\$(?:\$|\{(env|file):([^{}]+)\}|)`)

func (r *reader) expand(raw string) (value string, secrets []string, err error) {
	var errs []error
	value = reference.ReplaceAllStringFunc(raw, func(match string) string {
		part := reference.FindStringSubmatch(match)
		var got string
		var err error
		switch {
		case match == "$$":
			return "$"
		case part[1] == "env":
			got, err = r.env(part[2])
		case part[1] == "file":
			got, err = r.secretFile(part[2])
		default:
			err = errors.New("a $ must be ${env:NAME}, ${file:/path}, or $$ for a $")
		}
		if err != nil {
			errs = append(errs, err)
		} else {
			secrets = append(secrets, got)
		}
		return got
	})
	return value, secrets, errors.Join(errs...)
}

func (r *reader) env(name string) (string, error) {
	value, ok := r.lookupEnv(name)
	if !ok || value == "" {
		return "", fmt.Errorf("environment variable %s is not set or empty", name)
	}
	return value, nil
}

const maxSecretFile = 64 << 10

// secretFile reads a file. A relative path starts at the configuration's folder. One newline at the end is removed.
func (r *reader) secretFile(path string) (string, error) {
	if !filepath.IsAbs(path) {
		path = filepath.Join(filepath.Dir(r.file), path)
	}
	r.read = true
	return r.files.read(path)
}

func readSecret(path string) (string, error) {
	info, err := os.Stat(path)
	if err == nil && info.Size() > maxSecretFile {
		return "", fmt.Errorf("file %s has more than 64 KiB", path)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return "", err // names the path
	}
	value := strings.TrimSuffix(strings.TrimSuffix(string(data), "\n"), "\r")
	if value == "" {
		return "", fmt.Errorf("file %s is empty", path)
	}
	return value, nil
}

var days = regexp.MustCompile(`^[0-9]{1,5}d$`)

// duration reads a duration such as 20s, 1h30m or 7d. Zero and negative ones are mistakes. If they mean something, the
// caller checks for them first.
func (r *reader) duration(e entry) time.Duration {
	text, ok := r.raw(e)
	if !ok {
		return 0
	}
	d, err := time.ParseDuration(text)
	if days.MatchString(text) {
		n, _ := strconv.Atoi(strings.TrimSuffix(text, "d"))
		d, err = time.Duration(n)*24*time.Hour, nil
	}
	switch {
	case err != nil:
		r.fail(e, "%q is not a duration such as 500ms, 20s, 24h or 7d", text)
	case d <= 0:
		r.fail(e, "%s must be greater than 0", text)
	}
	return max(d, 0)
}

// number reads a whole number from low to high.
func (r *reader) number(e entry, low, high int) int {
	text, ok := r.raw(e)
	if !ok {
		return 0
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < low || n > high {
		r.fail(e, "%q is not a whole number from %d to %d", text, low, high)
		return 0
	}
	return n
}

// items reads a sequence of mappings.
func (r *reader) items(e entry) (out []entry) {
	sequence, ok := e.node.(*ast.SequenceNode)
	if !ok {
		r.fail(e, "must be a list (each item begins with - )")
		return nil
	}
	for i, value := range sequence.Values {
		line := value.GetToken().Position.Line
		if mapping, ok := value.(ast.MapNode); ok {
			if it := mapping.MapRange(); it.Next() {
				line = it.Key().GetToken().Position.Line
			}
		}
		item := entry{path: fmt.Sprintf("%s[%d]", e.path, i+1), line: line, node: value}
		r.lines[item.path] = line
		out = append(out, item)
	}
	return out
}

// list reads a sequence of single values, or a single value.
func (r *reader) list(e entry) []entry {
	sequence, ok := e.node.(*ast.SequenceNode)
	if !ok {
		return []entry{e}
	}
	var out []entry
	for i, value := range sequence.Values {
		item := entry{path: fmt.Sprintf("%s[%d]", e.path, i+1), name: e.name, line: value.GetToken().Position.Line, node: value}
		r.lines[item.path] = item.line
		out = append(out, item)
	}
	return out
}
