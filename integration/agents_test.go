package integration

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	mathrand "math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"github.com/samekey/samekey"
	"github.com/samekey/samekey/internal/dbtest"
	"github.com/samekey/samekey/outbox"
	"github.com/samekey/samekey/processed/httpkey"
	"github.com/samekey/samekey/samekeytest"
)

// tools serves the tools of an agent: each POST /tools/remind sends a mail, and each POST /tools/add_credit adds to an
// account. The header Tenant takes the place of authentication.
func (b *bundle) tools() (url string) {
	b.t.Helper()
	b.exec(`create table accounts (account text primary key, balance bigint not null);
		insert into accounts values ('a-1', 0); grant select, update on accounts to public`)
	keyed := b.keyed(b.appDSN, httpkey.Options{Scope: func(r *http.Request) []string {
		return []string{r.Header.Get("Tenant"), r.PathValue("tool")}
	}})
	mux := http.NewServeMux()
	mux.Handle("POST /tools/{tool}", keyed.Handler(http.HandlerFunc(tool)))
	return serve(b.t, mux)
}

func tool(w http.ResponseWriter, r *http.Request) {
	var arguments struct {
		To, Account string
		Amount      int64
	}
	if err := json.NewDecoder(r.Body).Decode(&arguments); err != nil {
		http.Error(w, "invalid arguments", http.StatusBadRequest)
		return
	}
	var err error
	var answer struct {
		Reminder int64 `json:"reminder,omitempty"`
		Balance  int64 `json:"balance,omitempty"`
	}
	ctx := r.Context()
	tx := httpkey.Tx(ctx)
	switch r.PathValue("tool") {
	case "remind":
		err = tx.QueryRow(ctx, `insert into orders (operation, tenant, item, amount) values ('remind', $1, $2, 0) returning id`,
			r.Header.Get("Tenant"), arguments.To).Scan(&answer.Reminder)
		if err == nil {
			_, err = outbox.Insert(ctx, tx, outbox.Intent{Action: "send_mail", Payload: map[string]string{"to": arguments.To}})
		}
	case "add_credit":
		err = tx.QueryRow(ctx, `update accounts set balance = balance + $2 where account = $1 returning balance`,
			arguments.Account, arguments.Amount).Scan(&answer.Balance)
	default:
		http.NotFound(w, r)
		return
	}
	if err != nil {
		httpkey.Abort(ctx, err)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(answer)
}

// toolCall is one step of a run, as it is saved in the checkpoint.
type toolCall struct {
	ID        string          `json:"id"` // from the model's API, which returns a new one each time
	Tool      string          `json:"tool"`
	Arguments json.RawMessage `json:"arguments"`
	Answer    json.RawMessage `json:"answer,omitempty"` // once it is known
}

// harness is one process of an agent. It knows the run's earlier steps only from the checkpoint file.
type harness struct {
	b    *bundle
	url  string // of the tools, through the proxy
	run  string
	file string
	keys keyMaker

	die       death
	proxy     *samekeytest.Proxy
	replays   int
	saveCalls bool // also before a call, with its id
}

type keyMaker func(run string, step int, c toolCall) (string, error)

func byCallID(run string, _ int, c toolCall) (string, error) { return samekey.ToolCallKey(c.ID, run) }

func byStep(run string, step int, c toolCall) (string, error) {
	return samekey.StepKey(run, fmt.Sprint(step), c.Tool, c.Arguments)
}

// death is the step and the moment at which a process dies.
type death struct {
	step int
	at   string
}

var deaths = []string{"before the call", "without an answer", "after the effect", "after the checkpoint"}

var errDied = errors.New("the process died")

// work continues from the checkpoint to the end of the run, or until the process dies.
func (h *harness) work(ctx context.Context, steps int) error {
	calls, err := h.load()
	if err != nil {
		return err
	}
	for step := range steps {
		if step < len(calls) && calls[step].Answer != nil {
			continue
		}
		if step == len(calls) {
			calls = append(calls, model(step))
			if h.saveCalls {
				if err := h.save(calls); err != nil {
					return err
				}
			}
		}
		dies := func(at string) bool { return h.die == death{step, at} }
		if dies("before the call") {
			return errDied
		}
		attempts := 5
		if dies("without an answer") {
			h.proxy.Next(samekeytest.FaultLoseAnswer)
			attempts = 1
		}
		key, err := h.keys(h.run, step, calls[step])
		if err != nil {
			return err
		}
		got, err := send(ctx, newClient(h.b.t, attempts), "POST", h.url+"/tools/"+calls[step].Tool, key, string(calls[step].Arguments))
		switch {
		case dies("without an answer") && err != nil, dies("after the effect"):
			return errDied
		case err != nil:
			return err
		case got.status != http.StatusOK:
			return fmt.Errorf("step %d: %d %s", step, got.status, got.body)
		}
		if got.replayed {
			h.replays++
		}
		calls[step].Answer = json.RawMessage(got.body)
		if err := h.save(calls); err != nil {
			return err
		}
		if dies("after the checkpoint") {
			return errDied
		}
	}
	return nil
}

func (h *harness) load() (calls []toolCall, err error) {
	text, err := os.ReadFile(h.file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err == nil {
		err = json.Unmarshal(text, &calls)
	}
	return calls, err
}

// done returns the number of steps with an answer in the checkpoint.
func (h *harness) done() (steps int) {
	calls, err := h.load()
	if err != nil {
		h.b.t.Fatal(err)
	}
	for _, call := range calls {
		if call.Answer != nil {
			steps++
		}
	}
	return steps
}

// save replaces the checkpoint atomically.
func (h *harness) save(calls []toolCall) error {
	text, err := json.Marshal(calls)
	if err == nil {
		err = os.WriteFile(h.file+".new", text, 0o600)
	}
	if err == nil {
		err = os.Rename(h.file+".new", h.file)
	}
	return err
}

// model decides what to do in a step. Asked again, it makes the same decision with other spelling. Most of its calls
// are the same.
func model(step int) toolCall {
	spelled := mathrand.IntN(2)
	if step%4 == 3 {
		return toolCall{ID: rand.Text(), Tool: "add_credit", Arguments: json.RawMessage([]string{
			`{"account":"a-1","amount":10}`, `{"amount": 10, "account": "\u0061-1"}`,
		}[spelled])}
	}
	return toolCall{ID: rand.Text(), Tool: "remind", Arguments: json.RawMessage([]string{
		`{"to":"ann"}`, `{ "to" : "\u0061nn" }`,
	}[spelled])}
}

func TestResumedAgentRunRepeatsNoEffect(t *testing.T) {
	t.Parallel()
	const steps = 40
	for name, c := range map[string]struct {
		keys      keyMaker
		saveCalls bool
	}{
		"call ids, saved before the call": {byCallID, true},
		"run and step":                    {byStep, false},
	} {
		for seed := range uint64(dbtest.Size(2, 1)) {
			t.Run(fmt.Sprint(name, ", seed ", seed), func(t *testing.T) {
				t.Parallel()
				b := setup(t, nil)
				proxy := samekeytest.StartProxy(t, b.tools())
				file := filepath.Join(t.TempDir(), "checkpoint.json")
				process := func(die death) *harness {
					return &harness{b: b, url: proxy.URL, run: "run-7", file: file, keys: c.keys, saveCalls: c.saveCalls, die: die, proxy: proxy}
				}

				// Each process dies at the same step as the one before, or some steps later.
				random := mathrand.New(mathrand.NewPCG(seed, 7))
				died := map[string]int{}
				replays := 0
				for done := 0; done < steps; {
					h := process(death{done + random.IntN(4), deaths[random.IntN(len(deaths))]})
					err := h.work(t.Context(), steps)
					if err != nil && !errors.Is(err, errDied) || err == nil && h.die.step < steps {
						t.Fatalf("%+v: %v", h.die, err)
					}
					died[h.die.at]++
					replays += h.replays
					done = h.done()
				}
				if len(died) != len(deaths) {
					t.Errorf("the processes died %v, and not in every way: use another seed", died)
				}
				b.count(30, "orders where operation = 'remind'")
				b.count(30, "samekey.outbox where action = 'send_mail'")
				b.count(steps, "samekey.processed_events")
				b.count(1, "accounts where balance = 100")

				// Each step has the answer for its own effect.
				calls, err := process(death{}).load()
				if err != nil || len(calls) != steps {
					t.Fatalf("%d calls in the checkpoint: %v", len(calls), err)
				}
				answers := map[string]bool{}
				for _, call := range calls {
					answers[call.Tool+string(call.Answer)] = true
				}
				if len(answers) != steps {
					t.Errorf("%d steps have %d answers", steps, len(answers))
				}

				// The test is meaningful: answers were lost after their effects.
				keys := map[string]bool{}
				for _, call := range proxy.Calls() {
					keys[call.Key] = true
				}
				if repeated := len(proxy.Calls()) - len(keys); len(keys) != steps || repeated < 5 || replays < 5 || replays > repeated {
					t.Errorf("%d keys, %d repeated calls, %d replayed answers", len(keys), repeated, replays)
				}

				// The run is complete, so another process makes no calls.
				before := len(proxy.Calls())
				if err := process(death{step: -1}).work(t.Context(), steps); err != nil || len(proxy.Calls()) != before {
					t.Errorf("%d calls after the end: %v", len(proxy.Calls())-before, err)
				}
			})
		}
	}
}

// Without a checkpoint, a harness starts from the first step. If its keys are made from the steps, nothing happens
// twice.
func TestRepeatedAgentRunRepeatsNoEffect(t *testing.T) {
	t.Parallel()
	const steps = 40
	b := setup(t, nil)
	url := b.tools()
	run := func(name string) (*harness, []toolCall) {
		h := &harness{b: b, url: url, run: name, file: filepath.Join(t.TempDir(), "checkpoint.json"), keys: byStep, die: death{step: -1}}
		if err := h.work(t.Context(), steps); err != nil {
			t.Fatal(err)
		}
		calls, err := h.load()
		if err != nil {
			t.Fatal(err)
		}
		return h, calls
	}
	holds := func(runs int64) {
		t.Helper()
		b.count(30*runs, "orders")
		b.count(30*runs, "samekey.outbox")
		b.count(1, "accounts where balance = $1", 100*runs)
	}
	_, first := run("run-7")
	again, second := run("run-7")
	if again.replays != steps {
		t.Errorf("%d replays, want %d", again.replays, steps)
	}
	for i := range first {
		if string(first[i].Answer) != string(second[i].Answer) {
			t.Errorf("step %d: %s, and again %s", i, first[i].Answer, second[i].Answer)
		}
	}
	holds(1)
	if another, _ := run("run-8"); another.replays != 0 { // another run has other keys
		t.Errorf("%d replays, want 0", another.replays)
	}
	holds(2)
}

// call calls a tool once with a key. It also takes the error of the function that made the key.
func (b *bundle) call(url, tool, arguments, key string, err error) received {
	b.t.Helper()
	if err != nil {
		b.t.Fatal(err)
	}
	got, err := send(b.t.Context(), newClient(b.t, 1), "POST", url+"/tools/"+tool, key, arguments)
	if err != nil {
		b.t.Error(err)
	}
	return got
}

func TestSecondReminderOfAnAgentIsSent(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	url := b.tools()
	const arguments = `{"to":"ann"}`
	for i, value := range []func(call int) (string, error){
		func(call int) (string, error) { return samekey.ToolCallKey(fmt.Sprint("call_", call), "run-7") },
		func(call int) (string, error) {
			return samekey.ToolCallKey("call_0", "run-7", fmt.Sprint("turn-", call))
		},
		func(call int) (string, error) {
			return samekey.StepKey("run-7", fmt.Sprint(call), "remind", []byte(arguments))
		},
	} {
		for call := range 2 {
			var first received
			for attempt := range 3 {
				key, err := value(call)
				got := b.call(url, "remind", arguments, key, err)
				if attempt == 0 {
					first = got
				}
				if got.status != http.StatusOK || got.replayed != (attempt > 0) || got.body != first.body {
					t.Errorf("call %d, attempt %d: %+v", call, attempt, got)
				}
			}
		}
		b.count(int64(2*(i+1)), "samekey.outbox where action = 'send_mail'")
		b.count(int64(2*(i+1)), "orders where operation = 'remind'")
	}
}

func TestCreditAddedThreeTimesUnderOneKeyCountsOnce(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	url := b.tools()
	credit := func(id, arguments string) received {
		key, err := samekey.ToolCallKey(id, "run-7", "turn-2")
		return b.call(url, "add_credit", arguments, key, err)
	}
	for attempt, arguments := range []string{
		`{"account":"a-1","amount":10}`, `{"amount": 10.0, "account": "a-1"}`, `{"account":"\u0061-1","amount":1e1}`,
	} {
		got := credit("call_1", arguments)
		if got.status != http.StatusOK || got.body != "{\"balance\":10}\n" || got.replayed != (attempt > 0) {
			t.Errorf("attempt %d: %+v", attempt, got)
		}
		b.count(1, "accounts where balance = 10")
	}
	if got := credit("call_2", `{"account":"a-1","amount":10}`); got.body != "{\"balance\":20}\n" || got.replayed {
		t.Errorf("a second call: %+v", got)
	}
	if got := credit("call_1", `{"account":"a-1","amount":10}`); got.body != "{\"balance\":10}\n" || !got.replayed {
		t.Errorf("the first call again: %+v", got)
	}
	b.count(1, "accounts where balance = 20")
}

func TestCallIDWithOtherArgumentsIsRefused(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	url := b.tools()
	byID, err := samekey.ToolCallKey("call_1", "run-7")
	first := b.call(url, "add_credit", `{"account":"a-1","amount":10}`, byID, err)
	for _, arguments := range []string{`{"account":"a-1","amount":11}`, `{"account":"a-1","amount":"10"}`, `{"account":"a-1"}`} {
		if got := b.call(url, "add_credit", arguments, byID, nil); got.status != http.StatusUnprocessableEntity || got.problem() != "key-reused" {
			t.Errorf("%s: %+v", arguments, got)
		}
	}
	b.count(1, "accounts where balance = 10")
	if again := b.call(url, "add_credit", `{"account":"a-1","amount":10}`, byID, nil); !again.same(first) {
		t.Errorf("the same call again: %+v", again)
	}

	// A step's key also depends on the arguments, so other arguments are another operation.
	for _, arguments := range []string{`{"account":"a-1","amount":10}`, `{"account":"a-1","amount":11}`} {
		key, err := samekey.StepKey("run-7", "1", "add_credit", []byte(arguments))
		if got := b.call(url, "add_credit", arguments, key, err); got.status != http.StatusOK || got.replayed {
			t.Errorf("%s: %+v", arguments, got)
		}
	}
	b.count(1, "accounts where balance = 31")
}
