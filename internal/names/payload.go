package names

import (
	"regexp"
	"strconv"
	"strings"
)

// payloadVersion finds the parameter in a content type.
var payloadVersion = regexp.MustCompile(`(?i)[ \t]*;[ \t]*payload-version="?([0-9]+)\b"?`)

// PayloadVersion returns the version of a payload from its content type: 1 if it names none. One that is too long for an
// int is later than every other.
func PayloadVersion(contentType string) int {
	if !strings.Contains(contentType, ";") { // nearly all: each attempt asks
		return 1
	}
	if found := payloadVersion.FindStringSubmatch(contentType); found != nil {
		version, _ := strconv.Atoi(found[1]) // math.MaxInt if it is out of range
		return max(version, 1)
	}
	return 1
}

// WithoutPayloadVersion returns a content type as a vendor gets it.
func WithoutPayloadVersion(contentType string) string {
	if !strings.Contains(contentType, ";") {
		return contentType
	}
	return payloadVersion.ReplaceAllString(contentType, "")
}
