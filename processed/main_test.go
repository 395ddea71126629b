package processed_test

import (
	"os"
	"testing"

	"github.com/samekey/samekey/internal/dbtest"
)

func TestMain(m *testing.M) {
	if os.Getenv(crashEnv) != "" {
		os.Exit(crashMain())
	}
	dbtest.Parallel("6") // these tests wait more than they work
	os.Exit(m.Run())
}
