package dispatcher

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"

	"github.com/samekey/samekey/schema"
)

// This is the only file that imports River. The outbox holds the truth, River gives the permit to drain: a drain is a
// River job that is harmless to lose, to repeat or to run twice. Nothing waits for River: see shift.go. River also runs
// the periodic tasks of upkeep.go.

// upkeepQueue is where the periodic jobs run.
const upkeepQueue = "samekey"

type drainArgs struct {
	Destination string `json:"destination"`
}

func (drainArgs) Kind() string { return "samekey.drain" }

// drainWorker runs a destination's shift as a River job.
type drainWorker struct {
	river.WorkerDefaults[drainArgs]
	worker *worker
	stop   context.Context //nolint:containedctx // ends when the dispatcher stops: before River's own stop
}

// Timeout is the shift and a margin: River's default of a minute would cut a longer shift, and without one a killed
// drain would stay "running" forever.
func (w *drainWorker) Timeout(*river.Job[drainArgs]) time.Duration {
	return w.worker.times.shift + time.Minute
}

func (w *drainWorker) Work(ctx context.Context, job *river.Job[drainArgs]) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(w.stop, cancel)()
	for _, d := range w.worker.destinations.list {
		if d.name == job.Args.Destination {
			d.shiftOf(ctx)
		}
	}
	return nil
}

// upkeepArgs is a periodic job that River's leader inserts and any worker runs. Each has a short interval, since
// schedules live in the leader's memory and start again with each leader.
type upkeepArgs struct {
	Task string `json:"task"`
}

func (upkeepArgs) Kind() string { return "samekey.upkeep" }

func periodicJobs() (jobs []*river.PeriodicJob) {
	for task, interval := range upkeepTasks {
		jobs = append(jobs, river.NewPeriodicJob(river.PeriodicInterval(interval), func() (river.JobArgs, *river.InsertOpts) {
			return upkeepArgs{Task: task}, &river.InsertOpts{Queue: upkeepQueue, MaxAttempts: 1}
		}, &river.PeriodicJobOpts{RunOnStart: true}))
	}
	return jobs
}

type upkeepWorker struct {
	river.WorkerDefaults[upkeepArgs]
	upkeep *upkeep
	stop   context.Context //nolint:containedctx // as of a drainWorker: upkeep can wait, a stop cannot
}

func (w *upkeepWorker) Timeout(*river.Job[upkeepArgs]) time.Duration { return time.Minute }

func (w *upkeepWorker) Work(ctx context.Context, job *river.Job[upkeepArgs]) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(w.stop, cancel)()
	// River stores the error's text, and one NUL byte in it would wedge its completer.
	if err := w.upkeep.run(ctx, job.Args.Task); err != nil {
		return errors.New(clean(err.Error(), errorLimit))
	}
	return nil
}

// riverPart is River in one Run.
type riverPart struct {
	worker  *worker
	client  *river.Client[pgx.Tx]
	started chan struct{} // closed when River has started
}

func newRiver(stop context.Context, n *worker) (*riverPart, error) {
	workers := river.NewWorkers()
	river.AddWorker(workers, &drainWorker{worker: n, stop: stop})
	river.AddWorker(workers, &upkeepWorker{upkeep: newUpkeep(n.core), stop: stop})

	queues := map[string]river.QueueConfig{upkeepQueue: {MaxWorkers: 2}}
	for _, d := range n.destinations.list {
		queues[d.queue] = river.QueueConfig{MaxWorkers: 1}
	}
	client, err := river.NewClient(riverpgxv5.New(n.pool), &river.Config{
		Schema:       schema.Name,
		Queues:       queues,
		Workers:      workers,
		PeriodicJobs: periodicJobs(),
		Logger:       slog.New(warnings{n.log.Handler(), func() bool { return !n.session.holds() }}),

		// Finished drains are of no use.
		CompletedJobRetentionPeriod: 10 * time.Minute,
		CancelledJobRetentionPeriod: 10 * time.Minute,
		DiscardedJobRetentionPeriod: time.Hour,
		RescueStuckJobsAfter:        2*n.times.shift + 2*time.Minute,
		// The worker's role does not own River's tables, and may not reindex them.
		ReindexerIndexNames: []string{},
		SoftStopTimeout:     n.config.StopTimeout,
	})
	if err != nil {
		return nil, fmt.Errorf("dispatcher: make River's client: %w", err)
	}
	return &riverPart{worker: n, client: client, started: make(chan struct{})}, nil
}

// start starts River, which needs the database for that, however long it is unavailable. Nothing waits for it: see
// shift.go. River's pauses are copied first: River deletes the rows of queues that had no client for a day.
func (r *riverPart) start(ctx context.Context) {
	for retry := (doubling{first: sessionRetry, most: sessionCheck}); ; {
		mirroring, cancel := context.WithTimeout(ctx, sessionTimeout)
		err := mirrorPauses(mirroring, r.worker.q, r.worker.log)
		cancel()
		if err == nil {
			// Only stop ends River: cancelling the context of its Start is a stop of another kind.
			err = callRiver(func() error { return r.client.Start(context.WithoutCancel(ctx)) })
		}
		if err == nil {
			close(r.started)
			return
		}
		if ctx.Err() == nil {
			r.worker.log.WarnContext(ctx, "dispatcher: River does not start yet", slog.String("error", errorText(err)))
		}
		if !retry.sleep(ctx) {
			return
		}
	}
}

// stop ends River, its jobs first.
func (r *riverPart) stop() {
	ctx, cancel := context.WithTimeout(context.Background(), r.worker.times.stopMargin)
	defer cancel()
	err := callRiver(func() error { return r.client.Stop(ctx) })
	if err == nil {
		return
	}
	r.worker.log.WarnContext(ctx, "dispatcher: River takes long to stop and is cut off", slog.String("error", errorText(err)))
	hard, cancelHard := context.WithTimeout(context.Background(), r.worker.times.stopMargin)
	defer cancelHard()
	_ = callRiver(func() error { return r.client.StopAndCancel(hard) })
}

// ask asks River for a drain of the destination, once River has started, and returns the job's id.
func (r *riverPart) ask(ctx context.Context, d *destination) (id int64, err error) {
	select {
	case <-r.started:
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	ctx, cancel := context.WithTimeout(ctx, sessionTimeout)
	defer cancel()
	err = callRiver(func() error {
		// InsertMany, since Insert panics if a trigger keeps the row out.
		inserted, err := r.client.InsertMany(ctx, []river.InsertManyParams{{
			Args: drainArgs{Destination: d.name}, InsertOpts: &river.InsertOpts{Queue: d.queue, MaxAttempts: 1}}})
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

// forget deletes a job that River did not begin in time.
func (r *riverPart) forget(ctx context.Context, id int64) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	if _, err := r.worker.q.RiverDrainDelete(ctx, id); err != nil {
		r.worker.log.DebugContext(ctx, "dispatcher: a drain job stays in River's table", slog.Int64("job", id), slog.String("error", errorText(err)))
	}
}

// callRiver calls into River. A panic there becomes an error: River is not needed to deliver, and must not end the
// worker.
func callRiver(fn func() error) error {
	_, err := guard(func() (struct{}, error) { return struct{}{}, fn() })
	return err
}

// warnings keeps River's own chatter out of the application's logs. Its warnings are passed on, except while this
// worker has lost its session: then each part of River would repeat what one line has said.
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
