// Package samekey makes side effects safe to repeat for Go services on
// Postgres. Application code writes three things in one transaction: its own
// rows, an intent for each effect outside the database, and the record that
// remembers the answer under the caller's key: all of them exist afterwards, or
// none does. After commit a worker delivers the intents to vendors and carries
// the key downstream, so that each call can be made at least once without harm.
//
// This package holds the words that the others share. In the order of use:
//
// # Key
//
// A [Key] names one logical operation of one caller. [NewKey] makes it of the
// value that the caller sent and a scope, usually the tenant or principal and
// the operation, and refuses what breaks the rules:
//
//	key, err := samekey.NewKey(r.Header.Get("Idempotency-Key"), tenant, "orders.create")
//
// Clients of yours get their values from [Mint]: once for each operation, sent
// again with each attempt. No personal data in keys. A key is printed and
// logged as its [Key.Hash] only.
//
// Toward vendors the key is carried as the [DeliveryKey] of an intent, which is
// derived from the key, the action and the part, and so stays the same
// whenever and wherever it is computed.
//
// # Keys for agents
//
// A harness that runs tools for a model gets its values from [ToolCallKey], of
// the call's id, or from [StepKey], of run, step, tool and arguments. Both give
// the same value again from what the harness saved before the call, so that a
// run that is resumed does nothing twice. The model never chooses a key.
//
// # Fingerprint
//
// A key that comes again with another request is a mistake of the caller's and
// must fail loudly, so the first request's [Fingerprint] is stored beside the
// key. [FingerprintJSON] compares what a document means, with exact numbers;
// [FingerprintBytes] compares bytes; [FingerprintValue] takes a Go value. Prefer
// the bytes of the request as they arrived: a struct with a new field is a new
// request, and conflicts with what was stored before the deploy. A stored
// fingerprint is compared under the version that it was stored with:
// [FingerprintAs].
//
// # Tx
//
// A [Tx] is a transaction that you own. Every pgx.Tx is one; [SQL] makes one of
// a *sql.Tx, for users of GORM, bun, ent or sqlx.
//
// # The other packages
//
// In the order in which a newcomer meets them:
//
//   - schema creates the tables: one call, or plain SQL for a migration tool.
//   - processed remembers requests: Run gives the first answer again, or runs
//     your function in a transaction and stores its answer.
//   - outbox writes intents in that transaction, and has what people do to
//     them: look, cancel, approve, redrive, resolve.
//   - dispatcher claims committed intents, calls your handlers and settles the
//     outcomes. It needs River; what a service that only writes imports does
//     not.
//   - samekeytest gives your tests a database, a vendor that honours keys, and
//     assertions such as one effect for two requests.
package samekey
