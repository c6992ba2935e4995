package process

import (
	"io"
	"log/slog"

	"github.com/toolmesh/toolmesh/cmd/internal/settings"
)

// Logger writes to w what the settings ask for, from the level otherwise on if
// they name none.
func Logger(w io.Writer, l settings.Logging, otherwise slog.Level) *slog.Logger {
	options := &slog.HandlerOptions{Level: l.Level(otherwise)}
	if l.LogFormat == "json" {
		return slog.New(slog.NewJSONHandler(w, options))
	}
	return slog.New(slog.NewTextHandler(w, options))
}
