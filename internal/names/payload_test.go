package names_test

import (
	"math"
	"testing"

	"github.com/samekey/samekey/internal/names"
)

func TestVersionsOfContentTypes(t *testing.T) {
	for contentType, want := range map[string]struct {
		version int
		without string
	}{
		"":                                    {1, ""},
		"application/json":                    {1, "application/json"},
		"application/json; payload-version=2": {2, "application/json"},
		`application/json;Payload-Version="12";charset=utf-8`:                   {12, "application/json;charset=utf-8"},
		"application/x+json; charset=utf-8; payload-version=3":                  {3, "application/x+json; charset=utf-8"},
		"application/json; version=2":                                           {1, "application/json; version=2"},
		"application/json; payload-version=0":                                   {1, "application/json"},
		"application/json; payload-version=x":                                   {1, "application/json; payload-version=x"},
		"application/json; payload-version=20000":                               {20000, "application/json"},
		"application/json; payload-version=99999999999999999999; charset=utf-8": {math.MaxInt, "application/json; charset=utf-8"},
		"application/json; payload-version=2x":                                  {1, "application/json; payload-version=2x"},
	} {
		if v, without := names.PayloadVersion(contentType), names.WithoutPayloadVersion(contentType); v != want.version || without != want.without {
			t.Errorf("%q: version %d of %q, want %d of %q", contentType, v, without, want.version, want.without)
		}
	}
}
