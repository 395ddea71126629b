package dispatcher

import "slices"

// account is a destination as it is registered: a vendor account, shared by the actions that name it.
type account struct {
	name     string
	limits   Limits   // with their defaults
	given    []Limits // as they were declared
	vendor   Vendor
	declared bool
	actions  []*action
}

func (dest *account) hasEndpoints() bool {
	return slices.ContainsFunc(dest.actions, func(a *action) bool { return a.endpoint != nil })
}
