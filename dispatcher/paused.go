package dispatcher

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
)

// mirrorPauses holds River's pauses and their copies in samekey.pauses to each other; see queries/pauses.sql.
func (n *node) mirrorPauses(ctx context.Context) error {
	if err := n.q.PausesExpire(ctx); err != nil {
		return fmt.Errorf("dispatcher: end pauses whose time is over: %w", err)
	}
	changes, err := n.q.PausesSyncRiver(ctx)
	if err != nil {
		return fmt.Errorf("dispatcher: copy River's pauses: %w", err)
	}
	for _, change := range changes {
		text := map[string]string{
			"copied":   "dispatcher: the destination is paused in River; the pause is kept in samekey.pauses",
			"ended":    "dispatcher: the destination was resumed in River",
			"restored": "dispatcher: River had lost the pause of the destination; it is paused again",
		}[change.Change]
		n.log.InfoContext(ctx, text, slog.String("destination", clean(change.Destination, codeLimit)))
	}
	return nil
}

// setPaused takes what a sweep saw: actions, "" for all. A claim sees for itself; this keeps the lane from asking.
func (l *lane) setPaused(paused map[string]bool) {
	l.mu.Lock()
	changed := !maps.Equal(l.paused, paused)
	l.paused = paused
	l.mu.Unlock()
	if !changed {
		return
	}
	if len(paused) == 0 {
		l.node.log.Info("dispatcher: no pause is in force any more", slog.String("destination", l.name))
		return
	}
	for action := range paused {
		l.node.log.Info("dispatcher: paused: nothing is claimed until it is resumed (outbox.Resume, worker resume)",
			slog.String("destination", l.name), slog.String("action", action))
	}
}
