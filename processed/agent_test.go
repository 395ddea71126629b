package processed_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/samekey/samekey"
	"github.com/samekey/samekey/outbox"
	"github.com/samekey/samekey/processed"
)

// remind is a tool of an agent: a row, and a mail that is sent once for each call. Where midway is not nil it is called
// before the commit.
func remind(ctx context.Context, pool *pgxpool.Pool, value string, arguments []byte, midway func()) (processed.Result[order], error) {
	key, err := samekey.NewKey(value, "acme", "remind")
	if err != nil {
		return processed.Result[order]{}, err
	}
	return processed.Run(ctx, pool, processed.Request{Key: key, Payload: arguments}, func(ctx context.Context, tx pgx.Tx) (order, error) {
		made := order{ID: uuid.NewString(), Amount: 1}
		if _, err := tx.Exec(ctx, "insert into orders (id, amount) values ($1, $2)", made.ID, made.Amount); err != nil {
			return order{}, err
		}
		_, err := outbox.Insert(ctx, tx, outbox.Intent{Action: "send_mail", Payload: json.RawMessage(arguments)})
		if midway != nil {
			midway()
		}
		return made, err
	})
}

// step is one tool call of a run, as it is saved.
type step struct {
	CallID    string
	Arguments string
	Answer    *order // of a step that is done
}

// run is an agent's run of so many steps. What is saved is a text and survives a process; the rest is the process.
type run struct {
	id    string
	size  int
	saved string
	// keyOf is how the harness makes its keys.
	keyOf func(r *run, i int, s step) (string, error)
	every int // steps between two checkpoints; with 1, also before each call
	asked int // how often the model was asked
}

var errKilled = errors.New("killed")

// resume goes on from the checkpoint, until the end or until the process is killed at the step and place given. It
// returns what the steps answered and how many of the calls that it made were replays.
func (r *run) resume(ctx context.Context, pool *pgxpool.Pool, killAt int, place string) (steps []step, replays int, err error) {
	if r.saved != "" {
		if err := json.Unmarshal([]byte(r.saved), &steps); err != nil {
			return nil, 0, err
		}
	}
	save := func() {
		text, _ := json.Marshal(steps)
		r.saved = string(text)
	}
	for i := 0; i < r.size; i++ {
		if i < len(steps) && steps[i].Answer != nil {
			continue
		}
		if i == len(steps) {
			// The model is asked. It words the same call in another way each time, and its API gives the call a new id.
			r.asked++
			steps = append(steps, step{CallID: uuid.NewString(), Arguments: spelledArguments(i, r.asked)})
			if r.every == 1 {
				save() // before the call, with its id
			}
		}
		if i == killAt && place == "before the call" {
			return nil, replays, errKilled
		}
		value, err := r.keyOf(r, i, steps[i])
		if err != nil {
			return nil, replays, err
		}
		calling, kill := context.WithCancel(ctx)
		midway := func() {}
		if i == killAt && place == "before the commit" {
			midway = kill
		}
		res, err := remind(calling, pool, value, []byte(steps[i].Arguments), midway)
		kill()
		if i == killAt && (place == "before the commit" && err != nil || place == "after the effect" && err == nil) {
			return nil, replays, errKilled
		}
		if err != nil {
			return nil, replays, fmt.Errorf("step %d: %w", i, err)
		}
		if res.Deduplicated {
			replays++
		}
		steps[i].Answer = &res.Value
		if (i+1)%r.every == 0 || i+1 == r.size {
			save()
		}
		if i == killAt {
			return nil, replays, errKilled
		}
	}
	return steps, replays, nil
}

// spelledArguments are those of a step, all steps' alike but for the order and spelling of what is in them.
func spelledArguments(step, how int) string {
	return []string{
		fmt.Sprintf(`{"to": "ann", "in_days": %d.0}`, step%3),
		fmt.Sprintf(`{"in_days":%d,"to":"\u0061nn"}`, step%3),
	}[how%2]
}

func byCallID(r *run, _ int, s step) (string, error) { return samekey.ToolCallKey(s.CallID, r.id) }

func byStep(r *run, i int, s step) (string, error) {
	return samekey.StepKey(r.id, fmt.Sprint(i), "remind", []byte(s.Arguments))
}

