package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"github.com/samekey/samekey/schema"
)

// A tool is a migration tool that people have already: how it names its files,
// and what stands around the statements in each.
type tool struct {
	suffix       string
	digits       int
	before, more string
}

// Each file is one statement to the tool: a tool that splits statements itself
// would cut the functions in dollar quotes. Each runs in a transaction of its
// own, which is what the enum of River's needs, and none needs to run outside
// of one.
var tools = map[string]tool{
	"goose": {suffix: ".sql", digits: 5,
		before: "-- +goose Up\n-- +goose StatementBegin\n", more: "-- +goose StatementEnd\n"},
	"golang-migrate": {suffix: ".up.sql", digits: 6},
}

var numbered = regexp.MustCompile(`^(\d+)_(.+)$`)

// migrationFiles writes a file for each migration that dir has none of yet,
// numbered behind those that are there, and returns their names. What is there
// is left alone: after an upgrade only the new ones are written.
func migrationFiles(dir string, t tool, roles schema.Roles) (names []string, err error) {
	steps, err := schema.All()
	if err != nil {
		return nil, err
	}
	if roles != (schema.Roles{}) {
		// Rights are granted again after each migration, so its name is that of the last.
		last := map[string]string{}
		for _, step := range steps {
			last[step.Line] = fmt.Sprintf("%s_%04d", step.Line, step.Version)
		}
		steps = append(steps, schema.Migration{Name: "grants_of_" + last["samekey"] + "_" + last["river"], SQL: schema.Grants(roles.App, roles.Worker)})
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	there, next, digits := map[string]bool{}, uint64(1), t.digits
	for _, entry := range entries {
		parts := numbered.FindStringSubmatch(entry.Name())
		if parts == nil {
			continue
		}
		number, err := strconv.ParseUint(parts[1], 10, 63)
		if err != nil {
			return nil, fmt.Errorf("%s: its number is too large to go on behind it", entry.Name())
		}
		there[strings.TrimSuffix(parts[2], t.suffix)] = true
		if number >= next {
			next, digits = number+1, max(len(parts[1]), t.digits)
		}
	}
	for _, step := range steps {
		if there[step.Name] {
			continue
		}
		name := fmt.Sprintf("%0*d_%s%s", digits, next, step.Name, t.suffix)
		text := t.before + strings.TrimSpace(step.SQL) + "\n" + t.more
		file, err := os.OpenFile(filepath.Join(dir, name), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
		if err != nil {
			return names, err
		}
		_, err = file.WriteString(text)
		if closed := file.Close(); err == nil {
			err = closed
		}
		if err != nil {
			return names, err
		}
		names = append(names, name)
		next++
	}
	return names, nil
}
