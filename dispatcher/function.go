package dispatcher

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/samekey/samekey/internal/appfunction"
	"github.com/samekey/samekey/internal/jsonvalue"
)

// An Apply or an Attention written in SQL. The function has one argument of type jsonb, which describes the intent.
// [Delivery].ApplyFunction documents its members.

// callFunction calls a function in the transaction of an Apply or an Attention.
func callFunction(ctx context.Context, tx pgx.Tx, name string, event any) error {
	argument, err := json.Marshal(event)
	if err != nil {
		return fmt.Errorf("describe the intent to the function %s: %w", name, err)
	}
	if _, err := tx.Exec(ctx, "select "+appfunction.Quoted(name)+"($1::pg_catalog.jsonb)", string(argument)); err != nil {
		return &functionError{name, err}
	}
	return nil
}

// functionError is an error that a function raised, or its call.
type functionError struct {
	name string
	err  error
}

func (e *functionError) Error() string { return fmt.Sprintf("function %s: %v", e.name, e.err) }

// Unwrap returns the database's error.
func (e *functionError) Unwrap() error { return e.err }

// functionIntent is what a function is told about its intent. Pointers are null if there is no value.
type functionIntent struct {
	ID          uuid.UUID `json:"id"`
	Scope       string    `json:"scope"`
	Key         string    `json:"key"`
	Subject     *string   `json:"subject"`
	Action      string    `json:"action"`
	Part        string    `json:"part"`
	DeliveryKey uuid.UUID `json:"delivery_key"`
	CreatedAt   time.Time `json:"created_at"`
	Reference   *string   `json:"reference"`
	Code        *string   `json:"code"`

	// The payload, if it fits jsonb, or else its bytes.
	Payload       json.RawMessage `json:"payload"`
	PayloadBase64 *string         `json:"payload_base64"`
}

// functionApply is the argument of an Apply.
type functionApply struct {
	functionIntent
	Outcome  string `json:"outcome"`
	Resolved bool   `json:"resolved"`

	Response       json.RawMessage `json:"response"`
	ResponseBase64 *string         `json:"response_base64"`
	ResponseType   *string         `json:"response_type"`
}

// functionAttention is the argument of an Attention.
type functionAttention struct {
	functionIntent
	Status string    `json:"status"`
	Now    string    `json:"now"`
	At     time.Time `json:"at"`
	Event  string    `json:"event"`
	Error  *string   `json:"error"`
	Actor  *string   `json:"actor"`
	Reason *string   `json:"reason"`

	Endpoint string `json:"endpoint,omitempty"`
}

// applyFunction makes the Apply that calls a function.
func applyFunction(name string) func(context.Context, pgx.Tx, Settled) error {
	return func(ctx context.Context, tx pgx.Tx, s Settled) error {
		event := functionApply{functionIntent: intentFor(&s.Call, s.Response.Code), Outcome: string(s.Status), Resolved: s.Resolved, ResponseType: orNull(s.Response.ContentType)}
		if len(s.Response.Body) > 0 {
			event.Response, event.ResponseBase64 = jsonOrBase64(s.Response.Body)
		}
		return callFunction(ctx, tx, name, event)
	}
}

// attentionFunction makes the Attention that calls a function.
func attentionFunction(name string) func(context.Context, pgx.Tx, Attention) error {
	return func(ctx context.Context, tx pgx.Tx, at Attention) error {
		endpoint := ""
		if at.Call.Endpoint != nil {
			endpoint = at.Call.Endpoint.Name
		}
		return callFunction(ctx, tx, name, functionAttention{
			Endpoint: endpoint, functionIntent: intentFor(&at.Call, at.Code), Status: string(at.Status), Now: string(at.Now), At: at.At,
			Event: at.Event, Error: orNull(at.Error), Actor: orNull(at.Actor), Reason: orNull(at.Reason),
		})
	}
}

func intentFor(c *Call, code string) functionIntent {
	intent := functionIntent{
		ID: c.ID, Scope: c.Key.Scope, Key: c.Key.Value, Subject: orNull(c.Subject), Action: c.Action, Part: c.Part,
		DeliveryKey: c.DeliveryKey, CreatedAt: c.CreatedAt, Reference: orNull(c.Reference), Code: orNull(code),
	}
	intent.Payload, intent.PayloadBase64 = jsonOrBase64(c.Payload)
	return intent
}

// jsonOrBase64 returns bytes as JSON if Postgres takes them as jsonb, and else in base64.
func jsonOrBase64(b []byte) (json.RawMessage, *string) {
	if jsonvalue.FitsJSONB(b) {
		return b, nil
	}
	encoded := base64.StdEncoding.EncodeToString(b)
	return nil, &encoded
}

func orNull(text string) *string {
	if text == "" {
		return nil
	}
	return &text
}
