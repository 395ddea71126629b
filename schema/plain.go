package schema

import (
	"fmt"
	"strings"
)

// Migration is one step of the schema as plain SQL.
type Migration struct {
	// Line is "samekey" or "river": two lists that are numbered and recorded apart. Neither needs the other's tables.
	Line string
	// Version is the number within the line: 1, 2, 3 and so on. A later release adds higher ones and changes none.
	Version int
	// Name is fit for a file: "samekey_0001" or "river_006_bulk_unique". It is unique over both lines and never changes.
	Name string
	// SQL holds the statements, and the insert that records the version in samekey.migrations or
	// samekey.river_migration. There are no placeholders in it.
	SQL string
}

// All returns every migration of this release, samekey's and River's, as SQL for teams with a migration tool of their
// own. For goose and golang-migrate, `worker migrate -for` writes the files. Run them in the order given, each exactly once, each in a transaction of its own: River's version 6 uses a value
// that version 4 adds to an enum, and Postgres refuses that in one transaction (55P04). None of them needs to run
// outside a transaction.
//
// Afterwards [Check] is satisfied and [Migrate] finds nothing to do, since each records itself. After an upgrade add
// those whose Name is new. Run them as the role that is to own the tables, then the text of [Grants].
func All() ([]Migration, error) {
	var all []Migration
	for i, m := range own {
		_, title, _ := strings.Cut(m.name, "_")
		text := m.sql + "\n\n" + record(i+1, m.name)
		if i == 0 {
			text = strings.TrimSpace(prepareSQL) + ";\n\n" + text
		}
		name := fmt.Sprintf("samekey_%04d", i+1)
		if title != "samekey" {
			name += "_" + title
		}
		all = append(all, Migration{Line: "samekey", Version: i + 1, Name: name, SQL: text})
	}

	river, err := riverMigrator(nil)
	if err != nil {
		return nil, err
	}
	for _, m := range river.AllVersions() {
		text := strings.ReplaceAll(m.SQLUp, "/* TEMPLATE: schema */", Name+".")
		if strings.Contains(text, "/* TEMPLATE") {
			return nil, fmt.Errorf("schema: River's migration %d has a part that All cannot fill in: use Migrate", m.Version)
		}
		all = append(all, Migration{
			Line: "river", Version: m.Version,
			Name: fmt.Sprintf("river_%03d_%s", m.Version, strings.ReplaceAll(m.Name, " ", "_")),
			SQL:  strings.TrimSpace(text) + "\n\n" + recordRiver(m.Version),
		})
	}
	return all, nil
}

func record(version int, name string) string {
	return fmt.Sprintf("insert into samekey.migrations (version, name) values (%d, '%s');\n", version, name)
}

// recordRiver writes what River's own migrator would: its table has a "line" only from version 5 on.
func recordRiver(version int) string {
	if version < 5 {
		return fmt.Sprintf("insert into samekey.river_migration (version) values (%d);\n", version)
	}
	return fmt.Sprintf("insert into samekey.river_migration (line, version) values ('main', %d);\n", version)
}
