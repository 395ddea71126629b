// Package samekeytest tests code that can run twice: services, webhooks, tools and workers that must have one effect
// per idempotency key. Its tests use a real Postgres.
//
// # Test a service of yours
//
// [Conform] tests an HTTP service against every failure that makes clients retry: identical and overlapping requests, a
// reused key with another payload, a lost answer, a duplicate, a broken connection to the database, and a crash at each
// of the request's round trips. After each, there must be one effect and one answer. A failure tells what broke, at
// which statement, and the usual cause. [ConformTool] does the same for a function. Both work with any service that
// stores its data in Postgres, whether or not it uses samekey.
//
// # A database
//
// [NewDB] returns a migrated Postgres database for one test. [Elapse] makes everything stored in it older, so that
// leases, deadlines and retention end without a wait. [AssertInserted] checks that an intent was inserted.
//
// A test with one login cannot approve what it wrote (see outbox.Approve). Let its intents count as another login's:
//
//	db.Exec(ctx, "alter table samekey.outbox alter written_by set default 'the application'")
//
// # A vendor
//
// [StartVendor] starts a vendor that honors idempotency keys, or ignores them. It loses answers, hangs, refuses and
// declines on demand, and keeps a ledger of all calls and effects, which [AssertOneEffect] and [AssertEffects] check:
//
//	vendor := samekeytest.StartVendor(t, nil)
//	vendor.Next("lose_answer", "503", "429(7)") // the faults of the next three calls
//	... run the code that calls vendor.URL ...
//	samekeytest.AssertOneEffect(t, vendor, key)
//
// # A network between client and service
//
// [StartProxy] starts a proxy in front of a service. It does to requests what load balancers and bad networks do: the
// service acts and the client gets 503, nothing, or half an answer; the answer is late; the request arrives twice. It
// takes the same faults as the vendor, and records both sides:
//
//	proxy := samekeytest.StartProxy(t, service.URL)
//	proxy.Next("503_after")              // the service acts, the client gets 503
//	first := post(proxy.URL, key, order) // 503
//	again := post(proxy.URL, key, order) // the answer that was lost
//	lost := proxy.Calls()[0].Backend[0]
package samekeytest
