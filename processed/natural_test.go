package processed_test

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/samekey/samekey/processed"
)

// A key with a NULL in it equals no other, so each call would make a row; and so it would with a find that looks for
// something else.
func TestRowThatFindMissesIsRefused(t *testing.T) {
	for name, owner := range owners() {
		t.Run(name, func(t *testing.T) {
			b := setup(t)
			b.exec("create table seats (id bigint generated always as identity, hall text, seat text, unique (hall, seat))")
			create := func(hall, seat any) processed.Statement {
				return processed.Statement{SQL: "insert into seats (hall, seat) values ($1, nullif($2, '')) on conflict (hall, seat) do nothing returning id", Args: []any{hall, seat}}
			}
			const find = "select id from seats where hall = $1 and seat = nullif($2, '')"
			var nothing *string
			for kind, c := range map[string]struct{ create, find processed.Statement }{
				"nil":                 {create(nil, "1"), processed.Statement{SQL: find, Args: []any{nil, "1"}}},
				"a nil pointer":       {create("A", nothing), processed.Statement{SQL: find, Args: []any{"A", nothing}}},
				"NULL in the SQL":     {create("A", ""), processed.Statement{SQL: find, Args: []any{"A", ""}}},
				"another key":         {create("A", "1"), processed.Statement{SQL: find, Args: []any{"a", "1"}}},
				"another, found once": {create("A", nil), processed.Statement{SQL: "select id from seats where hall = $1 and seat is not null", Args: []any{"A"}}},
			} {
				tx, _, rollback := owner.begin(t, b, "")
				res, err := processed.FindOrCreate(t.Context(), tx, c.create, c.find, pgx.RowTo[int64])
				if err == nil || res.Value != 0 || !strings.Contains(err.Error(), "does not select") || processed.SafeToRetry(err) {
					t.Errorf("%s: %+v, %v", kind, res, err)
				}
				ok(t, rollback())
			}
			if n := b.count("seats"); n != 0 {
				t.Errorf("%d rows", n)
			}

			// Found with its NULLs where the constraint lets each be a row of its own: the second call makes two, and
			// says so.
			same := processed.Statement{SQL: "select id from seats where hall = $1 and seat is not distinct from nullif($2, '')", Args: []any{"A", nil}}
			for _, want := range []string{"", "more than one row"} {
				tx, commit, rollback := owner.begin(t, b, "")
				_, err := processed.FindOrCreate(t.Context(), tx, create("A", nil), same, pgx.RowTo[int64])
				if want == "" {
					ok(t, err)
					ok(t, commit())
					continue
				}
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("the second call: %v", err)
				}
				ok(t, rollback())
			}
			if n := b.count("seats"); n != 1 {
				t.Errorf("%d rows", n)
			}
		})
	}
}
