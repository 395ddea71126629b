package samekey

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
)

// Tx is a transaction that you own. A function that takes a Tx reads and writes in it, so that its rows and yours exist
// together or not at all. It never commits the transaction or rolls it back.
//
// Every pgx.Tx is a Tx, and [SQL] makes one of a *sql.Tx. A pool or a connection has the same methods but is refused:
// each statement would commit by itself.
type Tx interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// SQL returns tx as a [Tx], for users of database/sql and libraries built on it (GORM, bun, ent, sqlx). The transaction
// stays yours.
//
// With pgx's database/sql driver all of samekey works. Other Postgres drivers work as far as they accept the arguments:
// all accept scalars, byte slices and times; some accept no slices.
//
// Results are as exact as database/sql allows. Scan accepts the destinations that pgx accepts. A command tag has the
// number of rows, but not the command's name. "No rows" is pgx.ErrNoRows, which matches sql.ErrNoRows too. Values
// returns the driver's types (int64 for every integer, text for a uuid). RawValues and Conn return nil. Errors are the
// driver's own and not wrapped, so errors.As finds a *pgconn.PgError.
func SQL(tx *sql.Tx) Tx { return sqlTx{tx} }

type sqlTx struct{ tx *sql.Tx }

func (t sqlTx) Exec(ctx context.Context, query string, args ...any) (pgconn.CommandTag, error) {
	result, err := t.tx.ExecContext(ctx, query, args...)
	if err != nil {
		return pgconn.CommandTag{}, err
	}
	affected, err := result.RowsAffected()
	if err != nil {
		return pgconn.CommandTag{}, fmt.Errorf("samekey: the driver does not report the affected rows: use pgx's: %w", err)
	}
	return rowsTag(affected), nil
}

// Query returns rows that are never nil, as pgx does. After an error they are closed and hold the error.
func (t sqlTx) Query(ctx context.Context, query string, args ...any) (pgx.Rows, error) {
	rows, err := t.tx.QueryContext(ctx, query, args...)
	if err != nil {
		return &sqlRows{err: err, closed: true}, err
	}
	columns, err := describe(rows)
	if err != nil {
		_ = rows.Close()
		return &sqlRows{err: err, closed: true}, err
	}
	return &sqlRows{rows: rows, columns: columns}, nil
}

func (t sqlTx) QueryRow(ctx context.Context, query string, args ...any) pgx.Row {
	rows, _ := t.Query(ctx, query, args...) // the rows hold the error
	return sqlRow{rows}
}

type sqlRow struct{ rows pgx.Rows }

func (r sqlRow) Scan(dest ...any) error {
	if !r.rows.Next() {
		if err := r.rows.Err(); err != nil {
			return err
		}
		return pgx.ErrNoRows
	}
	if err := r.rows.Scan(dest...); err != nil {
		return err
	}
	r.rows.Close()
	return r.rows.Err()
}

// sqlRows is pgx.Rows over *sql.Rows.
type sqlRows struct {
	rows    *sql.Rows // nil if the query failed
	columns []pgconn.FieldDescription
	types   *pgtype.Map // created on first use: most scans need none
	read    int64
	closed  bool
	err     error
}

func (r *sqlRows) Close() {
	if r.closed {
		return
	}
	r.closed = true
	r.fail(r.rows.Err())
	r.fail(r.rows.Close())
}

func (r *sqlRows) Err() error { return r.err }

// CommandTag counts the rows that were read, once the rows are closed.
func (r *sqlRows) CommandTag() pgconn.CommandTag {
	if !r.closed || r.err != nil {
		return pgconn.CommandTag{}
	}
	return rowsTag(r.read)
}

func (r *sqlRows) FieldDescriptions() []pgconn.FieldDescription { return r.columns }

func (r *sqlRows) Next() bool {
	if r.closed {
		return false
	}
	if !r.rows.Next() {
		r.Close()
		return false
	}
	r.read++
	return true
}

func (r *sqlRows) Scan(dest ...any) error {
	if len(dest) == 1 {
		if whole, ok := dest[0].(pgx.RowScanner); ok {
			return r.closeOn(whole.ScanRow(r))
		}
	}
	if r.closed {
		return errors.New("samekey: scan: rows are closed")
	}
	adapted := make([]any, len(dest))
	for i, d := range dest {
		adapted[i] = r.adapt(i, d)
	}
	return r.closeOn(r.rows.Scan(adapted...))
}

