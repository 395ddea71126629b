// Package samekeytest is for tests of code that may be repeated: a database for
// each test, a vendor and a network that fail on demand, time that passes on
// demand, and a suite that says whether a handler keeps its promises.
//
// # A database
//
// [NewDB] returns a migrated Postgres database that no other test sees. [Elapse]
// lets time pass for what is stored in it, and [AssertInserted] says whether an
// intent was inserted.
//
// # A vendor
//
// [StartVendor] starts a vendor that honours idempotency keys, or does not. It
// keeps a ledger of calls and effects ([AssertOneEffect]), and loses answers,
// hangs, refuses and declines as it is told.
//
// # A network between client and service
//
// [StartProxy] starts a proxy in front of a service. It makes happen what load
// balancers and bad lines do to a request: the service acts and the client hears
// 503, nothing, or half; the answer is late; the request arrives twice. It has
// the same words for its faults as the vendor, and records both sides.
//
//	proxy := samekeytest.StartProxy(t, service.URL)
//	proxy.Next("503_after")              // the service acts, the client hears 503
//	first := post(proxy.URL, key, order) // 503
//	again := post(proxy.URL, key, order) // the answer that was lost
//	lost := proxy.Calls()[0].Backend[0]
//
// # The suite
//
// [Conform] runs against a service of yours, and [ConformTool] against a
// function: two identical requests, two that overlap, another payload under the
// same key, a lost answer, a duplicate, a lost connection to the database and a
// crash at each of the request's round trips. After each there has to be one
// effect, as your own function counts them, and one answer. What fails says
// where, and what usually causes it.
package samekeytest
