// Package unsent has the one error that dispatcher and processed share, because neither imports the other.
package unsent

import "errors"

// Err marks errors of calls of which provably nothing was sent.
var Err = errors.New("nothing was sent")
