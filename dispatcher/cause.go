package dispatcher

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/samekey/samekey/internal/cause"
	"github.com/samekey/samekey/internal/redact"
	"github.com/samekey/samekey/internal/sqlstate"
)

// Texts of errors for logs: the cause and the next step, without values.

// errorText is the text of a database error for logs. It contains Postgres's own message if that names only objects. If
// the message may quote a value, SQLSTATE and constraint replace it.
func errorText(err error) string {
	if err == nil {
		return ""
	}
	var pgErr *pgconn.PgError
	if !errors.As(err, &pgErr) {
		if text := unreachable(err); text != "" {
			return text
		}
		return clean(err.Error(), 500)
	}
	text := "Postgres refused a statement"
	switch {
	case !quotesValues(pgErr.Code):
		text = pgErr.Message
	case pgErr.ConstraintName != "":
		text += " by the constraint " + pgErr.ConstraintName
	}
	text += " (SQLSTATE " + pgErr.Code + ")"
	if advice := adviceFor(pgErr.Code); advice != "" {
		text += ": " + advice
	}
	return clean(text, 500)
}

// unreachable states in fixed words why the database cannot be reached; it is empty if err is about something else. The
// same outage has the same text each time, without the local port.
func unreachable(err error) string {
	text := "cannot reach the database"
	var connecting *pgconn.ConnectError
	if errors.As(err, &connecting) && connecting.Config != nil {
		text += " at " + net.JoinHostPort(connecting.Config.Host, strconv.Itoa(int(connecting.Config.Port)))
	}
	var dns *net.DNSError
	var timeout net.Error
	switch {
	case errors.As(err, &dns):
		return text + ": its name cannot be resolved"
	case errors.Is(err, syscall.ECONNREFUSED):
		return text + ": connection refused"
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE), errors.Is(err, net.ErrClosed):
		return text + ": the connection was closed"
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		return text + ": no answer in time"
	}
	return ""
}

// quotesValues reports whether messages of this SQLSTATE may contain values of rows or parameters: data exceptions
// (22), errors that functions and triggers raise (P0 and codes of their own), internal errors.
func quotesValues(code string) bool {
	named := []string{"08", "0A", "23", "25", "28", "2F", "3D", "3F", "40", "42", "53", "54", "55", "57", "58"}
	return len(code) != 5 || !slices.Contains(named, code[:2])
}

// adviceFor is what a person can do about an error of this SQLSTATE.
func adviceFor(code string) string {
	switch code {
	case "28P01", "28000":
		return "check user, password and role of the worker's connection string, and pg_hba.conf"
	case "3D000":
		return "check the database's name in the worker's connection string"
	case "42501":
		return "the worker's role lacks a right: run `worker migrate -worker-role ROLE` as the owner of the tables, see docs/schema.md"
	case "42P01", "42883", "42703", "3F000":
		return "tables, columns or functions are missing: run `worker migrate`, and check that this is the right database"
	case "53300":
		return "the server has no connection left: raise max_connections, or make pools smaller"
	case "53100":
		return "the server's disk is full"
	case "25006":
		return "the server is read-only: a standby, or default_transaction_read_only; connect to the primary (target_session_attrs=read-write)"
	case "57P03":
		return "the server is starting or stopping"
	case "57014":
		return "a statement was cancelled: look for locks that are held for long (pg_stat_activity, pg_locks), or for a statement_timeout"
	case "55P03":
		return "another transaction holds a lock for long: look into pg_locks"
	}
	return ""
}

// waitingCannotHelp reports whether an error at start-up stays until a person changes something: a wrong password, role
// or database, or a missing right.
func waitingCannotHelp(err error) bool {
	return slices.Contains([]string{"28P01", "28000", "3D000", "42501"}, sqlstate.Of(err))
}

// panicText replaces a panic's value, which may contain secrets.
const panicText = "it panicked; the history of the intent has the text (outbox.Get)"

// causeOf is the text of an error of the application's code or of a vendor for logs, without URLs, without the
// payload's values, and without the key.
func causeOf(c *claim, err error) string {
	var pgErr *pgconn.PgError
	var panicked *panicError
	var function *functionError
	switch {
	case errors.As(err, &panicked):
		return panicText
	case errors.As(err, &function) && errors.As(err, &pgErr):
		return functionText(function, pgErr)
	case errors.As(err, &pgErr):
		return errorText(err)
	}
	return c.withoutValues(redact.WithoutURLs(err))
}

// functionText is the text of an error in an SQL function of the application: where it happened, and Postgres's message
// if that names only objects. The rights that it lacked are its owner's.
func functionText(f *functionError, err *pgconn.PgError) string {
	text := "function " + f.name
	if line := lineOfFunction.FindStringSubmatch(err.Where); line != nil && !strings.Contains(f.name, line[1]) {
		text += ", in " + line[1] + " line " + line[2]
	} else if line != nil {
		text += ", line " + line[2]
	}
	text += ": "
	switch {
	case !quotesValues(err.Code):
		text += err.Message
	case err.ConstraintName != "":
		text += "Postgres refused a statement by the constraint " + err.ConstraintName
	default:
		text += "an error whose message is stored and not logged, since it may quote a value"
	}
	text += " (SQLSTATE " + err.Code + ")"
	if err.Code == "42501" {
		text += ": the function has the rights of its owner, not the worker's: grant them to the owner; a further intent needs EXECUTE on samekey.enqueue (`worker migrate -app-role OWNER`)"
	}
	return clean(text, 500)
}

// lineOfFunction finds the innermost function in the context of an error.
var lineOfFunction = regexp.MustCompile(`PL/pgSQL function ([A-Za-z0-9_.$"]+)\([^)]*\) line ([0-9]+)`)

// noMessage is the cause of a dead or parked intent whose last outcome has no message.
const noMessage = "no message"

// restCause is why an intent came to rest, for the groups of outbox.Groups: the error's text, or else the message of the
// vendor's answer, without its values.
func (c *claim) restCause(err string, answer []byte) string {
	if err == "" {
		err = cause.Message(answer)
	}
	if shape := cause.Shape(c.withoutValues(err)); shape != "" {
		return shape
	}
	return noMessage
}

// withoutValues removes the payload's values, the keys, the subject and the vendor's reference from a text.
func (c *claim) withoutValues(text string) string {
	return clean(redact.Secrets{Shortest: shortestValue}.With(c.values()...).Text(text), 500)
}

// shortestValue is the length from which a value is removed from a text. Shorter values occur in every text.
const shortestValue = 5

// values must not be in a log: the texts and numbers of the payload, the keys, the subject and the vendor's reference.
// The longest come first, so that no part of a value is left.
func (c *claim) values() []string {
	values := []string{c.IdemKey, c.CarriedKey, c.DeliveryKey.String(), string(c.Payload), c.subject(), c.reference}
	decoder := json.NewDecoder(strings.NewReader(string(c.Payload)))
	decoder.UseNumber()
	for {
		token, err := decoder.Token()
		if err != nil {
			return values
		}
		switch v := token.(type) {
		case string: // members' names too: they may identify a customer
			values = append(values, v)
		case json.Number:
			values = append(values, v.String())
		}
	}
}
