package schema_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/samekey/samekey/internal/exampletb"
	"github.com/samekey/samekey/samekeytest"
	"github.com/samekey/samekey/schema"
)

func ExampleMigrate() {
	ctx := context.Background()
	t, done := exampletb.New()
	defer done()
	pool := samekeytest.NewEmptyDB(t).Pool // yours

	err := schema.Migrate(ctx, pool)
	fmt.Println(err, schema.Check(ctx, pool))
	// Output:
	// <nil> <nil>
}

// Another migration tool gets the migrations as files, numbered after its own.
func ExampleAll() {
	const first = 12
	folder, err := os.MkdirTemp("", "migrations-")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(folder)
	fmt.Println(writeMigrations(folder, first))
	files, _ := filepath.Glob(filepath.Join(folder, "0012_*.sql"))
	fmt.Println(filepath.Base(files[0]))
	// Output:
	// <nil>
	// 0012_samekey_0001.sql
}

func writeMigrations(folder string, first int) error {
	all, err := schema.All()
	if err != nil {
		return err
	}
	for i, m := range all {
		name := filepath.Join(folder, fmt.Sprintf("%04d_%s.sql", first+i, m.Name))
		if err := os.WriteFile(name, []byte(m.SQL), 0o644); err != nil {
			return err
		}
	}
	return nil
}