func (r *sqlRows) Values() ([]any, error) {
	values, dest := make([]any, len(r.columns)), make([]any, len(r.columns))
	for i := range values {
		dest[i] = &values[i]
	}
	if err := r.Scan(dest...); err != nil {
		return nil, err
	}
	return values, nil
}

func (r *sqlRows) RawValues() [][]byte { return nil }

func (r *sqlRows) Conn() *pgx.Conn { return nil }

func (r *sqlRows) TypeMap() *pgtype.Map {
	if r.types == nil {
		r.types = pgtype.NewMap()
	}
	return r.types
}

// adapt returns what database/sql can scan into for a destination of pgx: the destination itself if database/sql knows
// its type, a throw-away value for nil, and pgx's decoder for slices, arrays, maps and structs.
func (r *sqlRows) adapt(column int, dest any) any {
	switch dest.(type) {
	case nil:
		return new(any)
	case sql.Scanner, *[]byte, *sql.RawBytes, *any:
		return dest
	}
	target := reflect.TypeOf(dest)
	for target.Kind() == reflect.Pointer {
		target = target.Elem()
		if reflect.PointerTo(target).Implements(reflect.TypeFor[sql.Scanner]()) {
			return dest
		}
	}
	switch target.Kind() {
	case reflect.Slice, reflect.Array, reflect.Map, reflect.Struct:
		if target != reflect.TypeFor[time.Time]() && column < len(r.columns) {
			return &decoder{types: r.TypeMap(), column: r.columns[column], dest: dest}
		}
	}
	return dest
}

// closeOn closes the rows after a failed scan, as pgx does.
func (r *sqlRows) closeOn(err error) error {
	if err != nil {
		r.fail(err)
		r.Close()
	}
	return err
}

func (r *sqlRows) fail(err error) {
	if r.err == nil {
		r.err = err
	}
}

// decoder lets pgx decode a column's text into a type that database/sql does not know.
type decoder struct {
	types  *pgtype.Map
	column pgconn.FieldDescription
	dest   any
}

func (d *decoder) Scan(src any) error {
	oid := d.column.DataTypeOID
	switch value := src.(type) {
	case nil:
		return d.types.Scan(oid, pgtype.TextFormatCode, nil, d.dest)
	case string:
		return d.types.Scan(oid, pgtype.TextFormatCode, []byte(value), d.dest)
	case []byte:
		if oid == pgtype.ByteaOID { // the driver decoded it: this is the binary form
			return d.types.Scan(oid, pgtype.BinaryFormatCode, value, d.dest)
		}
		return d.types.Scan(oid, pgtype.TextFormatCode, value, d.dest)
	}
	return fmt.Errorf("cannot scan %T into %T", src, d.dest)
}

// describe names the columns and, as far as the driver reports them, their types.
func describe(rows *sql.Rows) ([]pgconn.FieldDescription, error) {
	types, err := rows.ColumnTypes()
	if err != nil {
		return nil, err
	}
	columns := make([]pgconn.FieldDescription, len(types))
	for i, t := range types {
		columns[i] = pgconn.FieldDescription{Name: t.Name(), DataTypeOID: typeOID(t.DatabaseTypeName()), Format: pgtype.TextFormatCode}
	}
	return columns, nil
}

// builtInTypes is for lookups by name only, which many goroutines can do at once. Decoding needs a map per goroutine.
var builtInTypes = pgtype.NewMap()

// typeOID returns the OID of a built-in type of Postgres by the name that drivers give it, such as "INT8" or "_UUID".
// It is 0 if the type is unknown.
func typeOID(name string) uint32 {
	known, ok := builtInTypes.TypeForName(strings.ToLower(name))
	if !ok {
		return 0
	}
	return known.OID
}

// rowsTag is a tag without the command's name, which database/sql does not keep.
func rowsTag(rows int64) pgconn.CommandTag {
	return pgconn.NewCommandTag(fmt.Sprintf("ROWS %d", rows))
}
