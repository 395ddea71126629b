package daemon

import (
	"fmt"
	"log/slog"
	"strings"
)

func newLogger(o Options) (*slog.Logger, error) {
	var level slog.Level
	if text := o.env("LOG_LEVEL", "info"); level.UnmarshalText([]byte(text)) != nil {
		return nil, fmt.Errorf("daemon: LOG_LEVEL %q is not one of debug, info, warn, error", text)
	}
	options := &slog.HandlerOptions{Level: level, ReplaceAttr: clean}
	switch format := o.env("LOG_FORMAT", "json"); format {
	case "json":
		return slog.New(slog.NewJSONHandler(o.Stderr, options)), nil
	case "text":
		return slog.New(slog.NewTextHandler(o.Stderr, options)), nil
	default:
		return nil, fmt.Errorf("daemon: LOG_FORMAT %q is not one of json, text", format)
	}
}

// clean removes what net/http prints to the log by itself: unsolicited bytes from a vendor.
func clean(_ []string, a slog.Attr) slog.Attr {
	if a.Key == slog.MessageKey && strings.HasPrefix(a.Value.String(), "Unsolicited response received") {
		a.Value = slog.StringValue("net/http: a vendor sent data on an idle connection, which was closed")
	}
	return a
}
