package processed_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/samekey/samekey"
	"github.com/samekey/samekey/processed"
)

// toolCall is what a harness saves before it makes a call, and reads when it
// makes the call again.
type toolCall struct {
	Run       string          `json:"run"`
	Turn      string          `json:"turn"`
	ID        string          `json:"id"` // as the model's API gave it
	Tool      string          `json:"tool"`
	Arguments json.RawMessage `json:"arguments"`
}

// keyValue is what the harness sends with the call, beside the arguments.
func (c toolCall) keyValue() (string, error) {
	return samekey.ToolCallKey(c.ID, c.Run, c.Turn)
}

// creditTool is the tool. The tenant is who is logged in, and the value comes
// from the harness; neither is among the arguments, which the model writes.
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

// sameCallAgain tells the harness whether to repeat a call that ended with err,
// under the same key and after a pause. The model hears of neither.
func sameCallAgain(err error) bool {
	return processed.SafeToRetry(err) || errors.Is(err, processed.ErrAmbiguous)
}

// creditForModel is what the model reads of an answer.
func creditForModel(res processed.Result[int64]) string {
	if res.Deduplicated {
		return fmt.Sprintf(`{"balance":%d,"deduplicated":true,"note":"This call was carried out before, once. Nothing is left to do."}`, res.Value)
	}
	return fmt.Sprintf(`{"balance":%d}`, res.Value)
}

// A harness saves the call, makes it, and repeats what it is not sure of.
func Example_agent() {
	_ = func(ctx context.Context, pool *pgxpool.Pool, call toolCall, save func(toolCall) error) (string, error) {
		if err := save(call); err != nil { // before the call: see docs/agents.md
			return "", err
		}
		value, err := call.keyValue()
		if err != nil {
			return "", err
		}
		for {
			res, err := creditTool(ctx, pool, "acme", value, call.Arguments)
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
}
