package samekey_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
	_ "github.com/jackc/pgx/v5/stdlib"

	"github.com/samekey/samekey"
)

// Both kinds of transaction are a Tx, and neither a pool's nor a connection's commit is behind it.
var _ samekey.Tx = pgx.Tx(nil)

// eachTx runs test in a transaction of pgx's and in one of database/sql: the same statements give the same answers in
// both. Nothing is committed, so no database of its own is needed.
func eachTx(t *testing.T, test func(t *testing.T, ctx context.Context, tx samekey.Tx)) {
	dsn := serverURL(t)
	t.Run("pgx", func(t *testing.T) {
		ctx := deadline(t)
		conn, err := pgx.Connect(ctx, dsn)
		must(t, err)
		defer func() { must(t, conn.Close(context.WithoutCancel(ctx))) }()
		tx, err := conn.Begin(ctx)
		must(t, err)
		defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()
		test(t, ctx, tx)
	})
	t.Run("database/sql", func(t *testing.T) {
		ctx := deadline(t)
		test(t, ctx, samekey.SQL(beginSQL(t, ctx, dsn)))
	})
}

func serverURL(t *testing.T) string {
	t.Helper()
	dsn := os.Getenv("SAMEKEY_TEST_DATABASE_URL")
	if dsn == "" {
		t.Fatal("SAMEKEY_TEST_DATABASE_URL is not set: name a Postgres server of version 14 or later, such as postgres://postgres:postgres@127.0.0.1:5432/postgres")
	}
	return dsn
}

func beginSQL(t *testing.T, ctx context.Context, dsn string) *sql.Tx {
	t.Helper()
	db, err := sql.Open("pgx", dsn)
	must(t, err)
	t.Cleanup(func() { must(t, db.Close()) })
	tx, err := db.BeginTx(ctx, nil)
	must(t, err)
	t.Cleanup(func() { _ = tx.Rollback() })
	return tx
}

