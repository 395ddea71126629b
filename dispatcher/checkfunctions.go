package dispatcher

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/samekey/samekey/internal/appfunction"
)

// The checks of SQL functions that a worker makes at its start, with its own role: application code must never run with
// the worker's rights.

// checkFunctions returns what is wrong with the functions of the configuration and of the actions, as [ConfigErrors], or
// the database's error.
func checkFunctions(ctx context.Context, conn *pgx.Conn, archive string, actions []*action) error {
	ctx, cancel := context.WithTimeout(ctx, sessionTimeout)
	defer cancel()
	var errs ConfigErrors
	look := func(item, field, name string) error {
		if name == "" {
			return nil
		}
		found, err := appfunction.LookAt(ctx, conn, name)
		if err != nil {
			return fmt.Errorf("dispatcher: look at the function %s: %w", name, err)
		}
		for _, mistake := range found.Mistakes() {
			errs.addEach(item, field, mistake)
		}
		return nil
	}
	if err := look(itemConfig, "ArchiveFunction", archive); err != nil {
		return err
	}
	for _, a := range actions {
		for _, of := range []struct{ field, name string }{{"ApplyFunction", a.applyFunction}, {"AttentionFunction", a.attentionFunction}} {
			if err := look(itemAction(a.name), of.field, of.name); err != nil {
				return err
			}
		}
	}
	return errs.Err()
}

// addEach adds a mistake beside others in the same field.
func (e *ConfigErrors) addEach(item, field, reason string) {
	*e = append(*e, &ConfigError{Item: item, Field: field, Reason: reason, format: "%s", args: []any{reason}})
}
