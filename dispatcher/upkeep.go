package dispatcher

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/samekey/samekey/internal/db"
	"github.com/samekey/samekey/processed"
)

// upkeepTasks are the periodic tasks, with how often they run. Each is harmless to skip or to run twice.
var upkeepTasks = map[string]time.Duration{
	"statistics": 15 * time.Second, // one scan of the queue
	"prune":      time.Minute,
	"forget":     30 * time.Minute, // one look at each intent
	"reconcile":  time.Minute,
}

// upkeep tidies the tables and counts what is in them. River decides when, see river.go.
type upkeep struct {
	core *core
	mu   sync.Mutex
	last uuid.UUID // how far reconcile has read
}

func newUpkeep(c *core) *upkeep { return &upkeep{core: c} }

func (u *upkeep) run(ctx context.Context, task string) error {
	switch task {
	case "statistics":
		return u.statistics(ctx)
	case "prune":
		return u.prune(ctx, -1)
	case "forget":
		return errors.Join(u.prune(ctx, u.core.config.Retention), u.core.q.EndpointHistoryPrune(ctx))
	case "reconcile":
		return u.reconcile(ctx)
	}
	return fmt.Errorf("dispatcher: upkeep %q is not known to this release", task)
}

// statistics counts the queue, and reports actions that no live worker handles: their intents wait.
func (u *upkeep) statistics(ctx context.Context) error {
	if err := u.core.q.OutboxStatsRefresh(ctx); err != nil {
		return fmt.Errorf("dispatcher: take statistics: %w", err)
	}
	unhandled, err := u.core.q.OutboxStatsUnhandled(ctx)
	if err != nil {
		return fmt.Errorf("dispatcher: read statistics: %w", err)
	}
	for _, row := range unhandled {
		u.core.log.ErrorContext(ctx, "dispatcher: no live worker handles this action; its intents wait",
			slog.String("action", clean(row.Action, codeLimit)), slog.Int64("intents", row.Intents))
	}
	if err := u.core.q.PausesPrune(ctx); err != nil {
		return fmt.Errorf("dispatcher: tidy pauses: %w", err)
	}
	return u.core.q.WorkersPrune(ctx)
}

// prune deletes what is past its retention. One pass that does not end within the job's time is no loss: each of its
// transactions lasts, and the next pass goes on.
//
// Intents without a record are found by a look at each intent, and so more rarely: a negative retention leaves them
// out.
func (u *upkeep) prune(ctx context.Context, retention time.Duration) error {
	began := time.Now()
	pruned, err := processed.Prune(ctx, u.core.pool, processed.Pruning{IntentRetain: retention, ArchiveFunction: u.core.config.ArchiveFunction})
	if pruned.Records+pruned.Intents > 0 {
		u.core.log.InfoContext(ctx, "dispatcher: pruned", slog.Int64("records", pruned.Records), slog.Int64("intents", pruned.Intents),
			slog.Int64("kept", pruned.Kept), slog.Duration("took", time.Since(began)))
	}
	if pruned.Abandoned > 0 {
		u.core.log.ErrorContext(ctx, "dispatcher: operations are past their retention and not completed; see docs/steps.md",
			slog.Int64("operations", pruned.Abandoned))
	}
	if failed, ok := errors.AsType[*processed.ArchiveError](err); ok && ctx.Err() == nil {
		u.core.log.ErrorContext(ctx, "dispatcher: the archive function failed; its rows were kept, and the next prune calls it again: correct the function",
			slog.String("function", failed.Function), slog.String("error", errorText(failed.Err)))
		return nil
	}
	if err != nil && ctx.Err() == nil {
		return fmt.Errorf("dispatcher: %w", err)
	}
	return nil
}

const (
	reconcilePage  = 5000
	reconcilePages = 20
)

// reconcile reads on through the outbox from where it ended last time, and gives intents that have neither a queue row
// nor an end their queue row back.
func (u *upkeep) reconcile(ctx context.Context) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	for range reconcilePages {
		page, err := u.core.q.OutboxQueueRestore(ctx, db.OutboxQueueRestoreParams{After: u.last, MaxCount: reconcilePage})
		if err != nil {
			return fmt.Errorf("dispatcher: reconcile: %w", err)
		}
		for _, row := range page {
			if row.Restored {
				u.core.log.ErrorContext(ctx, "dispatcher: an intent had lost its queue row; it was given back", slog.Any("intent", row.ID))
			}
		}
		if len(page) < reconcilePage {
			u.last = uuid.UUID{}
			return nil
		}
		u.last = page[len(page)-1].ID
	}
	return nil
}
