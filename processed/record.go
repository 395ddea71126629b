package processed

import (
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/samekey/samekey"
	"github.com/samekey/samekey/internal/db"
	"github.com/samekey/samekey/internal/sqlstate"
)

// find scans the row of ProcessedEventsFind. It is nil if there is none.
func find(row pgx.Row) (*db.ProcessedEventsFindRow, error) {
	var r db.ProcessedEventsFindRow
	err := row.Scan(&r.PayloadHash, &r.HashVersion, &r.InProgress, &r.Erased, &r.Failed, &r.ResponseCode, &r.ResponseHeaders, &r.ResponseBody)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return &r, nil
}

// replay answers from the record. Every replay comes through here, and here the request is compared with the first one.
func (m *memory) replay(record *db.ProcessedEventsFindRow) (answer, error) {
	if err := m.compare(record); err != nil {
		return answer{}, err
	}
	if record.InProgress {
		return answer{}, m.named(ErrInFlight)
	}
	if record.Erased {
		return answer{}, m.named(ErrErased)
	}
	return answer{
		code: record.ResponseCode, header: record.ResponseHeaders, body: record.ResponseBody, failed: record.Failed, replay: true,
	}, nil
}

// compare returns ErrConflict if the record is of another request. A record with another fingerprint version is
// compared under that version.
func (m *memory) compare(record *db.ProcessedEventsFindRow) error {
	stored := samekey.Fingerprint{Version: record.HashVersion}
	copy(stored.Hash[:], record.PayloadHash)
	same := stored == m.fingerprint
	if stored.Version != m.fingerprint.Version {
		if m.text == nil {
			return fmt.Errorf("processed: key:%s was stored with fingerprint version %d, and Request.Payload is a fingerprint of version %d: give the request's bytes, so that they can be compared",
				m.key.Hash(), stored.Version, m.fingerprint.Version)
		}
		var err error
		if same, err = stored.Matches(m.text); err != nil {
			return fmt.Errorf("processed: compare with the first request of key:%s: %w", m.key.Hash(), err)
		}
	}
	if !same {
		return m.named(ErrConflict)
	}
	return nil
}

// recordError is an error of the record's own statement. Its only constraint is the primary key, so any 23505 of that
// statement means that another attempt won. The constraint's name would not do: not every driver reports it.
type recordError struct{ err error }

func (e *recordError) Error() string { return e.err.Error() }
func (e *recordError) Unwrap() error { return e.err }

func ofRecord(err error) error {
	if err == nil {
		return nil
	}
	return &recordError{err}
}

// lostRace reports whether another attempt's record exists already.
func lostRace(err error) bool {
	record := (*recordError)(nil)
	return errors.As(err, &record) && sqlstate.Of(err) == sqlstate.UniqueViolation
}

// replaced reports whether the transaction is not the one in which the request began.
func replaced(err error) bool {
	record := (*recordError)(nil)
	return errors.As(err, &record) && sqlstate.Of(err) == sqlstate.NoSuchTime
}
