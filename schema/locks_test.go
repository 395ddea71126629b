package schema

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// A literal number in a call that takes an advisory lock, or that hashes text for one.
var lockLiteral = regexp.MustCompile(`(?:advisory_\w+\(|hashtextextended\(.*, )(-?\d+)\)`)

func TestLockNumbersAreInOnePlace(t *testing.T) {
	seeds := []string{strconv.Itoa(keyLockSeed), strconv.Itoa(orderingLockSeed), strconv.Itoa(templateLockSeed)}
	numbers := []string{seeds[0], seeds[1], strconv.Itoa(workerLockClass), strconv.Itoa(migrateLock), strconv.Itoa(sharesLock)}
	home := []string{"schema/locks.go", "schema/migrations/0001_samekey.sql", "schema/schema.sql"}
	err := filepath.WalkDir("..", func(path string, entry fs.DirEntry, err error) error {
		name := filepath.ToSlash(strings.TrimPrefix(path, ".."+string(filepath.Separator)))
		if err != nil || entry.IsDir() || !slices.Contains([]string{".go", ".sql"}, filepath.Ext(name)) {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for _, number := range numbers {
			if strings.Contains(string(text), number) && !slices.Contains(home, name) {
				t.Errorf("%s repeats the lock number %s: use the constant or the SQL function", name, number)
			}
		}
		for _, found := range lockLiteral.FindAllStringSubmatch(string(text), -1) {
			if !slices.Contains(append(seeds, strconv.Itoa(sharesLock)), found[1]) && !strings.HasSuffix(name, "_test.go") {
				t.Errorf("%s uses the lock number %s: add it to schema/locks.go and to the table in migration 0001", name, found[1])
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}

	migration, err := os.ReadFile("migrations/0001_samekey.sql")
	if err != nil {
		t.Fatal(err)
	}
	for number, want := range map[string]int{numbers[0]: 2, numbers[1]: 2, numbers[2]: 2, numbers[3]: 1} { // the table, and the function
		if got := strings.Count(string(migration), number); got != want {
			t.Errorf("migration 0001 names the lock number %s %d times, want %d", number, got, want)
		}
	}
}
