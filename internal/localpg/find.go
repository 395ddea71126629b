package localpg

import (
	"cmp"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// places are where packages put a server: Debian and Ubuntu, Red Hat's and
// PGDG's packages, Homebrew on both kinds of Mac, Postgres.app.
var places = []string{
	"/usr/lib/postgresql/*/bin",
	"/usr/pgsql-*/bin",
	"/opt/homebrew/opt/postgresql@*/bin",
	"/usr/local/opt/postgresql@*/bin",
	"/opt/homebrew/opt/postgresql/bin",
	"/usr/local/opt/postgresql/bin",
	"/Applications/Postgres.app/Contents/Versions/*/bin",
	"/usr/local/pgsql/bin",
}

var number = regexp.MustCompile(`[0-9]+`)

// BinDir finds the folder of a Postgres server, or returns "".
func BinDir(ctx context.Context) string {
	if out, err := exec.CommandContext(ctx, "pg_config", "--bindir").Output(); err == nil {
		// pg_config comes with the client's headers too: there may be no server.
		if dir := strings.TrimSpace(string(out)); isServer(dir) {
			return dir
		}
	}
	for _, place := range places {
		found, _ := filepath.Glob(place) // the patterns are good
		slices.SortFunc(found, func(a, b string) int { return cmp.Compare(version(b), version(a)) })
		if i := slices.IndexFunc(found, isServer); i >= 0 {
			return found[i]
		}
	}
	return ""
}

// isServer asks for a folder called bin, as embedded-postgres does.
func isServer(dir string) bool {
	for _, program := range []string{"initdb", "pg_ctl", "postgres"} {
		if info, err := os.Stat(filepath.Join(dir, program)); err != nil || info.Mode()&0o111 == 0 {
			return false
		}
	}
	return filepath.Base(dir) == "bin"
}

// version is the last number in a path, so that 9 comes before 15.
func version(dir string) int {
	numbers := number.FindAllString(dir, -1)
	if len(numbers) == 0 {
		return 0
	}
	n, _ := strconv.Atoi(numbers[len(numbers)-1]) // too long: the largest there is
	return n
}
