package schema

import (
	"fmt"
	"strings"
)

// Migration is one step of the schema as plain SQL.
type Migration struct {
	// Line is "samekey" or "river". The two lines have their own numbers and tables of versions, and do not need each
	// other's tables.
	Line string
	// Version is the number within the line, from 1 on. A later release adds higher numbers and changes none.
	Version int
	// Name can be a file name, such as "samekey_0001" or "river_006_bulk_unique". It is unique across both lines and
	// never changes.
	Name string
	// SQL holds the statements, and the insert that records the version in samekey.migrations or
	// samekey.river_migration. It contains no placeholders.
	SQL string
}

// All returns every migration of this release, samekey's and River's, as SQL for teams with a migration tool of their
// own. For goose and golang-migrate, `worker migrate -for` writes the files. Run the migrations in the given order,
// each exactly once and each in its own transaction: River's version 6 uses a value that version 4 adds to an enum, and
// Postgres refuses that in one transaction (55P04). None of them has to run outside a transaction.
//
// Each migration records itself, so [Check] succeeds afterwards and [Migrate] finds nothing to do. After an upgrade,
// add the migrations whose Name is new. Run them as the role that will own the tables, then run the statements of
// [Grants].
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
			return nil, fmt.Errorf("schema: River's migration %d has a template that All does not know: use Migrate", m.Version)
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

// recordRiver returns the insert that River's migrator runs. The table has the column "line" since version 5.
func recordRiver(version int) string {
	if version < 5 {
		return fmt.Sprintf("insert into samekey.river_migration (version) values (%d);\n", version)
	}
	return fmt.Sprintf("insert into samekey.river_migration (line, version) values ('main', %d);\n", version)
}
