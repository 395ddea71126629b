package processed_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/samekey/samekey"
	"github.com/samekey/samekey/internal/exampletb"
	"github.com/samekey/samekey/processed"
)

// toolCall is what a harness saves before it makes a call, and reads when it
// makes the call again.
type toolCall struct {
	ID        string          `json:"id"` // as the model's API gave it
	Tool      string          `json:"tool"`
	Arguments json.RawMessage `json:"arguments"`
}

// keyValues returns the key values of the calls of one answer. The harness saves
// all calls before it makes the first one, and passes all of them again when it
// resumes, so that an id that the model used twice is numbered the same way.
func keyValues(run, turn string, answer []toolCall) ([]string, error) {
	ids := make([]string, len(answer))
	for i, call := range answer {
		ids[i] = call.ID
	}
	return samekey.ToolCallKeys(ids, run, turn)
}

// creditTool is the tool. The tenant comes from the login and the value from the
// harness. Neither is among the arguments, which the model writes.
func creditTool(ctx context.Context, pool *pgxpool.Pool, tenant, value string, arguments []byte) (processed.Result[int64], error) {
	var args struct {
		Account string `json:"account"`
		Amount  int64  `json:"amount"`
	}
	if err := json.Unmarshal(arguments, &args); err != nil {
		return processed.Result[int64]{}, err
	}
	key, err := samekey.NewKey(value, tenant, "add_credit")
	if err != nil {
		return processed.Result[int64]{}, err
	}
	req := processed.Request{Key: key, Payload: arguments, Retain: 30 * 24 * time.Hour}
	return addCredit(ctx, pool, req, args.Account, args.Amount)
}

// sameCallAgain reports whether the harness repeats a call that ended with err,
// with the same key and after a pause. The model sees neither.
func sameCallAgain(err error) bool {
	return processed.SafeToRetry(err) || errors.Is(err, processed.ErrAmbiguous)
}

// creditForModel is the part of an answer that the model reads.
func creditForModel(res processed.Result[int64]) string {
	if res.Deduplicated {
		return fmt.Sprintf(`{"balance":%d,"deduplicated":true,"note":"This call was carried out before, once. Nothing is left to do."}`, res.Value)
	}
	return fmt.Sprintf(`{"balance":%d}`, res.Value)
}

// A harness saves the calls of an answer, makes them, and repeats those with an
// unknown outcome.
func Example_agent() {
	call := func(ctx context.Context, pool *pgxpool.Pool, value string, c toolCall) (string, error) {
		for {
			res, err := creditTool(ctx, pool, "acme", value, c.Arguments)
			if err == nil {
				return creditForModel(res), nil
			}
			if !sameCallAgain(err) {
				return "", err
			}
			select {
			case <-ctx.Done():
				return "", ctx.Err()
			case <-time.After(time.Second):
			}
		}
	}
	work := func(ctx context.Context, pool *pgxpool.Pool, run, turn string, answer []toolCall, save func([]toolCall) error) (said []string, err error) {
		if err := save(answer); err != nil { // before the first call: see docs/agents.md
			return nil, err
		}
		values, err := keyValues(run, turn, answer)
		if err != nil {
			return nil, err
		}
		for i, c := range answer {
			text, err := call(ctx, pool, values[i], c)
			if err != nil {
				return said, err
			}
			said = append(said, text)
		}
		return said, nil
	}

	db, done := exampletb.DB(lineTables, `insert into accounts values ('account-1', 0)`)
	defer done()
	answer := []toolCall{{ID: "call_1", Tool: "add_credit", Arguments: json.RawMessage(`{"account":"account-1","amount":10}`)}}
	save := func([]toolCall) error { return nil } // to a file or a table
	for range 2 {                                 // the harness dies, and does the turn again
		said, err := work(context.Background(), db.Pool, "run-7", "turn-2", answer, save)
		fmt.Println(said, err)
	}
	// Output:
	// [{"balance":10}] <nil>
	// [{"balance":10,"deduplicated":true,"note":"This call was carried out before, once. Nothing is left to do."}] <nil>
}
