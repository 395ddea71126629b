// Package httpstatus says what the status of an answer proves about the effect of the request that it answers.
//
// It knows statuses alone, as RFC 9110 and the registry of status codes define them. What one vendor means by a status is
// for that vendor's rules, which come first.
package httpstatus

import "slices"

// Effect is what a status proves about the request's effect.
type Effect string

// The effects.
const (
	// Acted: the vendor says that it acted.
	Acted Effect = "acted"
	// Later: the vendor did not act, and wants fewer calls of the whole account.
	Later Effect = "later"
	// Denied: the credentials were refused before anything was done.
	Denied Effect = "denied"
	// NotDone: the request was refused before anything was done, and would be refused again.
	NotDone Effect = "not done"
	// Stuck: the vendor may have acted, and the same request gets the same answer again.
	Stuck Effect = "stuck"
	// Silent: the answer says nothing about the effect.
	Silent Effect = "silent"
)

// Row is a line of the table.
type Row struct {
	From, To int // statuses, both included
	Effect   Effect
	Why      string
}

// Table holds every status that has a meaning of its own, in order. Any other is Silent: no standard says what it means, so
// it proves nothing.
var Table = []Row{
	{200, 205, Acted, "the request was carried out"},
	{206, 207, Stuck, "a part of the answer, or many results in one: one of them may be a failure"},
	{208, 299, Acted, "the request was carried out"},
	{300, 399, Stuck, "created, then \"see other\"; or a redirect, which is not followed"},
	{400, 400, NotDone, "the request is malformed"},
	{401, 401, Denied, "the credentials are refused"},
	{402, 405, NotDone, "refused before anything was done"},
	{406, 406, Stuck, "the answer has no form that was asked for: servers find that out after they acted, too"},
	{407, 407, Denied, "a proxy refused its credentials, and passed nothing on"},
	{408, 408, Silent, "the server stopped waiting"},
	{409, 409, Stuck, "a conflict: with what the first call did, too"},
	{410, 411, NotDone, "refused before anything was done"},
	{412, 412, Stuck, "a precondition does not hold: the first call may have changed what it is about"},
	{413, 417, NotDone, "refused before anything was done"},
	{421, 422, NotDone, "refused before anything was done"},
	{423, 425, Silent, "locked, a dependency failed, or too early: parts may be done"},
	{426, 426, NotDone, "refused before anything was done"},
	{428, 428, NotDone, "refused before anything was done"},
	{429, 429, Later, "too many requests"},
	{431, 431, NotDone, "refused before anything was done"},
	{451, 451, NotDone, "refused for legal reasons"},
	{500, 599, Silent, "a server or a gateway failed, also 501, 505 and 511"},
}

// Of returns what a status proves. With waits, the answer has a Retry-After that can be read: a 403 is a rate limit then, as
// several vendors send it.
func Of(status int, waits bool) Effect {
	if status == 403 && waits {
		return Later
	}
	i, found := slices.BinarySearchFunc(Table, status, func(r Row, status int) int {
		switch {
		case r.To < status:
			return -1
		case r.From > status:
			return 1
		}
		return 0
	})
	if !found {
		return Silent
	}
	return Table[i].Effect
}

// PutOff reports whether an answer that has a Retry-After says that this one request was not carried out now: 413, of which
// RFC 9110 says so.
func PutOff(status int, waits bool) bool { return status == 413 && waits }
