package dispatcher

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/samekey/samekey/internal/db"
)

// mirrorPauses keeps River's pauses and their copies in samekey.pauses the same; see queries/pauses.sql.
func mirrorPauses(ctx context.Context, q *db.Queries, log *slog.Logger) error {
	if err := q.PausesExpire(ctx); err != nil {
		return fmt.Errorf("dispatcher: end pauses whose time is over: %w", err)
	}
	changes, err := q.PausesSyncRiver(ctx)
	if err != nil {
		return fmt.Errorf("dispatcher: copy River's pauses: %w", err)
	}
	for _, change := range changes {
		text := map[string]string{
			"copied":   "dispatcher: the destination is paused in River; the pause is kept in samekey.pauses",
			"ended":    "dispatcher: the destination was resumed in River",
			"restored": "dispatcher: River had lost the pause of the destination; it is paused again",
		}[change.Change]
		log.InfoContext(ctx, text, slog.String("destination", clean(change.Destination, codeLimit)))
	}
	return nil
}
