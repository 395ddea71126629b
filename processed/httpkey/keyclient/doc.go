// Package keyclient makes HTTP calls safe to retry. Each POST and PATCH gets one idempotency key before its first
// attempt, keeps it through all attempts, and is retried only because it has one.
//
// # Use
//
// [Transport] goes between http.Client and its current transport:
//
//	client := &http.Client{Transport: &keyclient.Transport{Base: base}}
//	resp, err := client.Post(url, "application/json", bytes.NewReader(order))
//
// It must be possible to read the body again. http.NewRequest and Client.Post ensure this for bytes.Reader,
// bytes.Buffer and strings.Reader; for others set Request.GetBody. Otherwise the request fails with [ErrNotReplayable]
// before anything is sent.
//
// # Your own key
//
// A key that the Transport mints is lost with the process. If a service is killed between its call and the answer and
// makes the call again after its restart, it uses a new key, and there are two effects. If the operation outlives the
// process (a job, a row, a message in a queue), mint the key when the operation is recorded, store it with the
// operation, and set the header. The Transport then sends that key and no other:
//
//	order.Key = samekey.Mint() // in the transaction that inserts the order
//	..
//	req.Header.Set("Idempotency-Key", order.Key)
//
// One key is one operation with one body. If you correct the body after a 4xx answer, that is another operation.
//
// # What is retried
//
// The first line that matches counts.
//
//	no answer (any error of Base)              retried
//	Idempotent-Replayed: true, any status      final: the stored answer, which will not change
//	408, 425, 429, and 500 or above            retried
//	409 with Retry-After                       retried: the first request with this key is still running
//	everything else, also 409 and 422          final
//
// Before a retry the Transport waits for the longer of a random backoff and the answer's Retry-After (seconds, rounded
// up, or an HTTP date; the longest of several). An invalid Retry-After ("-5", "soon") counts as none, but on a 409 it
// still means to wait. If Retry-After is longer than Transport.MaxWait, the answer is returned at once.
//
// A 409 with Retry-After uses no attempt. The Transport waits for up to Transport.InFlight. When that time or the
// attempts are used up, the last answer is returned as it came, with a nil error: look at its status. A 409 with
// Retry-After then means that the first request is still running. 408, 425, 429 and 5xx mean that the outcome is
// unknown. Call again later, with the same key, which is in resp.Request.Header.
//
// Each attempt sends one request. net/http alone would send a request that carries Idempotency-Key a second time if a
// reused connection is dead. Over HTTP/2, after a pause of up to a minute, it would also resend a request without a
// body that the server refused unprocessed (REFUSED_STREAM, GOAWAY). Here such a refusal ends the attempt, and the next
// attempt counts.
//
// The answer's body is not read. If it breaks off while you read it, call again with the same key.
//
// # Errors
//
// An error is an [*Error]. If its Attempts is 0, nothing was sent. Otherwise the outcome is unknown: call again with
// its Key, soon. Servers forget keys (samekey's after 72 hours by default), and then the call is a new operation.
//
//	if failed := (*keyclient.Error)(nil); errors.As(err, &failed) && failed.Attempts > 0 {
//		store(order, failed.Key) // and send it with the next call
//	}
//
// Bound a call by its context, not by http.Client's Timeout: http.Client may replace this error by its own, and the key
// is lost. The context's deadline covers all attempts and waits. Base bounds a single attempt, such as by
// http.Transport.ResponseHeaderTimeout, which has no limit by default.
//
// # Redirects
//
// http.Client follows 307 and 308 with the same method and body. To the same scheme and host, the request keeps its
// key. To another it is refused, so that key and body reach no second host. 301, 302 and 303 become a GET, which is
// passed on; to another host it goes without the key.
//
// # Other methods
//
// GET, HEAD, PUT, DELETE and the rest go to Base once and unchanged: a request without a key is not retried here. If
// the server accepts keys with PUT or DELETE, name them in Transport.Methods.
package keyclient