func deadline(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestExecReportsAffectedRowsThroughBothDrivers(t *testing.T) {
	eachTx(t, func(t *testing.T, ctx context.Context, tx samekey.Tx) {
		_, err := tx.Exec(ctx, "create temporary table numbers (n int8) on commit drop")
		must(t, err)
		tag, err := tx.Exec(ctx, "insert into numbers select generate_series(1, $1::int)", 7)
		must(t, err)
		if tag.RowsAffected() != 7 {
			t.Errorf("7 rows were inserted, the tag %q says %d", tag, tag.RowsAffected())
		}
		tag, err = tx.Exec(ctx, "delete from numbers where n = any($1)", []int64{1, 2})
		must(t, err)
		if tag.RowsAffected() != 2 {
			t.Errorf("2 rows were deleted, the tag %q says %d", tag, tag.RowsAffected())
		}
	})
}

func TestEveryStoredTypeComesBackThroughBothDrivers(t *testing.T) {
	id := uuid.MustParse("19ff97c1-7f6e-8cca-a424-270c1111580a")
	at := time.Date(2026, 3, 1, 12, 0, 0, 123456000, time.UTC)
	cases := []struct {
		name, sql string
		value     any // what is sent
		into      any // a pointer to scan into, which may hold an old value
		want      any
	}{
		{"text", "$1::text", "a\tö", new(string), "a\tö"},
		{"int2 into int16", "$1::int2", int16(-7), new(int16), int16(-7)},
		{"int4", "$1::int4", int32(7), new(int32), int32(7)},
		{"int8", "$1::int8", int64(1) << 60, new(int64), int64(1) << 60},
		{"bool", "$1::bool", true, new(bool), true},
		{"float8", "$1::float8", 0.25, new(float64), 0.25},
		{"bytea", "$1::bytea", []byte("\x00\xff\\x41"), new([]byte), []byte("\x00\xff\\x41")},
		{"empty bytea", "$1::bytea", []byte{}, new([]byte), []byte{}},
		{"bytea into a named type", "$1::bytea", []byte("\x00\xff"), new(json.RawMessage), json.RawMessage("\x00\xff")},
		{"json into a named type", "$1::json", []byte(`[1]`), new(json.RawMessage), json.RawMessage(`[1]`)},
		{"int8 into a pointer to a scanner", "$1::int8", 7, new(*pgtype.Int8), &pgtype.Int8{Int64: 7, Valid: true}},
		{"time into a pointer", "$1::timestamptz", time.Unix(0, 0), new(*time.Time), ptr(time.Unix(0, 0))},
		{"uuid", "$1::uuid", id, new(uuid.UUID), id},
		{"uuid into pgtype", "$1::uuid", id, new(pgtype.UUID), pgtype.UUID{Bytes: id, Valid: true}},
		{"null text", "$1::text", nil, ptr(ptr("old")), (*string)(nil)},
		{"text into pointer", "$1::text", "a", new(*string), ptr("a")},
		{"null uuid", "$1::uuid", nil, ptr(&id), (*uuid.UUID)(nil)},
		{"uuid into pointer", "$1::uuid", id, new(*uuid.UUID), &id},
		{"null time", "$1::timestamptz", nil, ptr(&at), (*time.Time)(nil)},
		{"text into pgtype", "$1::text", nil, new(pgtype.Text), pgtype.Text{}},
		{"json", "$1::json", []byte(`{"a":1}`), new([]byte), []byte(`{"a":1}`)},
		{"json into a map", "$1::json", []byte(`{"a":"b"}`), new(map[string]string), map[string]string{"a": "b"}},
		{"text[]", "$1::text[]", []string{`a,"b`, ""}, new([]string), []string{`a,"b`, ""}},
		{"null text[]", "$1::text[]", nil, ptr([]string{"old"}), []string(nil)},
		{"int8[]", "$1::int8[]", []int64{1, -2}, new([]int64), []int64{1, -2}},
		{"uuid[]", "$1::uuid[]", []uuid.UUID{id, {}}, new([]uuid.UUID), []uuid.UUID{id, {}}},
		{"bytea[]", "$1::bytea[]", [][]byte{{0, 0xff}, {}}, new([][]byte), [][]byte{{0, 0xff}, {}}},
	}
	eachTx(t, func(t *testing.T, ctx context.Context, tx samekey.Tx) {
		for _, c := range cases {
			into := reflect.New(reflect.TypeOf(c.into).Elem())
			into.Elem().Set(reflect.ValueOf(c.into).Elem())
			must(t, tx.QueryRow(ctx, "select "+c.sql, c.value).Scan(into.Interface()))
			if got := into.Elem().Interface(); !reflect.DeepEqual(got, c.want) {
				t.Errorf("%s: got %#v, want %#v", c.name, got, c.want)
			}
		}
		var got time.Time
		must(t, tx.QueryRow(ctx, "select $1::timestamptz", at).Scan(&got))
		if !got.Equal(at) {
			t.Errorf("timestamptz: got %v, want %v", got, at)
		}
	})
}

func TestNoRowsMatchesPgxAndDatabaseSQL(t *testing.T) {
	eachTx(t, func(t *testing.T, ctx context.Context, tx samekey.Tx) {
		var n int
		err := tx.QueryRow(ctx, "select 1 where false").Scan(&n)
		if !errors.Is(err, pgx.ErrNoRows) || !errors.Is(err, sql.ErrNoRows) {
			t.Errorf("got %v, want what is both pgx.ErrNoRows and sql.ErrNoRows", err)
		}
		must(t, tx.QueryRow(ctx, "select 1").Scan(&n)) // the transaction is still usable
	})
}

func TestAnErrorOfPostgresKeepsItsCode(t *testing.T) {
	for name, run := range map[string]func(ctx context.Context, tx samekey.Tx) error{
		"Exec": func(ctx context.Context, tx samekey.Tx) error {
			_, err := tx.Exec(ctx, "select 1/(1 - $1::int)", 1)
			return err
		},
		"QueryRow": func(ctx context.Context, tx samekey.Tx) error {
			return tx.QueryRow(ctx, "select 1/(1 - $1::int)", 1).Scan(new(int))
		},
		"Query, in a late row": func(ctx context.Context, tx samekey.Tx) error {
			rows, err := tx.Query(ctx, "select 1/(1000 - n) from generate_series($1::int, 1000) as n", 1)
			if err != nil {
				return err
			}
			_, err = pgx.CollectRows(rows, pgx.RowTo[int])
			return err
		},
		"Query that does not parse": func(ctx context.Context, tx samekey.Tx) error {
			rows, err := tx.Query(ctx, "select from where")
			if rows == nil || rows.Next() || rows.Err() == nil {
				return errors.New("want closed rows that hold the error")
			}
			rows.Close()
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			eachTx(t, func(t *testing.T, ctx context.Context, tx samekey.Tx) {
				err := run(ctx, tx)
				var pg *pgconn.PgError
				if !errors.As(err, &pg) || (pg.Code != "22012" && pg.Code != "42601") {
					t.Errorf("got %v, want Postgres's own error", err)
				}
			})
		})
	}
}

