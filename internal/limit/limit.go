// Package limit decides how many calls may be made now: a breaker that stops calls to a vendor that fails, the
// arithmetic of a rate, and a limit and a breaker for each of many endpoints. It knows numbers and names. It knows
// nothing of actions, claims or rows.
package limit
