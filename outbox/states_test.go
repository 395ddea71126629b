package outbox_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/samekey/samekey/outbox"
	"github.com/samekey/samekey/samekeytest"
)

func TestTheTablesAllowExactlyTheStatesInCode(t *testing.T) {
	db := samekeytest.NewDB(t)
	for constraint, want := range map[string][]outbox.Status{
		"outbox_queue_status":         outbox.Unfinished,
		"outbox_history_final_status": outbox.Finished,
	} {
		var definition string
		err := db.QueryRow(t.Context(), "select pg_get_constraintdef(oid) from pg_constraint where conname = $1", constraint).Scan(&definition)
		if err != nil {
			t.Fatal(err)
		}
		if got := quoted(definition); !slices.Equal(got, sorted(want)) {
			t.Errorf("%s names %v, the code %v", constraint, got, sorted(want))
		}
	}
}

func TestEveryStateCanBeReachedAndEveryUnfinishedOneBeLeft(t *testing.T) {
	for _, s := range outbox.Statuses() {
		if !slices.ContainsFunc(outbox.Transitions(), func(c [2]outbox.Status) bool { return c[1] == s }) {
			t.Errorf("nothing leads to %s", s)
		}
		leaves := slices.ContainsFunc(outbox.Transitions(), func(c [2]outbox.Status) bool { return c[0] == s })
		if leaves == s.Finished() {
			t.Errorf("%s: left = %v, finished = %v", s, leaves, s.Finished())
		}
	}
}

// queriesThatChangeStates says of each statement on samekey.outbox_queue which
// changes it makes: what it is told by its caller ("settle" takes any outcome of
// a claimed intent) counts too.
var queriesThatChangeStates = map[string]map[outbox.Status][]outbox.Status{
	"OutboxAnsweredClaim":    {},
	"OutboxQueueClaim":       {outbox.StatusPending: {outbox.StatusLeased}},
	"OutboxQueueSettle":      {outbox.StatusLeased: outcomes(outbox.StatusLeased), outbox.StatusUnknown: outcomes(outbox.StatusUnknown), outbox.StatusAnswered: outcomes(outbox.StatusAnswered)},
	"OutboxQueuePostpone":    {outbox.StatusLeased: {outbox.StatusPending}},
	"OutboxQueueSettleLate":  {outbox.StatusUnknown: {outbox.StatusAnswered}, outbox.StatusParked: {outbox.StatusAnswered}},
	"OutboxQueueFinish":      {outbox.StatusAnswered: {outbox.StatusDelivered, outbox.StatusRefused}},
	"OutboxQueuePromote":     {outbox.StatusBlocked: {outbox.StatusPending}},
	"OutboxQueueRelease":     {outbox.StatusLeased: {outbox.StatusPending, outbox.StatusUnknown}},
	"OutboxQueueRenew":       {},
	"OutboxQueueMarkSending": {},
	"OutboxQueueRestore":     {"": {outbox.StatusPending}},
	"OutboxOperatorCancel": {outbox.StatusPending: {outbox.StatusCancelled}, outbox.StatusBlocked: {outbox.StatusCancelled}, outbox.StatusAwaitingApproval: {outbox.StatusCancelled},
		outbox.StatusParked: {outbox.StatusCancelled}, outbox.StatusDead: {outbox.StatusCancelled}},
	"OutboxOperatorApprove":    {outbox.StatusAwaitingApproval: {outbox.StatusPending}},
	"OutboxOperatorResolve":    {outbox.StatusUnknown: {outbox.StatusAnswered, outbox.StatusParked}, outbox.StatusParked: {outbox.StatusAnswered}, outbox.StatusDead: {outbox.StatusAnswered}},
	"OutboxOperatorRedrive":    {outbox.StatusParked: {outbox.StatusPending}, outbox.StatusDead: {outbox.StatusPending}},
	"OutboxOperatorRedriveAll": {outbox.StatusParked: {outbox.StatusPending}, outbox.StatusDead: {outbox.StatusPending}},
}

// outcomes are the states that the table lets a claimed intent go to.
func outcomes(from outbox.Status) (to []outbox.Status) {
	for _, c := range outbox.Transitions() {
		if c[0] == from {
			to = append(to, c[1])
		}
	}
	return to
}

func TestQueriesMakeOnlyListedTransitions(t *testing.T) {
	changes := regexp.MustCompile(`(?i)(update|delete from|insert into) samekey\.outbox_queue\b`)
	found := []string{}
	for name, text := range queries(t) {
		if changes.MatchString(text) {
			found = append(found, name)
		}
	}
	declared := []string{}
	for name, moves := range queriesThatChangeStates {
		declared = append(declared, name)
		for from, to := range moves {
			for _, s := range to {
				if !slices.ContainsFunc(outbox.Transitions(), func(c [2]outbox.Status) bool { return c == [2]outbox.Status{from, s} }) {
					t.Errorf("%s: %q -> %q is not in the table", name, from, s)
				}
			}
		}
	}
	slices.Sort(found)
	slices.Sort(declared)
	if !slices.Equal(found, declared) {
		t.Errorf("queries that change the queue: %v\ndeclared here: %v", found, declared)
	}
}

func TestEveryStateThatAQueryNamesExists(t *testing.T) {
	status := regexp.MustCompile(`(?i)status\s*(?:=|<>|in|not in)\s*(\([^)]*\)|'[a-z_]*')`)
	for name, text := range queries(t) {
		if !strings.HasPrefix(name, "Outbox") {
			continue
		}
		for _, match := range status.FindAllStringSubmatch(text, -1) {
			for _, s := range quoted(match[1]) {
				if s != "" && !slices.Contains(outbox.Statuses(), outbox.Status(s)) {
					t.Errorf("%s names the state %q, which is none", name, s)
				}
			}
		}
	}
}

// queries are the statements of all query files, by name.
func queries(t *testing.T) map[string]string {
	t.Helper()
	files, err := filepath.Glob("../queries/*.sql")
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
	return all
}

func quoted(text string) (names []string) {
	for _, match := range regexp.MustCompile(`'([a-z_]*)'`).FindAllStringSubmatch(text, -1) {
		names = append(names, match[1])
	}
	slices.Sort(names)
	return names
}

func sorted(states []outbox.Status) (names []string) {
	for _, s := range states {
		names = append(names, string(s))
	}
	slices.Sort(names)
	return names
}