func TestRowsWorkWithPgxCollectorsThroughBothDrivers(t *testing.T) {
	type line struct {
		N    int64
		Name *string
		Tags []string
	}
	const query = "select n::int8 as n, case when n = 2 then 'two' end as name, array['x', n::text] as tags from generate_series(1, 2) as n"
	want := []line{{1, nil, []string{"x", "1"}}, {2, ptr("two"), []string{"x", "2"}}}
	eachTx(t, func(t *testing.T, ctx context.Context, tx samekey.Tx) {
		for name, into := range map[string]pgx.RowToFunc[line]{"position": pgx.RowToStructByPos[line], "name": pgx.RowToStructByName[line]} {
			rows, err := tx.Query(ctx, query)
			must(t, err)
			got, err := pgx.CollectRows(rows, into)
			must(t, err)
			if !reflect.DeepEqual(got, want) {
				t.Errorf("by %s: got %+v, want %+v", name, got, want)
			}
			if rows.CommandTag().RowsAffected() != 2 {
				t.Errorf("by %s: 2 rows were read, the tag says %d", name, rows.CommandTag().RowsAffected())
			}
		}
		rows, err := tx.Query(ctx, "select 'a'::text as name, 7::int8 as n")
		must(t, err)
		got, err := pgx.CollectOneRow(rows, pgx.RowToMap)
		must(t, err)
		if want := map[string]any{"name": "a", "n": int64(7)}; !reflect.DeepEqual(got, want) {
			t.Errorf("as a map: got %v, want %v", got, want)
		}
	})
}

func TestRowsReportColumnsAndValues(t *testing.T) {
	eachTx(t, func(t *testing.T, ctx context.Context, tx samekey.Tx) {
		rows, err := tx.Query(ctx, "select 'a'::text as name, 7::int8 as n, null::uuid as id, null::uuid[] as ids")
		must(t, err)
		defer rows.Close()
		var names []string
		var oids []uint32
		for _, column := range rows.FieldDescriptions() {
			names, oids = append(names, column.Name), append(oids, column.DataTypeOID)
		}
		if got := strings.Join(names, " "); got != "name n id ids" {
			t.Errorf("columns are %q", got)
		}
		if want := []uint32{pgtype.TextOID, pgtype.Int8OID, pgtype.UUIDOID, pgtype.UUIDArrayOID}; !reflect.DeepEqual(oids, want) {
			t.Errorf("types are %v, want %v", oids, want)
		}
		if !rows.Next() {
			t.Fatal(rows.Err())
		}
		values, err := rows.Values()
		must(t, err)
		if want := []any{"a", int64(7), nil, nil}; !reflect.DeepEqual(values, want) {
			t.Errorf("values are %#v, want %#v", values, want)
		}
		var n int64
		must(t, rows.Scan(nil, &n, nil, nil))
		if n != 7 {
			t.Errorf("skipping with nil scanned %d, want 7", n)
		}
	})
}

func TestAFailedScanClosesTheRowsAndFreesTheTransaction(t *testing.T) {
	eachTx(t, func(t *testing.T, ctx context.Context, tx samekey.Tx) {
		rows, err := tx.Query(ctx, "select 'x' from generate_series(1, 3)")
		must(t, err)
		if !rows.Next() {
			t.Fatal(rows.Err())
		}
		err = rows.Scan(new(int))
		if err == nil || rows.Next() || rows.Err() == nil {
			t.Errorf("scan of text into int: %v, then Next must be false and Err set: %v", err, rows.Err())
		}
		var n int
		must(t, tx.QueryRow(ctx, "select 1").Scan(&n))
	})
}

func TestRowsClosedHalfwayFreeTheTransaction(t *testing.T) {
	eachTx(t, func(t *testing.T, ctx context.Context, tx samekey.Tx) {
		rows, err := tx.Query(ctx, "select generate_series(1, 1000)")
		must(t, err)
		rows.Next()
		rows.Close()
		rows.Close()
		must(t, rows.Err())
		if rows.Next() || rows.Scan(new(int)) == nil {
			t.Error("closed rows still give rows")
		}
		var n int
		must(t, tx.QueryRow(ctx, "select 1").Scan(&n))
	})
}

func TestCallerCanRollBackWorkDoneThroughSQL(t *testing.T) {
	ctx := deadline(t)
	tx := beginSQL(t, ctx, serverURL(t))
	_, err := samekey.SQL(tx).Exec(ctx, "create temporary table gone (n int)")
	must(t, err)
	var there bool
	const query = "select to_regclass('pg_temp.gone') is not null"
	must(t, tx.QueryRowContext(ctx, query).Scan(&there))
	if !there {
		t.Error("the statement did not run in the caller's transaction")
	}
	must(t, tx.Rollback())
	if err := samekey.SQL(tx).QueryRow(ctx, query).Scan(&there); !errors.Is(err, sql.ErrTxDone) {
		t.Errorf("after the caller's rollback: %v, want %v", err, sql.ErrTxDone)
	}
}

func ptr[T any](v T) *T { return &v }
