// Package integration is the proof: its tests start the service and the worker
// as processes of their own, kill them with SIGKILL at named points, stop them,
// cut their database off, and then look at the rows and at the vendor's ledger.
//
// The processes are this test binary, started again in another role: a service
// that does requests with processed.Run behind HTTP, and a worker that runs a
// dispatcher and calls the test vendor over HTTP. They connect as the two roles
// of schema.Grant, neither of which owns a table. A point, such as "before the
// call", is a place in the test's own handler where the process says so on its
// standard output and waits: for the end, or for a word on its standard input.
//
// The server is that of package testpg: the one that SAMEKEY_TEST_DATABASE_URL
// names, a container, or the binaries of this machine.
package integration
