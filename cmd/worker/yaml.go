package main

import (
	"errors"
	"fmt"
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

// reader walks a YAML file and keeps every mistake with its line. It goes by the file's own tree: a decoder into structs
// stops at its first error.
type reader struct {
	file      string
	lookupEnv func(string) (string, bool)
	mistakes  []mistake
}

type mistake struct {
	line int
	text string
}

func (r *reader) fail(line int, format string, args ...any) {
	r.mistakes = append(r.mistakes, mistake{line, fmt.Sprintf(format, args...)})
}

// failed says whether there is a mistake about a path already, of which another would only be the consequence.
func (r *reader) failed(path string) bool {
	return slices.ContainsFunc(r.mistakes, func(m mistake) bool {
		return strings.HasPrefix(m.text, path+":") || strings.HasPrefix(m.text, path+" ")
	})
}

// err joins the mistakes in the order of their lines, each as "file:line: text".
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
			r.fail(syntax.Token.Position.Line, "%s", syntax.Message)
		} else {
			r.fail(1, "not YAML")
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
		r.fail(1, "the file is empty: want destinations and actions")
		return nil
	case 1:
		return bodies[0]
	}
	r.fail(bodies[1].GetToken().Position.Line, "a second document: want one")
	return nil
}

// entry is a member of a mapping: what it is called from the top, where it stands, and its value.
type entry struct {
	path string
	name string
	line int
	node ast.Node
}

// entries are the members of a mapping, without those that are there twice.
func (r *reader) entries(at entry) []entry {
	mapping, ok := at.node.(ast.MapNode)
	if !ok {
		if at.node == nil || at.node.Type() == ast.NullType {
			r.fail(at.line, "%s is empty", at.path)
		} else {
			r.fail(at.line, "%s must be a mapping (name: value)", at.path)
		}
		return nil
	}
	var out []entry
	lines := map[string]int{}
	for it := mapping.MapRange(); it.Next(); {
		key := it.Key()
		line := key.GetToken().Position.Line
		if key.IsMergeKey() {
			r.fail(line, "<< is not supported: write it out")
			continue
		}
		name, ok := scalar(key)
		if !ok {
			r.fail(line, "%s: a name must be plain text", at.path)
			continue
		}
		if first, twice := lines[name]; twice {
			r.fail(line, "%s is there twice, first in line %d", join(at.path, name), first)
			continue
		}
		lines[name] = line
		out = append(out, entry{path: join(at.path, name), name: name, line: line, node: it.Value()})
	}
	return out
}

// fields calls a function for each member; a name that has none is a mistake.
func (r *reader) fields(at entry, known map[string]func(entry)) (lines map[string]int) {
	lines = map[string]int{}
	for _, e := range r.entries(at) {
		set := known[e.name]
		if set == nil {
			names := make([]string, 0, len(known))
			for name := range known {
				names = append(names, name)
			}
			slices.Sort(names)
			r.fail(e.line, "%s is not known: want one of %s", e.path, strings.Join(names, ", "))
			continue
		}
		lines[e.name] = e.line
		set(e)
	}
	return lines
}

func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}

// scalar is a node's text as it stands in the file, without its quotes.
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

// raw reads a text in which nothing is expanded.
func (r *reader) raw(e entry) (string, bool) {
	text, ok := scalar(e.node)
	switch {
	case e.node == nil || e.node.Type() == ast.NullType || ok && text == "":
		r.fail(e.line, "%s is empty: leave it out for its default", e.path)
		return "", false
	case !ok:
		r.fail(e.line, "%s must be a single value", e.path)
	}
	return text, ok
}

// text reads a text with its ${env:..} and ${file:..} expanded, and tells what they expanded to. Mistakes quote the file,
// never the value.
func (r *reader) text(e entry) (value string, secrets []string, ok bool) {
	raw, ok := r.raw(e)
	if !ok {
		return "", nil, false
	}
	value, secrets, err := r.expand(raw)
	if err != nil {
		r.fail(e.line, "%s: %v", e.path, err)
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
			err = errors.New("a $ must be ${env:NAME}, ${file:/path}, or $$ for itself")
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
		return "", fmt.Errorf("environment variable %s is not set, or empty", name)
	}
	return value, nil
}

const maxSecretFile = 64 << 10

// secretFile reads a file that a relative path names from the configuration's folder. One newline at its end is cut.
func (r *reader) secretFile(path string) (string, error) {
	if !filepath.IsAbs(path) {
		path = filepath.Join(filepath.Dir(r.file), path)
	}
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

// duration reads such as 20s, 1h30m or 7d. Zero and less are mistakes: where they mean something, the caller looks
// first.
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
		r.fail(e.line, "%s: %q is not a duration: want such as 500ms, 20s, 24h or 7d", e.path, text)
	case d <= 0:
		r.fail(e.line, "%s: %s is not more than 0", e.path, text)
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
		r.fail(e.line, "%s: %q is not a whole number from %d to %d", e.path, text, low, high)
		return 0
	}
	return n
}

// items reads a sequence of mappings.
func (r *reader) items(e entry) (out []entry) {
	sequence, ok := e.node.(*ast.SequenceNode)
	if !ok {
		r.fail(e.line, "%s must be a list (each of its items begins with - )", e.path)
		return nil
	}
	for i, value := range sequence.Values {
		line := value.GetToken().Position.Line
		if mapping, ok := value.(ast.MapNode); ok {
			if it := mapping.MapRange(); it.Next() {
				line = it.Key().GetToken().Position.Line
			}
		}
		out = append(out, entry{path: fmt.Sprintf("%s[%d]", e.path, i+1), line: line, node: value})
	}
	return out
}

// list reads a sequence of single values, or one that stands for itself.
func (r *reader) list(e entry) []entry {
	sequence, ok := e.node.(*ast.SequenceNode)
	if !ok {
		return []entry{e}
	}
	var out []entry
	for _, value := range sequence.Values {
		out = append(out, entry{path: e.path, name: e.name, line: value.GetToken().Position.Line, node: value})
	}
	return out
}
