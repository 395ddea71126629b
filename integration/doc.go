// Package integration tests samekey with real processes. The tests start a service and workers, kill them with SIGKILL
// at named points, suspend them, cut off their database, and then check the rows and the vendor's ledger.
//
// Each process is this test binary, started again in another role: a service that handles HTTP requests with
// processed.Run, or a worker that runs a dispatcher and calls the test vendor over HTTP. They connect as the two roles
// of schema.Grant, which own no tables.
//
// A point, such as "before the call", is a place in the code of the service or the worker. There the process prints the
// point's name to its standard output and waits until it is killed or the test releases it through its standard input.
//
// Package testpg provides the server: the one that SAMEKEY_TEST_DATABASE_URL names, a container, or the Postgres
// binaries of this machine.
package integration
