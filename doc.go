// Package samekey holds the words that all its packages share.
package samekey
