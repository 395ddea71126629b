// Package httpvendor delivers intents (outbox messages) to vendors over HTTP by configuration alone. It sends the
// payload's bytes, or a JSON object or a form made from the payload, and puts the delivery key where the vendor takes
// it.
//
// A [Destination] is a vendor account: its URL, what is known about the vendor, and the credentials. Presets such as
// [Stripe] fill in what is known. An [Action] is a request to a destination, with its policy, the meaning of the
// vendor's answers, and the [Lookup] (reconciliation) that finds out whether the vendor acted. `worker run` reads both
// from a file. A program with other functions in Go registers them itself:
//
//	dest := httpvendor.Stripe()
//	dest.Name, dest.URL, dest.Auth.Bearer = "stripe", "https://api.stripe.com", token
//	client, err := httpvendor.New(dest)
//	...
//	client.Register(d)
//	delivery := httpvendor.Delivery[Charge](client, httpvendor.Action{
//		Request: "POST /v1/payment_intents", Body: httpvendor.Body{Format: httpvendor.Form},
//		Policy:  dispatcher.Policy{Class: dispatcher.IdempotentWrite, Timeout: 20 * time.Second},
//	})
//	delivery.Apply = finishOrder
//	dispatcher.Handle(d, ChargeCard, delivery) // outbox.NewAction[Charge]("charge_card")
//
// A destination may be many receivers that are called alike, such as those of [StandardWebhooks]: see
// [Destination].Endpoint.
//
// # One attempt is one request
//
// An attempt puts at most one request on the wire, or a part of one. net/http's own retries are off. Redirects are not
// followed, so key, credentials and body reach no second host. The protocol is HTTP/1.1, unless HTTP/2 is asked for:
// see below. The attempt's deadline covers everything from resolving the name to the last byte that is read. The
// deadline is checked again before each write to the socket, so a process that was stopped and continues sends nothing
// late. If the whole answer does not arrive, the connection is reset, so that what the kernel has queued does not
// arrive later, even if the process is killed. A write that may not be repeated gets its own connection: an idle one
// may break under it and leave an unknown outcome for no reason.
//
// # HTTP/2
//
// With [Destination].HTTP2, reads, idempotent writes and lookups share connections. Calls that may not be repeated keep
// HTTP/1.1 and their own connections. A shared connection cannot be reset for each attempt that ends without its answer,
// so it is reset only if something of the request may still be in this machine: the request is not complete, or the
// vendor's kernel has not acknowledged all of it. The other attempts on it are then unknown, and are made again.
// Otherwise the stream is cancelled. On systems other than Linux, each such attempt resets the connection.
//
// A stream that the vendor resets with REFUSED_STREAM, or that is after the last one of its GOAWAY, was not processed
// (RFC 9113, section 8.7): the attempt is unsent. A stream that ends in another way without its answer is unknown.
//
// # Every attempt sends the same request
//
// A request with a template in its path, a body other than the payload itself, and a body that carries the key are made
// once, before the first attempt, and stored: method, path, query, content type and body. Every attempt sends those
// bytes, even if the template, the environment or the release changes. Each attempt uses the current URL, headers and
// credentials of the destination; they are not stored. If the request cannot be made, the intent is dead and nothing is
// sent. The method and path of a request without a template are not stored. If they change, an idempotent write that
// may have been sent in the old form is looked up, or parked.
//
// Templates are Go's text/template. They can use .Payload (numbers keep their digits), .Key (the delivery key as it is
// sent), .ID, .Action, .Part, .Subject and .Headers of the intent. A missing member is an error; use {{with index .Payload
// "name"}} for an optional one. Each value is escaped for its place: the path, the query, JSON, or a field. A lookup's
// templates can also use .Rendered, .Response and .Reference ([Lookup]).
//
// # What an answer means
//
// The first matching line counts. "Once" stands for a class that forbids repeats (dispatcher.NonIdempotentWrite,
// dispatcher.IrreversibleWrite). The outcomes are the functions of package dispatcher.
//
//	answer                                    outcome
//	Action.Rules, then Destination.Rules      that of the first rule that matches; once: a rule's retry for anything but
//	                                          429 is unknown
//	  a rule cannot see the whole body        unknown
//	  it would be a success, and its body is
//	  not JSON, although a rule or
//	  JSONAnswers expects JSON                unknown: it may be a proxy's page
//	Action.Delivered, by default
//	200-205, 208-299                          delivered
//	Action.Refused, default none              refused: a business refusal; the intent is finished
//	Action.Accepted, default none             accepted: never sent again; the lookup or an event completes the intent
//	Action.Retry, default none                retry after Retry-After; no attempt is used
//	429                                       retry; the Retry-After applies to all calls of the destination, or of the
//	                                          endpoint (dispatcher.Outcome.ForAccount); without one they wait for a time
//	                                          that grows
//	403 with Retry-After                      as 429: several vendors limit rates this way
//	413 with Retry-After                      retry
//	408, 423-425, 500-599                     the answer proves nothing about the effect: unknown
//	  with Idempotent-Replayed: true          stuck: the answer is stored, and the same key always gets it; looked up,
//	                                          or parked
//	  with Retry-After                        retry; once: unknown
//	a status that no standard defines         as those: unknown, with Retry-After retry; once: unknown
//	206-207, 300-399, 406, 409, 412           stuck, and so is a 2xx that Action.Delivered does not list: the vendor may
//	                                          have acted, and the same call gets the same answer. A read: dead
//	401, 407                                  denied: sent again with the policy's backoff; no attempt is used
//	400, 402-405, 410-411, 413-417, 421-422, 426, 428, 431, 451
//	                                          dead: it rests until a person has changed something
//
// Dead means that the vendor did not act: an intent of any class is sent again after a redrive. So Action.Retry is not
// allowed for a write that goes out once. A 409 can mean "still running, ask again" or "used with another request,
// never ask again": a rule decides that by a field of the body or a header. Presets have such rules. Without a rule or
// a list for it, the call that a 409 conflicts with may be this one: nothing is sent again, in any class, before a
// lookup or a person has found out.
//
// A retry waits for Retry-After or the policy's backoff, whichever is longer. So do calls and lookups after unknown,
// stuck and denied. A vendor is never called earlier than it asks, unless it asks for more than a day, which is cut to
// a day.
//
// If no answer arrives, the outcome is unknown if the first byte of the request may have been sent, and unsent if not.
// It is also unsent if the name leads to an address that is not public ([Destination].AllowPrivate). An answer that
// breaks off is unknown if it would be delivered or refused, whose body is kept. The action's class decides what
// follows from unknown.
//
// # Credentials that change
//
// Each attempt and each lookup takes one set of credentials at its start: headers, signing keys, and the user, path and
// query of the URL. [Destination].Credentials gives the present ones, such as those of a vault. After an answer that
// means denied they are fetched again, so a token that was revoked costs no attempt. While there are none, intents are
// unsent with the code "credentials", and the destination's breaker opens as for a vendor that cannot be reached.
//
// # Secrets
//
// Errors of this package consist of its own words, the destination's name and a status. They contain no URL, no header
// and no text from the vendor. The values in [Destination].Secrets and [Auth] are also removed from stored answers,
// from body and content type, and so are those of the last [Credentials].
package httpvendor
