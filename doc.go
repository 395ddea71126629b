// Package samekey makes side effects safe to repeat for Go services on Postgres. It is a transactional outbox with
// idempotency keys: your code writes its own rows, an intent (outbox message) for each effect outside the database, and
// a processed record (idempotency record) with the answer, all in one transaction. Either all of them exist afterwards,
// or none. After the commit a worker delivers the intents to vendors and sends the key with each call, so a call can
// be made more than once without harm.
//
// This package defines the types that the other packages share. In the order of use:
//
// # Key
//
// A [Key] names one logical operation of one caller. [NewKey] makes it from the value that the caller sent and a scope,
// usually the tenant or principal and the operation. It refuses invalid values:
//
//	key, err := samekey.NewKey(r.Header.Get("Idempotency-Key"), tenant, "orders.create")
//
// Your own clients get their values from [Mint]: once for each operation, sent again with each attempt. Put no personal
// data in keys. Logs and errors show a key's [Key.Hash] only.
//
// Vendors receive the [DeliveryKey] of an intent. It is derived from the key, the action and the part, so it is the
// same whenever and wherever it is computed.
//
// # Keys for agents
//
// A harness that runs tools for a model gets its values from [ToolCallKey], given the call's id, or from [StepKey],
// given run, step, tool and arguments. Both return the same value again from what the harness saved before the call, so
// a resumed run does nothing twice. The model never chooses a key.
//
// # Fingerprint
//
// A key that comes again with another request is the caller's mistake and must fail loudly. So the [Fingerprint] of the
// first request is stored with the key. [FingerprintJSON] compares the meaning of a JSON document, with exact numbers.
// [FingerprintBytes] compares bytes. [FingerprintValue] takes a Go value. Prefer the bytes of the request as they
// arrived: a struct with a new field is a new request, and conflicts with the record stored before the deploy.
//
// # Tx
//
// A [Tx] is a transaction that you own. Every pgx.Tx is one; [SQL] makes one of a *sql.Tx, for users of GORM, bun, ent
// or sqlx.
//
// # The other packages
//
// In the order in which a newcomer meets them:
//
//   - schema creates the tables, with one call or as plain SQL for a migration tool.
//   - processed remembers requests. Run returns the stored answer, or runs your function in a transaction and stores
//     its answer.
//   - outbox writes intents in that transaction. Operators use it to list, cancel, approve, redrive and resolve them.
//   - dispatcher claims committed intents, calls your handlers and settles (records) the outcomes. It needs River; a
//     service that only writes does not import River.
//   - samekeytest gives your tests a database, a vendor that honors keys, and assertions such as "one effect for two
//     requests".
package samekey
