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

// tool is a migration tool: how it names its files, and what surrounds the statements in each file.
type tool struct {
	suffix       string
	digits       int
	before, more string
}

// Each file is one statement for the tool: a tool that splits statements itself would cut functions in dollar quotes.
// Each file runs in a transaction of its own, as River's enum needs.
var tools = map[string]tool{
	"goose": {suffix: ".sql", digits: 5,
		before: "-- +goose Up\n-- +goose StatementBegin\n", more: "-- +goose StatementEnd\n"},
	"golang-migrate": {suffix: ".up.sql", digits: 6},
}

var numbered = regexp.MustCompile(`^(\d+)_(.+)$`)

// migrationFiles writes a file for each migration that the folder lacks, numbered after the existing files, and returns
// their names. It changes no existing file, so after an upgrade it writes only the new migrations.
func migrationFiles(dir string, t tool, roles schema.Roles) (names []string, err error) {
	steps, err := schema.All()
	if err != nil {
		return nil, err
	}
	if roles != (schema.Roles{}) {
		// Rights are granted again after each migration, so the file has the name of the last one.
		last := map[string]string{}
		for _, step := range steps {
			last[step.Line] = fmt.Sprintf("%s_%04d", step.Line, step.Version)
		}
		steps = append(steps, schema.Migration{Name: "grants_of_" + last["samekey"] + "_" + last["river"], SQL: schema.Grants(roles)})
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
			return nil, fmt.Errorf("%s: its number is too large to continue after it", entry.Name())
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
