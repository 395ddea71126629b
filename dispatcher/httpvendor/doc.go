// Package httpvendor delivers intents to vendors over HTTP, by configuration alone: what is sent is the payload's bytes, or
// a JSON object or a form made of it, and the delivery key goes where the vendor takes it.
//
// A [Destination] is a vendor account: where it is, what is known of it, who calls. Presets such as [Stripe] fill in what
// is known. An [Action] is a request of it, with the policy under which it is made, the meaning of its answers, and the
// look-up that tells whether the vendor acted. `worker run` reads both from a file; a program that has other handlers too
// registers them itself:
//
//	dest := httpvendor.Stripe()
//	dest.Name, dest.URL, dest.Auth.Bearer = "stripe", "https://api.stripe.com", token
//	client, err := httpvendor.New(dest)
//	...
//	err = client.Register(d, httpvendor.Action{
//		Name: "charge_card", Request: "POST /v1/payment_intents", Body: httpvendor.Body{Format: httpvendor.Form},
//		Policy:  dispatcher.Policy{Class: dispatcher.IdempotentWrite, Timeout: 20 * time.Second},
//		Options: []dispatcher.Option{dispatcher.WithApply(finishOrder)},
//	})
//
// A destination may be many receivers that are called alike, such as those of [StandardWebhooks]: see [Destination.Endpoint].
//
// # One attempt is one request
//
// An attempt puts one request on the wire, or a part of one, or nothing: never two. net/http's own retries are off,
// redirects are not followed, so that key, credentials and body reach no second host, and the protocol is HTTP/1.1. The
// attempt's deadline covers all of it, from the look-up of the name to the last byte that is read, and is looked at
// again before each write to the socket, so that a process that was stopped and goes on sends nothing late. A write that
// may not be repeated gets a connection of its own: one that was idle may die under it and leave an unknown outcome for
// no reason.
//
// # What is sent is fixed before it is sent first
//
// A request with a template in its path, a body that is not the payload itself, and a body that carries the key are made
// once, before the first attempt, and kept: method, path, query, content type and body. Every attempt sends those bytes,
// whatever became of template, environment or release; only the destination's URL, headers and credentials are those of
// the moment. What cannot be made makes the intent dead, with nothing sent. Of a request without a template method and path
// are not kept: where they change, an idempotent write that may have been sent by the former is looked up, else parked.
//
// Templates are those of text/template. They find .Payload (numbers with the digits that they have), .Key (the delivery
// key as it is carried), .ID, .Action, .Part and .Headers of the intent; a member that is not there is an error, and
// {{with index .Payload "name"}} is for one that may be missing. Each value is escaped by itself for where it stands: the
// path, the query, JSON, a field. A look-up's find .Rendered and .Answer beside ([Lookup]).
//
// # What an answer means
//
// The first line that fits counts. "Once" is a class that may not be repeated (dispatcher.NonIdempotentWrite,
// dispatcher.IrreversibleWrite).
//
//	answer                                    the attempt is
//	Action.Rules, then Destination.Rules      what the first rule that fits says; once: a rule's "retry" of anything but
//	                                          429 is unknown
//	  a rule cannot see the whole body        unknown
//	  it would be a success, has a body that
//	  is not JSON, where a rule or
//	  JSONAnswers says that it is             unknown: it may be a proxy's page
//	Action.Success, by default
//	200-205, 208-299                          delivered
//	Action.Refused, default none              refused: a business no, and the intent is finished
//	Action.Accepted, default none             accepted: never sent again; the look-up or an event completes it
//	Action.Wait, default none                 put off: sent again later, by Retry-After; no attempt is spent
//	429                                       put off; the Retry-After holds for all calls of the destination, or of
//	                                          the endpoint, as far as dispatcher.Throttled says
//	403 with Retry-After                      put off likewise: several vendors limit rates so
//	413 with Retry-After                      put off
//	408, 423-425, 500-599                     the answer says nothing about the effect: unknown;
//	  with Idempotent-Replayed: true          stuck: the answer is stored, and the same key gets it for ever; looked up,
//	                                          else parked
//	  with Retry-After                        put off; once: unknown
//	what no standard defines, such as 499     as those: unknown, with Retry-After put off; once: unknown
//	206-207, 300-399, 406, 409, 412           stuck, and so is a 2xx that Action.Success does not list: the vendor may
//	                                          have acted, and the same call gets the same answer. A read: dead
//	401, 407                                  denied: sent again with the policy's backoff; no attempt is spent
//	400, 402-405, 410-411, 413-417, 421-422, 426, 428, 431, 451
//	                                          dead: it rests until a person has corrected something
//
// Dead says that the vendor did not act: an intent that is redriven is sent again, of any class. Action.Wait is therefore
// refused where a write goes out once. Whether a 409 means "still running, ask again" or "used with another request,
// never ask again" is for a rule to say, by a field of the body or a header: presets do. Where no rule and no list has it,
// the payment that it conflicts with may be this one: nothing is sent again, of no class, before a look-up or a person has
// said what happened.
//
// What is put off waits for Retry-After or the policy's backoff, whichever is longer, and so does what is unknown, stuck or
// denied, and a look-up: a vendor is never asked earlier than it said, unless it said more than a day, which is cut to a day.
//
// No answer at all is unknown if the first byte of the request may have gone out, else unsent; so is a connection that is
// refused because the name led to an address that is not public ([Destination.AllowPrivate]). An answer that breaks off is
// unknown too where its body would be kept as the last word (delivered, refused). What an unknown outcome leads to, the
// action's class decides.
//
// # Secrets
//
// Errors of this package are made of words of its own, the names of destination and action, and a status: no URL, no
// header, no text from the other side. What [Destination.Secrets] and [Auth] hold is also struck out of the answers that
// are kept, body and content type.
package httpvendor
