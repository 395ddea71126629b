package dispatcher

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"

	"github.com/samekey/samekey/schema"
)

// The outbox carries the truth, River carries the permit to drain: a drain is a River job that is harmless to lose, to
// repeat or to run twice. Nothing waits for River: see shift.go.

// queueName is the River queue of a destination.
func queueName(destination string) string { return "samekey_" + destination }

// upkeepQueue is where the periodic jobs run.
const upkeepQueue = "samekey"

type drainArgs struct {
	Destination string `json:"destination"`
}

func (drainArgs) Kind() string { return "samekey.drain" }

// drainWorker runs a lane's shift as a River job.
type drainWorker struct {
	river.WorkerDefaults[drainArgs]
	node *node
	stop context.Context //nolint:containedctx // ends when the dispatcher stops: before River's own stop
}

// Timeout is the shift and a margin: River's default of a minute would cut a longer shift, and without one a killed
// drain would stay "running" forever.
func (w *drainWorker) Timeout(*river.Job[drainArgs]) time.Duration { return w.node.shift + time.Minute }

func (w *drainWorker) Work(ctx context.Context, job *river.Job[drainArgs]) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(w.stop, cancel)()
	for _, lane := range w.node.lanes {
		if lane.name == job.Args.Destination {
			lane.shiftOf(ctx)
		}
	}
	return nil
}

type riverClient = river.Client[pgx.Tx]

// warnings keeps River's own chatter out of the application's logs: what it warns of is passed on, but for the time in which
// this worker has lost its session: then each part of River says again what one line has said.
type warnings struct {
	slog.Handler
	lost func() bool
}

func (w warnings) Enabled(ctx context.Context, level slog.Level) bool {
	return level >= slog.LevelWarn && !w.lost() && w.Handler.Enabled(ctx, level)
}

func (w warnings) WithAttrs(attrs []slog.Attr) slog.Handler {
	return warnings{w.Handler.WithAttrs(attrs), w.lost}
}
func (w warnings) WithGroup(name string) slog.Handler {
	return warnings{w.Handler.WithGroup(name), w.lost}
}

func (n *node) newRiver(stop context.Context) (*riverClient, error) {
	workers := river.NewWorkers()
	river.AddWorker(workers, &drainWorker{node: n, stop: stop})
	river.AddWorker(workers, &upkeepWorker{upkeep: newUpkeep(n), stop: stop})

	queues := map[string]river.QueueConfig{upkeepQueue: {MaxWorkers: 2}}
	for _, lane := range n.lanes {
		queues[lane.queue] = river.QueueConfig{MaxWorkers: 1}
	}
	return river.NewClient(riverpgxv5.New(n.pool), &river.Config{
		Schema:       schema.Name,
		Queues:       queues,
		Workers:      workers,
		PeriodicJobs: periodicJobs(),
		Logger:       slog.New(warnings{n.log.Handler(), func() bool { return !n.session.holds() }}),

		// Finished drains are of no use.
		CompletedJobRetentionPeriod: 10 * time.Minute,
		CancelledJobRetentionPeriod: 10 * time.Minute,
		DiscardedJobRetentionPeriod: time.Hour,
		RescueStuckJobsAfter:        2*n.shift + 2*time.Minute,
		// The worker's role does not own River's tables, and may not reindex them.
		ReindexerIndexNames: []string{},
		SoftStopTimeout:     n.config.StopTimeout,
	})
}

// guarded calls into River. A panic there becomes an error: River is not needed to deliver, and must not end the worker.
func guarded(fn func() error) error {
	_, err := guard(func() (struct{}, error) { return struct{}{}, fn() })
	return err
}

// insertDrain asks River for a drain of the lane, and returns the job's id.
func (n *node) insertDrain(ctx context.Context, client *riverClient, l *lane) (id int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, sessionTimeout)
	defer cancel()
	err = guarded(func() error {
		// InsertMany, since Insert panics where a trigger keeps the row out.
		inserted, err := client.InsertMany(ctx, []river.InsertManyParams{{
			Args: drainArgs{Destination: l.name}, InsertOpts: &river.InsertOpts{Queue: l.queue, MaxAttempts: 1}}})
		if err == nil && len(inserted) == 0 {
			return errors.New("River inserted no row: look for a trigger on samekey.river_job")
		}
		if err == nil {
			id = inserted[0].Job.ID
		}
		return err
	})
	return id, err
}

// forgetDrain deletes a job that River did not begin in time.
func (n *node) forgetDrain(ctx context.Context, id int64) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	if _, err := n.q.RiverDrainDelete(ctx, id); err != nil {
		n.log.DebugContext(ctx, "dispatcher: a drain job stays in River's table", slog.Int64("job", id), slog.String("error", errorText(err)))
	}
}
