package dispatcher

import (
	"context"
	"reflect"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/samekey/samekey/samekeytest"
)

// An Apply sees the same values on a worker's connection as on the application's own.
func TestWorkerConnectionsChangeNoUUID(t *testing.T) {
	t.Parallel()
	on := samekeytest.NewDB(t)
	n := workerOn(t, on, nil)
	id, other := uuid.New(), uuid.New()
	for _, c := range []struct {
		name   string
		sql    string
		arg    any
		target func() any
	}{
		{"uuid.UUID", `select $1::uuid`, id, func() any { return new(uuid.UUID) }},
		{"pointer", `select $1::uuid`, &id, func() any { return new(*uuid.UUID) }},
		{"nil", `select $1::uuid`, (*uuid.UUID)(nil), func() any { return new(*uuid.UUID) }},
		{"NULL into a uuid.UUID", `select $1::uuid`, nil, func() any { return &uuid.UUID{1} }},
		{"NullUUID", `select $1::uuid`, uuid.NullUUID{UUID: id, Valid: true}, func() any { return new(uuid.NullUUID) }},
		{"text", `select $1::uuid`, id.String(), func() any { return new(string) }},
		{"bytes", `select $1::uuid`, [16]byte(id), func() any { return new([16]byte) }},
		{"pgtype.UUID", `select $1::uuid`, pgtype.UUID{Bytes: id, Valid: true}, func() any { return new(pgtype.UUID) }},
		{"any", `select $1::uuid`, id, func() any { return new(any) }},
		{"array", `select $1::uuid[]`, []uuid.UUID{id, other}, func() any { return new([]uuid.UUID) }},
		{"array with NULL", `select $1::uuid[]`, []*uuid.UUID{&id, nil}, func() any { return new([]*uuid.UUID) }},
		{"array into any", `select $1::uuid[]`, []uuid.UUID{id}, func() any { return new(any) }},
		{"from text", `select $1::text`, id, func() any { return new(uuid.UUID) }},
	} {
		for _, mode := range []pgx.QueryExecMode{pgx.QueryExecModeCacheStatement, pgx.QueryExecModeSimpleProtocol} {
			var got [2]any
			for i, pool := range []*pgxpool.Pool{on.Pool, n.pool} {
				got[i] = c.target()
				if err := pool.QueryRow(t.Context(), c.sql, mode, c.arg).Scan(got[i]); err != nil {
					got[i] = err.Error()
				}
			}
			if !reflect.DeepEqual(got[0], got[1]) {
				t.Errorf("%s, %v: %#v, on a worker's connection %#v", c.name, mode, got[0], got[1])
			}
		}
	}
}

// An id costs one allocation, by which it becomes an interface. Without the codec each costs more than ten.
//
//nolint:paralleltest // it counts allocations
func TestUUIDsAreEncodedAsTheirBytes(t *testing.T) {
	n := workerOn(t, samekeytest.NewDB(t), nil)
	conn, err := n.pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	ids := make([]uuid.UUID, 1000)
	types, buf := conn.Conn().TypeMap(), make([]byte, 0, 1<<16)
	if each := testing.AllocsPerRun(10, func() {
		if _, err := types.Encode(pgtype.UUIDArrayOID, pgtype.BinaryFormatCode, ids, buf); err != nil {
			t.Error(err)
		}
	}) / float64(len(ids)); each > 1.1 {
		t.Errorf("%.1f allocations to encode an id", each)
	}
	src, target := make([]byte, 16), new(uuid.UUID)
	if each := testing.AllocsPerRun(10, func() {
		if err := types.Scan(pgtype.UUIDOID, pgtype.BinaryFormatCode, src, target); err != nil {
			t.Error(err)
		}
	}); each > 1 {
		t.Errorf("%.1f allocations to scan an id", each)
	}
}

type ownCodec struct{ pgtype.UUIDCodec }

func TestApplicationsUUIDCodecStays(t *testing.T) {
	t.Parallel()
	n := workerOn(t, samekeytest.NewDB(t), func(c *pgxpool.Config) {
		c.AfterConnect = func(_ context.Context, conn *pgx.Conn) error {
			conn.TypeMap().RegisterType(&pgtype.Type{Name: "uuid", OID: pgtype.UUIDOID, Codec: ownCodec{}})
			return nil
		}
	})
	conn, err := n.pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	if is, _ := conn.Conn().TypeMap().TypeForOID(pgtype.UUIDOID); is.Codec != (ownCodec{}) {
		t.Errorf("the codec is %T", is.Codec)
	}
}
