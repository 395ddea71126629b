package dispatcher

import (
	"context"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"

	"github.com/samekey/samekey/internal/db"
	"github.com/samekey/samekey/schema"
)

// The outbox carries the truth, River carries the wake-up: a drain is a River job that is harmless to lose, to repeat
// or to run twice.

// queueName is the River queue of a destination.
func queueName(destination string) string { return "samekey_" + destination }

// upkeepQueue is where the periodic jobs run.
const upkeepQueue = "samekey"

type drainArgs struct {
	Destination string `json:"destination"`
}

func (drainArgs) Kind() string { return "samekey.drain" }

// drainWorker runs a lane's drain as a River job.
type drainWorker struct {
	river.WorkerDefaults[drainArgs]
	node  *node
	start func(*lane)
	stop  context.Context // ends when the dispatcher stops: before River's own stop
}

// Timeout is the shift and a margin: River's default of a minute would cut a longer shift, and without one a killed
// drain would stay "running" for ever.
func (w *drainWorker) Timeout(*river.Job[drainArgs]) time.Duration { return w.node.shift + time.Minute }

func (w *drainWorker) Work(ctx context.Context, job *river.Job[drainArgs]) error {
	for _, lane := range w.node.lanes {
		if lane.name == job.Args.Destination && lane.begin() {
			w.drain(ctx, lane)
		}
	}
	return nil
}

func (w *drainWorker) drain(ctx context.Context, lane *lane) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(w.stop, cancel)()
	err := func() error {
		defer lane.end() // also when it panics, or this node would start no drain of the lane again
		return lane.drain(ctx, w.node.shift, w.node.linger)
	}()
	if err == nil && w.stop.Err() == nil && lane.flagged() {
		w.start(lane) // the next drain goes on at once
	}
}

type riverClient = river.Client[pgx.Tx]

// warnings keeps River's own chatter out of the application's logs: what it warns of is passed on.
type warnings struct{ slog.Handler }

func (w warnings) Enabled(ctx context.Context, level slog.Level) bool {
	return level >= slog.LevelWarn && w.Handler.Enabled(ctx, level)
}

func (w warnings) WithAttrs(attrs []slog.Attr) slog.Handler {
	return warnings{w.Handler.WithAttrs(attrs)}
}
func (w warnings) WithGroup(name string) slog.Handler { return warnings{w.Handler.WithGroup(name)} }

func (n *node) newRiver(stop context.Context, start func(*lane)) (*riverClient, error) {
	workers := river.NewWorkers()
	river.AddWorker(workers, &drainWorker{node: n, start: start, stop: stop})
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
		Logger:       slog.New(warnings{n.log.Handler()}),

		// Finished drains are of no use to anybody.
		CompletedJobRetentionPeriod: 10 * time.Minute,
		CancelledJobRetentionPeriod: 10 * time.Minute,
		DiscardedJobRetentionPeriod: time.Hour,
		RescueStuckJobsAfter:        2*n.shift + 2*time.Minute,
		// The worker's role does not own River's tables, and may not reindex them.
		ReindexerIndexNames: []string{},
		SoftStopTimeout:     n.config.StopTimeout,
	})
}

// starter returns what sees to it that a drain runs for a lane: it pokes the one that does, or inserts a drain job
// where this node runs none, the queue is not paused and none waits to be fetched.
func (n *node) starter(ctx context.Context, client func() *riverClient) func(*lane) {
	const patience = time.Second // for River to fetch what was inserted
	return func(l *lane) {
		river := client()
		if river == nil || !l.ask(patience) {
			return
		}
		if err := n.insertDrain(ctx, river, l); err != nil && ctx.Err() == nil {
			n.log.WarnContext(ctx, "dispatcher: a drain could not be inserted; the next sweep tries again",
				slog.String("destination", l.name), slog.String("error", errorText(err)))
		}
	}
}

func (n *node) insertDrain(ctx context.Context, client *riverClient, l *lane) error {
	ctx, cancel := context.WithTimeout(ctx, sessionTimeout)
	defer cancel()
	waits, err := n.q.RiverDrainWaits(ctx, db.RiverDrainWaitsParams{Queue: l.queue, Kind: drainArgs{}.Kind()})
	if err != nil || waits {
		return err
	}
	_, err = client.Insert(ctx, drainArgs{Destination: l.name}, &river.InsertOpts{Queue: l.queue, MaxAttempts: 1})
	return err
}