func TestAgentResumedFromCheckpointCreatesNothingNew(t *testing.T) {
	const size = 40
	for name, keyOf := range map[string]func(*run, int, step) (string, error){"call ids": byCallID, "run and step": byStep} {
		t.Run(name, func(t *testing.T) {
			b := setup(t)
			r := &run{id: "run-7", size: size, keyOf: keyOf, every: 1}
			done := 0 // steps whose effect is committed
			for _, kill := range []struct {
				at      int
				place   string
				effects int // once it is dead
				replays int // made by the resumed run up to this kill
			}{
				{0, "before the call", 0, 0},
				{0, "after the effect", 1, 0},
				{0, "after the effect", 1, 0}, // again at the same place
				{1, "before the commit", 1, 1},
				{7, "after the effect", 8, 0},
				{8, "before the commit", 8, 1},
				{19, "after the checkpoint", 20, 0},
				{20, "after the effect", 21, 0},
				{38, "before the call", 38, 1},
				{39, "before the commit", 39, 0},
				{39, "after the effect", 40, 0},
			} {
				_, replays, err := r.resume(t.Context(), b.db.Pool, kill.at, kill.place)
				if !errors.Is(err, errKilled) || replays != kill.replays {
					t.Fatalf("%d, %s: %d replays, want %d: %v", kill.at, kill.place, replays, kill.replays, err)
				}
				done = kill.effects
				b.stored(done, done, done)
			}
			steps, replays, err := r.resume(t.Context(), b.db.Pool, -1, "")
			if err != nil || replays != 1 || len(steps) != size {
				t.Fatalf("%d steps, %d replays, %v", len(steps), replays, err)
			}
			b.stored(size, size, size)
			// Each step was answered with the row that it made, first or not.
			for i, s := range steps {
				if b.count("orders where id = $1", s.Answer.ID) != 1 {
					t.Errorf("step %d answered with a row that is not there", i)
				}
			}
			// The checkpoint is whole: nothing more is called.
			if _, replays, err := r.resume(t.Context(), b.db.Pool, -1, ""); err != nil || replays != 0 {
				t.Errorf("%d replays, %v", replays, err)
			}
			b.stored(size, size, size)
		})
	}
}

// A harness that saves each tenth step, or never, repeats more calls, and where its keys are made of run and step it
// creates no more.
func TestAgentRestartedFromOldCheckpointCreatesNothingNew(t *testing.T) {
	const size = 40
	b := setup(t)
	r := &run{id: "run-7", size: size, keyOf: byStep, every: 10}
	if _, _, err := r.resume(t.Context(), b.db.Pool, 28, "after the effect"); !errors.Is(err, errKilled) {
		t.Fatal(err)
	}
	b.stored(29, 29, 29)
	first, replays, err := r.resume(t.Context(), b.db.Pool, -1, "")
	if err != nil || replays != 9 {
		t.Fatalf("%d replays, want those of steps 20 to 28: %v", replays, err)
	}
	b.stored(size, size, size)
	r.saved = ""
	again, replays, err := r.resume(t.Context(), b.db.Pool, -1, "")
	if err != nil || replays != size {
		t.Fatalf("%d replays, %v", replays, err)
	}
	for i := range again {
		if *again[i].Answer != *first[i].Answer {
			t.Errorf("step %d: %v, and %v the first time", i, again[i].Answer, first[i].Answer)
		}
	}
	b.stored(size, size, size)

	// Another run is another matter.
	r.id, r.saved = "run-8", ""
	if _, replays, err := r.resume(t.Context(), b.db.Pool, -1, ""); err != nil || replays != 0 {
		t.Fatalf("%d replays, %v", replays, err)
	}
	b.stored(2*size, 2*size, 2*size)
}

