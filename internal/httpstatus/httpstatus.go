// Package httpstatus defines what the status of an answer proves about the effect of its request.
//
// It knows only the meaning that RFC 9110 and the IANA registry give to a status. A vendor's own rules come first.
package httpstatus

import "slices"

// Effect is what a status proves about the request's effect.
type Effect string

// The effects.
const (
	// Acted means that the vendor acted.
	Acted Effect = "acted"
	// Later means that the vendor did not act, and that the account makes too many calls.
	Later Effect = "later"
	// Denied means that the vendor refused the credentials and did not act.
	Denied Effect = "denied"
	// NotDone means that the vendor refused the request and did not act. The same request would be refused again.
	NotDone Effect = "not done"
	// Stuck means that the vendor may have acted, and that the same request would get the same answer.
	Stuck Effect = "stuck"
	// Silent means that the answer proves nothing about the effect.
	Silent Effect = "silent"
)

// Row is a line of the table.
type Row struct {
	From, To int // statuses, both included
	Effect   Effect
	Why      string
}

// Table lists the statuses that a standard defines, in ascending order. Any other status is Silent.
var Table = []Row{
	{200, 205, Acted, "the request was carried out"},
	{206, 207, Stuck, "a part of the answer, or several results, of which one may be a failure"},
	{208, 299, Acted, "the request was carried out"},
	{300, 399, Stuck, "a redirect, which is not followed; the vendor may have acted before it"},
	{400, 400, NotDone, "the request is malformed"},
	{401, 401, Denied, "the credentials are refused"},
	{402, 405, NotDone, "refused before anything was done"},
	{406, 406, Stuck, "no acceptable form of the answer: a server may find that out after it acted"},
	{407, 407, Denied, "a proxy refused its credentials and did not forward the request"},
	{408, 408, Silent, "the server stopped waiting"},
	{409, 409, Stuck, "a conflict, possibly with the effect of the first call"},
	{410, 411, NotDone, "refused before anything was done"},
	{412, 412, Stuck, "a precondition is false, possibly because of the first call's effect"},
	{413, 417, NotDone, "refused before anything was done"},
	{421, 422, NotDone, "refused before anything was done"},
	{423, 425, Silent, "locked, failed dependency or too early: the vendor may have acted in part"},
	{426, 426, NotDone, "refused before anything was done"},
	{428, 428, NotDone, "refused before anything was done"},
	{429, 429, Later, "too many requests"},
	{431, 431, NotDone, "refused before anything was done"},
	{451, 451, NotDone, "refused for legal reasons"},
	{500, 599, Silent, "a server or a gateway failed; 501, 505 and 511 prove no more"},
}

// Of returns what a status proves. waits means that the answer has a valid Retry-After. A 403 with one is a rate limit,
// as several vendors send it.
func Of(status int, waits bool) Effect {
	if status == 403 && waits {
		return Later
	}
	if row := find(status); row != nil {
		return row.Effect
	}
	return Silent
}

// Why explains what a status proves by itself.
func Why(status int) string {
	if row := find(status); row != nil {
		return row.Why
	}
	return "no standard defines the status"
}

func find(status int) *Row {
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
		return nil
	}
	return &Table[i]
}

// PutOff reports whether the answer postpones this one request, and the vendor did not act. RFC 9110 defines it for a
// 413 with a Retry-After.
func PutOff(status int, waits bool) bool { return status == 413 && waits }
