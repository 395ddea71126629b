// Package httpstatus has what the status of an HTTP answer proves about the effect of its request.
//
// It knows only statuses, as RFC 9110 and the registry of status codes define them. The rules for a vendor come first and say
// what that vendor means by a status.
package httpstatus

import "slices"

// Effect is what a status proves about the request's effect.
type Effect string

// The effects.
const (
	// Acted: the vendor acted.
	Acted Effect = "acted"
	// Later: the vendor did not act, and limits the rate of the whole account.
	Later Effect = "later"
	// Denied: the credentials were refused before anything was done.
	Denied Effect = "denied"
	// NotDone: the request was refused before anything was done, and would be refused again.
	NotDone Effect = "not done"
	// Stuck: the vendor may have acted, and the same request gets the same answer.
	Stuck Effect = "stuck"
	// Silent: the answer proves nothing about the effect.
	Silent Effect = "silent"
)

// Row is a line of the table.
type Row struct {
	From, To int // statuses, both included
	Effect   Effect
	Why      string
}

// Table has every status that a standard defines, in order. Any other status is Silent.
var Table = []Row{
	{200, 205, Acted, "the request was carried out"},
	{206, 207, Stuck, "a part of the answer, or many results in one: one of them may be a failure"},
	{208, 299, Acted, "the request was carried out"},
	{300, 399, Stuck, "created, then \"see other\"; or a redirect, which is not followed"},
	{400, 400, NotDone, "the request is malformed"},
	{401, 401, Denied, "the credentials are refused"},
	{402, 405, NotDone, "refused before anything was done"},
	{406, 406, Stuck, "no form of the answer is acceptable: a server may find that out after it acted"},
	{407, 407, Denied, "a proxy refused the credentials and forwarded nothing"},
	{408, 408, Silent, "the server stopped waiting"},
	{409, 409, Stuck, "a conflict, perhaps with the effect of the first call"},
	{410, 411, NotDone, "refused before anything was done"},
	{412, 412, Stuck, "a precondition fails, perhaps because of the first call"},
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

// Of returns what a status proves. Waits means that the answer has a valid Retry-After: a 403 is then a rate limit, as several
// vendors send it.
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

// PutOff reports whether an answer with a valid Retry-After means that this one request was not executed now: 413, as RFC 9110
// defines it.
func PutOff(status int, waits bool) bool { return status == 413 && waits }
