package dispatcher

import (
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
)

// uuidCodec writes and reads a uuid.UUID as the 16 bytes that it is. pgx does not know the type and uses its
// database/sql methods: each id becomes text, an error, bytes and text again.
type uuidCodec struct{ pgtype.UUIDCodec }

// useUUIDCodec makes a connection of the worker use uuidCodec, unless the application has registered a codec of its own.
// The values are the same, also for an Apply.
func useUUIDCodec(conn *pgx.Conn) {
	t, ok := conn.TypeMap().TypeForOID(pgtype.UUIDOID)
	if !ok || t.Codec != (pgtype.UUIDCodec{}) {
		return
	}
	conn.TypeMap().RegisterType(&pgtype.Type{Name: t.Name, OID: t.OID, Codec: uuidCodec{}})
}

// PlanEncode implements pgtype.Codec.
func (c uuidCodec) PlanEncode(m *pgtype.Map, oid uint32, format int16, value any) pgtype.EncodePlan {
	if _, ok := value.(uuid.UUID); ok && format == pgtype.BinaryFormatCode {
		return uuidPlan{}
	}
	return c.UUIDCodec.PlanEncode(m, oid, format, value)
}

// PlanScan implements pgtype.Codec.
func (c uuidCodec) PlanScan(m *pgtype.Map, oid uint32, format int16, target any) pgtype.ScanPlan {
	if _, ok := target.(*uuid.UUID); ok && format == pgtype.BinaryFormatCode {
		return uuidPlan{}
	}
	return c.UUIDCodec.PlanScan(m, oid, format, target)
}

// uuidPlan encodes a uuid.UUID, and scans into a *uuid.UUID.
type uuidPlan struct{}

func (uuidPlan) Encode(value any, buf []byte) ([]byte, error) {
	id := value.(uuid.UUID)
	return append(buf, id[:]...), nil
}

func (uuidPlan) Scan(src []byte, target any) error {
	switch len(src) {
	case 0: // NULL leaves the target as it is, as uuid.UUID's own Scan does
	case len(uuid.UUID{}):
		copy(target.(*uuid.UUID)[:], src)
	default:
		return fmt.Errorf("a uuid of %d bytes", len(src))
	}
	return nil
}
