package intent_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/samekey/samekey/internal/intent"
	"github.com/samekey/samekey/samekeytest"
)

func TestTablesAllowTheNamesInCode(t *testing.T) {
	db := samekeytest.NewDB(t)
	for constraint, want := range map[string][]string{
		"outbox_queue_status":         intent.Unfinished,
		"outbox_attention_status":     intent.Told,
		"outbox_history_final_status": intent.Finished,
		"outbox_history_event":        intent.Logged,
		"outbox_history_outcome":      intent.Outcomes,
	} {
		var definition string
		err := db.QueryRow(t.Context(), "select pg_get_constraintdef(oid) from pg_constraint where conname = $1", constraint).Scan(&definition)
		if err != nil {
			t.Fatal(constraint, err)
		}
		if got, want := quoted(definition), slices.Sorted(slices.Values(want)); !slices.Equal(got, want) {
			t.Errorf("%s allows %v, the code %v", constraint, got, want)
		}
	}
}

func TestEachStatusIsReachedAndUnfinishedOnesAreLeft(t *testing.T) {
	for _, status := range statuses {
		reached, left := false, false
		for _, step := range intent.Table {
			reached = reached || slices.Contains(step.To, status)
			left = left || step.From == status && !slices.Contains(step.To, status)
		}
		if !reached {
			t.Errorf("nothing leads to %s", status)
		}
		if left == intent.IsFinished(status) {
			t.Errorf("%s: left %v, finished %v", status, left, intent.IsFinished(status))
		}
	}
}

// An Apply waits for the attention events of its intent once, before it runs: no further one may come after the answer.
func TestNoAttentionEventFollowsTheAnswer(t *testing.T) {
	for _, step := range intent.Table {
		for _, to := range step.To {
			if step.From == intent.Answered && (slices.Contains(intent.Told, to) || !slices.Contains([]string{intent.Answered, intent.Delivered, intent.Refused}, to)) {
				t.Errorf("an answered intent can become %s by %s", to, step.Event)
			}
		}
	}
}

func TestTableNamesEachStepOnce(t *testing.T) {
	seen := map[string]bool{}
	for _, step := range intent.Table {
		for _, to := range step.To {
			text := fmt.Sprintf("%q, %s, %q", step.From, step.Event, to)
			if seen[text] || !slices.Contains(statuses, to) || step.From != intent.New && !slices.Contains(statuses, step.From) {
				t.Errorf("%s is in the table twice, or has an unknown status", text)
			}
			seen[text] = true
			if !intent.Allowed(step.From, step.Event, to) {
				t.Errorf("%s is not allowed", text)
			}
		}
	}
	if intent.Allowed(intent.Delivered, intent.EventAttempt, intent.Pending) {
		t.Error("a finished intent may be sent again")
	}
}

// events lists the events of each query and each SQL function that changes samekey.outbox_queue.
var events = map[string][]string{
	"OutboxAnsweredClaim":    {intent.EventClaimed},
	"OutboxQueueClaim":       {intent.EventClaimed},
	"OutboxQueueMarkSending": {intent.EventClaimed},
	"OutboxQueueRenew":       {},
	"OutboxQueueShareFill":   {},
	"OutboxQueueSettle":      {intent.EventAttempt, intent.EventLookup, intent.EventApply},
	"OutboxQueueFinish":      {intent.EventApply},
	"OutboxQueuePostpone":    {intent.EventPostponed},
	"OutboxQueueSettleLate":  {intent.EventLate},
	"OutboxQueuePromote":     {intent.EventPromoted},
	"OutboxQueueRelease":     {intent.EventOrphaned},
	"OutboxQueueRestore":     {intent.EventRestored},
	"samekey.enqueue":        {intent.EventInserted},
	"samekey.enqueue_many":   {intent.EventInserted},
	"samekey.act_cancelled":  {intent.EventRejected, intent.EventCancelled, intent.EventPromoted},
	"samekey.act_replaced":   {intent.EventReplaced, intent.EventInserted},
	"samekey.approve":        {intent.EventApproved},
	"samekey.act_redriven":   {intent.EventRedriven},
	"samekey.act_resolved":   {intent.EventResolved},
	"samekey.hold_successor": {intent.EventHeld},
}

func TestQueriesMakeOnlyTransitionsOfTheTable(t *testing.T) {
	changes := regexp.MustCompile(`(?i)(update|delete from|insert into) samekey\.outbox_queue\b`)
	for name, text := range queries(t) {
		declared, ok := events[name]
		if changes.MatchString(text) != ok {
			t.Errorf("%s changes the queue: %v, declared here: %v", name, !ok, ok)
		}
		if !ok {
			continue
		}
		possible := []string{intent.Leased} // every query may check whether a lease is held
		for _, step := range intent.Table {
			if slices.Contains(declared, step.Event) {
				possible = append(append(possible, step.From), step.To...)
			}
		}
		for _, status := range named(text) {
			if len(declared) > 0 && !slices.Contains(possible, status) {
				t.Errorf("%s names the status %s, which %v neither leave nor reach", name, status, declared)
			}
		}
	}
	for name := range events {
		if queries(t)[name] == "" {
			t.Errorf("there is no query %s", name)
		}
	}
}

func TestQueriesNameOnlyKnownStatuses(t *testing.T) {
	for name, text := range queries(t) {
		if !strings.HasPrefix(name, "Outbox") {
			continue
		}
		for _, match := range regexp.MustCompile(`(?i)status\s*(?:=|<>|in|not in)\s*(\([^)]*\)|'[a-z_]*')`).FindAllStringSubmatch(text, -1) {
			for _, status := range quoted(match[1]) {
				if status != "" && !slices.Contains(statuses, status) {
					t.Errorf("%s names the status %q, which does not exist", name, status)
				}
			}
		}
	}
}

var statuses = slices.Concat(intent.Unfinished, intent.Finished)

// named returns the statuses that a query compares a row's status with, or sets it to.
func named(text string) (names []string) {
	for _, match := range regexp.MustCompile(`(?is)status\s*(?:=|<>|in|not in)\s*(case .*? end|\([^)]*\)|'[a-z_]*')`).FindAllStringSubmatch(text, -1) {
		for _, name := range quoted(match[1]) {
			if slices.Contains(statuses, name) {
				names = append(names, name)
			}
		}
	}
	return names
}

// queries returns the statements of all query files, and the SQL functions of the migrations, by name.
func queries(t *testing.T) map[string]string {
	t.Helper()
	files, err := filepath.Glob("../../queries/*.sql")
	if err != nil || len(files) == 0 {
		t.Fatalf("no query files: %v", err)
	}
	all := map[string]string{}
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, part := range strings.Split(string(content), "-- name: ")[1:] {
			name, text, _ := strings.Cut(part, " ")
			all[name] = text
		}
	}
	migrations, err := filepath.Glob("../../schema/migrations/*.sql")
	if err != nil || len(migrations) == 0 {
		t.Fatalf("no migrations: %v", err)
	}
	for _, file := range migrations {
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, part := range strings.Split(string(content), "\ncreate function ")[1:] {
			name, text, _ := strings.Cut(part, "(")
			text, _, _ = strings.Cut(text, "\n$$;\n")
			all[name] += text // a name may have several functions
		}
	}
	return all
}

func quoted(text string) (names []string) {
	for _, match := range regexp.MustCompile(`'([a-z_]*)'`).FindAllStringSubmatch(text, -1) {
		names = append(names, match[1])
	}
	slices.Sort(names)
	return names
}
