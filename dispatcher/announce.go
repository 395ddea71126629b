package dispatcher

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/samekey/samekey/internal/intent"
	"github.com/samekey/samekey/internal/wake"
)

// announcer tells the processes that wait for intents (outbox.Await) which ones have ended: are finished or rest. It
// does so after the commit that ends them and in a statement of its own, since NOTIFY in a transaction makes commits
// wait for each other. It announces nothing unless a process has told the workers lately that it waits for ends of the
// action. So without a call of Await it costs one lookup in a map for each settlement, and the database nothing.
//
// An announcement may be lost: a process that waits reads the states every second. outbox/listener.go has the
// interleavings.
type announcer struct {
	pool *pgxpool.Pool

	mu      sync.Mutex
	awaited map[string]time.Time // the worker's actions, and when each was last awaited
	ended   []string             // ids to announce
	sending bool
}

const (
	announceBatch   = 200                  // ids in one notification, which may have 8,000 bytes
	announceMost    = 10_000               // ids that wait to be announced; more are left out
	announcePause   = 2 * time.Millisecond // after each statement: what ends meanwhile is announced together
	announceTimeout = 3 * time.Second      // by then the waiting processes have read the states themselves
)

func newAnnouncer(pool *pgxpool.Pool) *announcer {
	return &announcer{pool: pool, awaited: map[string]time.Time{}}
}

// add makes the action one of the worker's.
func (a *announcer) add(action string) { a.awaited[action] = time.Time{} }

// hear takes that a process waits for ends of the action.
func (a *announcer) hear(action string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if _, ours := a.awaited[action]; ours {
		a.awaited[action] = time.Now()
	}
}

// settled takes the status in which a commit has left the intent of a claim.
func (a *announcer) settled(c *claim, status string) {
	if !intent.IsFinished(status) && !slices.Contains(intent.Resting, status) {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if time.Since(a.awaited[c.action.name]) > wake.AwaitedFor || len(a.ended) >= announceMost {
		return
	}
	a.ended = append(a.ended, c.ID.String())
	if !a.sending {
		a.sending = true
		go a.send()
	}
}

// send announces until there is nothing left.
func (a *announcer) send() {
	for {
		ended := a.take()
		if len(ended) == 0 {
			return
		}
		a.announce(ended)
		time.Sleep(announcePause)
	}
}

func (a *announcer) take() (ended []string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	ended, a.ended = a.ended, nil
	a.sending = len(ended) > 0
	return ended
}

// announce makes one round trip. Its commit does not wait for the disk, since it stores nothing. An error is dropped: it
// is that of a database or a pool that the settlements report.
func (a *announcer) announce(ended []string) {
	ctx, cancel := context.WithTimeout(context.Background(), announceTimeout)
	defer cancel()
	var payloads []string
	for ids := range slices.Chunk(ended, announceBatch) {
		payloads = append(payloads, strings.Join(ids, ","))
	}
	_, _ = a.pool.Exec(ctx, `select set_config('synchronous_commit', 'off', true), pg_notify($1::text, p.payload)
		from unnest($2::text[]) as p (payload)`, wake.Ended, payloads)
}
