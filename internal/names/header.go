package names

// ConnectionHeaders are the headers that say how a request is framed or forwarded, in lower case. The HTTP client decides
// them. samekey.header_owner has the same lists.
var ConnectionHeaders = []string{"host", "content-length", "transfer-encoding", "connection", "keep-alive", "te", "trailer", "upgrade",
	"expect", "accept-encoding", "proxy-connection", "proxy-authorization", "proxy-authenticate"}

// WorkerHeaders are those that the worker sets for any vendor, in lower case.
var WorkerHeaders = []string{"idempotency-key", "x-idempotency-key", "content-type", "traceparent", "tracestate", "samekey-attempt"}
