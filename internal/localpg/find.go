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

// places are the folders in which packages install a server: Debian and Ubuntu, Red Hat and PGDG, Homebrew on both
// kinds of Mac, Postgres.app.
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
		// pg_config also comes with the client's headers, without a server.
		if dir := strings.TrimSpace(string(out)); isServer(dir) {
			return dir
		}
	}
	for _, place := range places {
		found, _ := filepath.Glob(place) // fails only for a malformed pattern
		slices.SortFunc(found, func(a, b string) int { return cmp.Compare(version(b), version(a)) })
		if i := slices.IndexFunc(found, isServer); i >= 0 {
			return found[i]
		}
	}
	return ""
}

// isServer reports whether the folder has the server's programs. It must be called bin, because embedded-postgres
// expects that.
func isServer(dir string) bool {
	for _, program := range []string{"initdb", "pg_ctl", "postgres"} {
		if info, err := os.Stat(filepath.Join(dir, program)); err != nil || info.Mode()&0o111 == 0 {
			return false
		}
	}
	return filepath.Base(dir) == "bin"
}

// version returns the last number in a path, so that 9 sorts before 15.
func version(dir string) int {
	numbers := number.FindAllString(dir, -1)
	if len(numbers) == 0 {
		return 0
	}
	n, _ := strconv.Atoi(numbers[len(numbers)-1]) // a number out of range becomes the largest int
	return n
}