func TestWantedSecondReminderIsSent(t *testing.T) {
	b := setup(t)
	arguments := []byte(`{"to":"ann","in_days":3}`)
	for name, value := range map[string]func(call int) (string, error){
		"another call id": func(call int) (string, error) { return samekey.ToolCallKey(fmt.Sprint("call_", call), "run-7") },
		"another turn": func(call int) (string, error) { // of an API that numbers calls per answer
			return samekey.ToolCallKey("call_0", "run-7", fmt.Sprint("turn-", call))
		},
		"another step": func(call int) (string, error) {
			return samekey.StepKey("run-7", fmt.Sprint(call), "remind", arguments)
		},
	} {
		before := b.count("samekey.outbox where action = 'send_mail'")
		for call := range 2 {
			for attempt := range 3 {
				key, err := value(call)
				ok(t, err)
				res, err := remind(t.Context(), b.db.Pool, key, arguments, nil)
				if err != nil || res.Deduplicated != (attempt > 0) {
					t.Errorf("%s, call %d, attempt %d: %+v, %v", name, call, attempt, res, err)
				}
			}
		}
		if sent := b.count("samekey.outbox where action = 'send_mail'") - before; sent != 2 {
			t.Errorf("%s: %d mails, want two", name, sent)
		}
	}
}

// A model that gives one id to two equal calls of an answer wants both.
func TestTwoCallsWithOneIDAreBothDoneOnce(t *testing.T) {
	b := setup(t)
	b.exec(lineTables)
	b.exec("insert into accounts values ('a-1', 0)")
	arguments := json.RawMessage(`{"account":"a-1","amount":10}`)
	answer := []toolCall{{"call_0", "add_credit", arguments}, {"call_0", "add_credit", arguments}}
	for attempt := range 3 {
		values, err := keyValues("run-7", "turn-2", answer)
		ok(t, err)
		for i, value := range values {
			res, err := creditTool(t.Context(), b.db.Pool, "acme", value, arguments)
			if err != nil || res.Value != int64(10*(i+1)) || res.Deduplicated != (attempt > 0) {
				t.Errorf("attempt %d, call %d: %+v, %v", attempt, i, res, err)
			}
		}
	}
	if b.count("accounts where id = 'a-1' and balance = 20") != 1 {
		t.Error("the balance is not 20")
	}
}

func TestAddingTenThreeTimesUnderOneKeyIsTen(t *testing.T) {
	b := setup(t)
	b.exec(lineTables)
	b.exec("insert into accounts values ('a-1', 0)")
	balance := func(want int64) {
		t.Helper()
		if b.count("accounts where id = 'a-1' and balance = $1", want) != 1 {
			t.Errorf("the balance is not %d", want)
		}
	}
	credit := func(callID, arguments string) (processed.Result[int64], error) {
		values, err := keyValues("run-7", "turn-2", []toolCall{{ID: callID}})
		ok(t, err)
		return creditTool(t.Context(), b.db.Pool, "acme", values[0], []byte(arguments))
	}
	for attempt, arguments := range []string{`{"account":"a-1","amount":10}`, `{"amount": 10, "account": "a-1"}`, `{"account":"\u0061-1","amount":10}`} {
		res, err := credit("call_1", arguments)
		if err != nil || res.Value != 10 || res.Deduplicated != (attempt > 0) {
			t.Errorf("attempt %d: %+v, %v", attempt, res, err)
		}
		balance(10)
	}
	// The model changed its mind under the id of a call that was made.
	if _, err := credit("call_1", `{"account":"a-1","amount":11}`); !errors.Is(err, processed.ErrConflict) || sameCallAgain(err) {
		t.Errorf("other arguments: %v", err)
	}
	balance(10)
	// A call of its own.
	if res, err := credit("call_2", `{"account":"a-1","amount":10}`); err != nil || res.Value != 20 || res.Deduplicated {
		t.Errorf("%+v, %v", res, err)
	}
	balance(20)
	// The first call's answer stays what it was, and the model is told.
	res, err := credit("call_1", `{"account":"a-1","amount":10}`)
	if err != nil || res.Value != 10 || !res.Deduplicated {
		t.Errorf("%+v, %v", res, err)
	}
	var told struct {
		Balance      int64
		Deduplicated bool
	}
	if err := json.Unmarshal([]byte(creditForModel(res)), &told); err != nil || told.Balance != 10 || !told.Deduplicated {
		t.Errorf("the model is told %s: %v", creditForModel(res), err)
	}
	balance(20)
}
