package schema_test

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/samekey/samekey/samekeytest"
	"github.com/samekey/samekey/schema"
)

func TestCheckSettingsReportsWeakSettings(t *testing.T) {
	on := samekeytest.NewDB(t)
	findings := func(setting, value string) []schema.Finding {
		t.Helper()
		config, err := pgxpool.ParseConfig(on.DSN)
		if err != nil {
			t.Fatal(err)
		}
		config.ConnConfig.RuntimeParams[setting] = value
		pool, err := pgxpool.NewWithConfig(t.Context(), config)
		if err != nil {
			t.Fatal(err)
		}
		defer pool.Close()
		found, err := schema.CheckSettings(t.Context(), pool)
		if err != nil {
			t.Fatal(err)
		}
		var out []schema.Finding
		for _, f := range found { // the tests' server may be one without fsync
			if f.Setting != "fsync" && f.Setting != "full_page_writes" {
				out = append(out, f)
			}
		}
		return out
	}
	for _, c := range []struct {
		setting, value string
		readOnly       bool
	}{
		{"synchronous_commit", "off", false},
		{"default_transaction_isolation", "serializable", false},
		{"default_transaction_isolation", "repeatable read", false},
		{"default_transaction_read_only", "on", true},
		{"client_encoding", "LATIN1", false},
		{"search_path", "public, pg_catalog", false},
	} {
		found := findings(c.setting, c.value)
		if len(found) != 1 {
			t.Errorf("%s = %s: found %v", c.setting, c.value, found)
			continue
		}
		f := found[0]
		if f.Setting != c.setting || f.Value != c.value || f.ReadOnly != c.readOnly || f.Problem == "" || !strings.Contains(f.String(), c.value) {
			t.Errorf("%s = %s: found %+v", c.setting, c.value, f)
		}
	}
	for setting, value := range map[string]string{
		"synchronous_commit": "remote_write", "search_path": "shop, public", "default_transaction_isolation": "read committed", "application_name": "x",
	} {
		if found := findings(setting, value); len(found) != 0 {
			t.Errorf("%s = %s: found %v, want nothing", setting, value, found)
		}
	}
}

func TestCheckSettingsReportsFsyncOff(t *testing.T) {
	on := samekeytest.NewDB(t)
	var fsync string
	if err := on.QueryRow(t.Context(), "show fsync").Scan(&fsync); err != nil {
		t.Fatal(err)
	}
	found, err := schema.CheckSettings(t.Context(), on)
	if err != nil {
		t.Fatal(err)
	}
	reported := false
	for _, f := range found {
		reported = reported || f.Setting == "fsync"
	}
	if reported != (fsync == "off") {
		t.Errorf("fsync is %s; reported: %v", fsync, reported)
	}
}
