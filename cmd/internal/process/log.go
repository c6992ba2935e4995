package process

import (
	"io"
	"log/slog"

	"github.com/toolmesh/toolmesh/cmd/internal/settings"
)

// Logger returns a logger to w as the settings say. otherwise is the default level.
func Logger(w io.Writer, l settings.Logging, otherwise slog.Level) *slog.Logger {
	options := &slog.HandlerOptions{Level: l.Level(otherwise)}
	if l.LogFormat == "json" {
		return slog.New(slog.NewJSONHandler(w, options))
	}
	return slog.New(slog.NewTextHandler(w, options))
}
