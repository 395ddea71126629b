package dispatcher

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"
)

// repeats is a handler that logs a repeated line once, and then how often it was repeated. A database that is down for
// a minute would otherwise fill the log with the same line, and hide the one that says why.
//
// Two records are the same line if level, message and attributes are the same, but for the attributes that [counts]
// names. The first is logged at once. What comes within the next repeatFirst is counted; the next one after it is
// logged with repeated=N, and the time doubles, up to repeatMost. A line that was not seen for twice its time is new
// again. A line about one intent is logged each time: the history of an intent has to be found by its id.
//
// A count that is waiting when nothing more comes is logged by the next line of any kind after its time, or by flush.
type repeats struct {
	slog.Handler
	attrs  string // of WithAttrs and WithGroup, as part of a line's identity
	intent bool   // one of them is an intent
	seen   *seenLines
}

const (
	repeatFirst = 10 * time.Second
	repeatMost  = 10 * time.Minute
	// repeatLines bounds what is remembered. Lines hold no free text of vendors, so that there are few kinds.
	repeatLines = 1000
)

type seenLines struct {
	mu    sync.Mutex
	lines map[string]*seenLine
}

type seenLine struct {
	handler slog.Handler // of the last record
	record  slog.Record  // the last one
	count   int          // not logged yet
	every   time.Duration
	until   time.Time // what comes before is counted
}

func newRepeats(h slog.Handler) *repeats {
	return &repeats{Handler: h, seen: &seenLines{lines: map[string]*seenLine{}}}
}

// counts are attributes that differ from one repetition to the next.
var counts = []string{"outcomes", "intents", "took", "again_in"}

func (h *repeats) WithAttrs(attrs []slog.Attr) slog.Handler {
	with := *h
	with.Handler = h.Handler.WithAttrs(attrs)
	for _, a := range attrs {
		with.attrs += "\x00" + a.String()
		with.intent = with.intent || a.Key == "intent"
	}
	return &with
}

func (h *repeats) WithGroup(name string) slog.Handler {
	with := *h
	with.Handler, with.attrs = h.Handler.WithGroup(name), h.attrs+"\x00"+name
	return &with
}

func (h *repeats) Handle(ctx context.Context, r slog.Record) error {
	id, intent := h.identify(r)
	if r.Level < slog.LevelWarn || intent {
		return h.Handler.Handle(ctx, r)
	}
	due, log := h.seen.note(h.Handler, id, r, time.Now())
	for _, line := range due {
		_ = line.handler.Handle(ctx, line.record)
	}
	if !log {
		return nil
	}
	return h.Handler.Handle(ctx, r)
}

func (h *repeats) identify(r slog.Record) (id string, intent bool) {
	var b strings.Builder
	b.WriteString(r.Level.String() + "\x00" + r.Message + h.attrs)
	intent = h.intent
	r.Attrs(func(a slog.Attr) bool {
		intent = intent || a.Key == "intent"
		if !slices.Contains(counts, a.Key) {
			b.WriteString("\x00" + a.String())
		}
		return true
	})
	return b.String(), intent
}

// note takes a record, and returns whether to log it, and the counts of other lines that have waited long enough.
func (s *seenLines) note(h slog.Handler, id string, r slog.Record, now time.Time) (due []seenLine, log bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for other, line := range s.lines {
		if now.Before(line.until) {
			continue
		}
		if other == id && now.Before(line.until.Add(line.every)) {
			continue
		}
		if line.count > 0 {
			due = append(due, line.counted())
		}
		delete(s.lines, other)
	}
	line := s.lines[id]
	switch {
	case line == nil:
		if len(s.lines) < repeatLines {
			s.lines[id] = &seenLine{handler: h, every: repeatFirst, until: now.Add(repeatFirst)}
		}
		return due, true
	case now.Before(line.until):
		line.handler, line.record = h, r.Clone()
		line.count++
		return due, false
	}
	line.handler, line.record = h, r.Clone()
	line.count++
	due = append(due, line.counted())
	line.count, line.every = 0, min(2*line.every, repeatMost)
	line.until = now.Add(line.every)
	return due, false
}

func (l *seenLine) counted() seenLine {
	out := *l
	out.record = l.record.Clone()
	out.record.AddAttrs(slog.Int("repeated", l.count))
	return out
}

// flush logs the counts that are waiting.
func (h *repeats) flush(ctx context.Context) {
	h.seen.mu.Lock()
	var due []seenLine
	for _, line := range h.seen.lines {
		if line.count > 0 {
			due = append(due, line.counted())
		}
	}
	clear(h.seen.lines)
	h.seen.mu.Unlock()
	for _, line := range due {
		_ = line.handler.Handle(ctx, line.record)
	}
}
