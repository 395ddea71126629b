package dispatcher

// The path of an intent, in the order in which it happens. Each step is one file with one entry. A step calls later
// steps, and never an earlier one, except by a poke.
//
//	 1  notify    session.go      listen       hears a NOTIFY, on the connection that holds the worker's lock
//	              sweep.go        sweep        finds due intents, and leases of dead workers
//	 2  poke      destination.go  poke         the only signal: something of this action may be due
//	 3  shift     shift.go        keepShift    keeps one drain of the destination running, with River's permit or without
//	 4  drain     drain.go        drain        waits for pokes, claims what the slots and limits allow, starts the calls
//	                                           (a Drain claims in rounds: rounds.go)
//	 5  claim     claim.go        claim        takes leases on due intents
//	    load      load.go         loadBatch    reads their payloads, if they did not fit into the claim's answer
//	 6  admit     admit.go        admit        postpones intents whose endpoint is busy or fails; stored.go reads the others'
//	                                           endpoints
//	 7  deliver   deliver.go      deliver      brings one intent to its end, by the steps 8 to 13
//	 8  prepare   prepare.go      prepare      may it be called, where, and with which bytes? (render.go stores them)
//	 9  call      call.go         call         the application's Send or Lookup, with a deadline
//	10  decide    decide.go       decide       from the outcome to the intent's next status
//	11  observe   observe.go      observe      tells the breaker what the call says about the vendor
//	12  settle    settle.go       settle       writes the status and the history, in batches (order.go: of ordered intents)
//	13  apply     applier.go      answered     finds a connection for the application's Apply
//	              apply.go        apply        runs it in the transaction that finishes the intent
//
// Beside the path, attender.go runs what a sweep finds in samekey.outbox_attention: attention.go tells the application
// that an intent came to rest or was cancelled. An Apply runs the earlier events of its intent first.
//
// Above the path: run.go starts and stops a worker, worker.go makes its parts and connects them, river.go is the only
// file that imports River, health.go is for readiness probes, register.go keeps what the application registers, and
// upkeep.go has the periodic tasks.
//
// Below it: destination.go, slots.go and loadbudget.go are the state that the steps 3 to 11 work on, alarm.go finds
// destinations that claim nothing, unsent.go and postpone.go undo claims of which nothing was sent, settlewriter.go has
// the statements that settle, announce.go tells processes that wait which intents have ended, report.go counts and logs,
// pool.go makes the worker's connections, applytx.go is the transaction that an Apply or an Attention gets, core.go is
// what all parts share, deployment.go checks whose the database is, failing.go notes since when something fails, and
// cause.go words errors. At the bottom are the values: claimed.go (what a claim carries), settlement.go, outcome.go,
// values.go (what the application's functions get and return), action.go, and the settings.
//
// A file uses only what the files below it declare; path_test.go has the order of all files.
//
// What an intent's status may become is in internal/intent. The arithmetic of rates, breakers and endpoints is in
// internal/limit.
