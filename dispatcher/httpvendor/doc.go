// Package httpvendor delivers intents to vendors over HTTP, by configuration alone: the payload's bytes are the
// request's body, and the delivery key goes into a header.
//
// A [Destination] is a vendor account: where it is, what it must be sent with each call, which header carries the key.
// An [Action] is a request of it, with the policy under which it is made and the meaning of its answers. `worker run`
// reads both from a file; a program that has other handlers too registers them itself:
//
//	client, err := httpvendor.New(httpvendor.Destination{
//		Name: "stripe", URL: "https://api.stripe.com", KeyWindow: 24 * time.Hour,
//		Headers: map[string]string{"Authorization": "Bearer " + token}, Secrets: []string{token},
//	})
//	...
//	err = client.Register(d, httpvendor.Action{
//		Name: "charge_card", Request: "POST /v1/charges",
//		Refused: httpvendor.Statuses{{402, 402}},
//		Policy:  dispatcher.Policy{Class: dispatcher.IdempotentWrite, Timeout: 20 * time.Second},
//	})
//
// [Client.Handler] returns the handler alone, for an action that also has a look-up or an Apply:
//
//	handler, err := client.Handler(action)
//	d.Handle(action.Name, action.Policy, handler, dispatcher.WithApply(finishOrder))
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
// # What an answer means
//
// The first line that fits counts. "Once" is a class that may not be repeated (dispatcher.NonIdempotentWrite,
// dispatcher.IrreversibleWrite).
//
//	status                                    the attempt is
//	Action.Success, default 200-299           delivered
//	Action.Refused, default none              refused: a business no, and the intent is finished
//	Action.Wait, default none, and 429        put off: sent again later, by Retry-After; no attempt is spent
//	408, 425, 500-599 with Retry-After        put off likewise; once: unknown
//	408, 425, 500-599                         unknown: the vendor may have acted
//	any other 2xx, any 3xx, 409               dead; once: unknown, since the vendor may have acted
//	any other 4xx                             dead: it rests until a person has mended something
//
// Dead says that the vendor did not act: an intent that is redriven is sent again, of any class. Action.Wait is therefore
// refused where a write goes out once.
//
// No answer at all is unknown if the first byte of the request may have gone out, else unsent. An answer that breaks off
// is unknown too where its body would be kept as the last word (delivered, refused). What an unknown outcome leads to,
// the action's class decides.
//
// # Secrets
//
// Errors of this package are made of words of its own, the names of destination and action, and a status: no URL, no
// header, no text from the other side. What [Destination.Secrets] names is also struck out of the answers that are kept,
// body and content type.
package httpvendor
