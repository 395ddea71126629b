// Package keyclient puts an idempotency key on HTTP calls: each POST and PATCH
// gets one key before its first attempt, keeps it through all of them, and is
// sent again only because it has one.
//
// # Use
//
// [Transport] goes between http.Client and the transport that it has now:
//
//	client := &http.Client{Transport: &keyclient.Transport{Base: base}}
//	resp, err := client.Post(url, "application/json", bytes.NewReader(order))
//
// The body has to be one that can be read again: http.NewRequest and
// Client.Post see to that for bytes.Reader, bytes.Buffer and strings.Reader; for
// others set Request.GetBody. What cannot be sent again is refused with
// [ErrNotReplayable] before anything is sent.
//
// # Your own key
//
// A key that the Transport mints is lost with the process: a service that is
// killed between its call and the answer, and makes the call again after its
// restart, makes it under a new key, and there are two effects. Where the
// operation outlives the process (a job, a row, a message of a queue), mint the
// key when the operation is written down, store it beside the operation, and set
// the header. The Transport then sends that and no other:
//
//	order.Key = samekey.Mint() // in the transaction that inserts the order
//	...
//	req.Header.Set("Idempotency-Key", order.Key)
//
// One key is one operation with one body. After an answer of 4xx that you mend
// by another body, it is another operation.
//
// # What is sent again
//
// The first line that fits counts.
//
//	no answer (any error of Base)              again
//	Idempotent-Replayed: true, any status      final: the stored answer, which will not change
//	408, 425, 429, 500, 502, 503, 504          again
//	409 with Retry-After                       again: the first request with this key is still running
//	everything else, 409 and 422 with it       final
//
// Before it sends again it waits for the longer of the backoff, drawn anew, and
// the answer's Retry-After (seconds, rounded up, or an HTTP date; the longest of
// several). A Retry-After that it does not understand ("-5", "soon") counts as
// none; on a 409 it still says to wait. One that is longer than Transport.MaxWait is not waited for
// and not undercut: that answer is returned.
//
// A 409 with Retry-After spends no attempt; it is waited out for as long as
// Transport.InFlight says. When that, or the attempts, are used up, the last
// answer is returned as it came, with a nil error: look at its status. A 409 with
// Retry-After then means that the first request is still running, and 408, 425, 429 and 5xx that nobody knows; call
// again later, with the same key, which is in resp.Request.Header.
//
// Attempts put one request on the wire each: net/http by itself would send a
// request that carries Idempotency-Key a second time where a kept connection
// turns out to be dead. Over HTTP/2 it opens a stream again that the server
// refused without looking at it.
//
// The answer's body is not read here. Where it breaks off as you read it, call
// again with the same key.
//
// # When there is no answer
//
// The error holds a [*Error]. Where its Attempts are 0, nothing was sent. Else
// nobody knows whether the operation was done, and the way to find out is to call
// again with its Key, soon: servers forget keys (samekey's after 72 hours if not
// told otherwise), and then the call would be a new operation.
//
//	if failed := (*keyclient.Error)(nil); errors.As(err, &failed) && failed.Attempts > 0 {
//		store(order, failed.Key) // and send it with the next call
//	}
//
// Bound a call with its context, not with http.Client's Timeout: when that is
// over, http.Client may put an error of its own in the place of this one, and the
// key is lost. The context's deadline is for all attempts and waits together; an
// attempt alone is bounded by Base, such as ResponseHeaderTimeout of
// http.Transport, which has no bound if not told otherwise.
//
// # Redirects
//
// http.Client follows 307 and 308 with the same method and body. To the same
// scheme and host, the request goes on under its key; to another, it is refused:
// key and body reach no second host. 301, 302 and 303 become a GET, which is
// passed on, to another host without the key.
//
// # Other methods
//
// GET, HEAD, PUT, DELETE and the rest go to Base once, as they are, and nothing
// is added or sent again: what has no key is not repeated here.
package keyclient
