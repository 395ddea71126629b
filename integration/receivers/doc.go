// Package receivers has the libraries of receivers check what samekey signs. It is a module of its own, so that
// nothing that is deployed depends on them.
package receivers
