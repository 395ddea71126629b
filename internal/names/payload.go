package names

import (
	"regexp"
	"strconv"
	"strings"
)

// payloadVersion finds the parameter in a content type.
var payloadVersion = regexp.MustCompile(`(?i)[ \t]*;[ \t]*payload-version="?([0-9]{1,4})"?`)

// PayloadVersion returns the version of a payload from its content type: 1 if it names none.
func PayloadVersion(contentType string) int {
	if !strings.Contains(contentType, ";") { // nearly all: each attempt asks
		return 1
	}
	if found := payloadVersion.FindStringSubmatch(contentType); found != nil {
		version, _ := strconv.Atoi(found[1])
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
