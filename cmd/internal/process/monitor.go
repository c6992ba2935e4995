package process

import (
	"context"
	"errors"
	"log/slog"
	"syscall"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/cmd/internal/settings"
	"github.com/toolmesh/toolmesh/internal/monitor"
)

// serveMonitor serves health and metrics over HTTP until stopped, if the settings have an address.
// watch says which member of the mesh the process is.
func serveMonitor(ctx context.Context, s settings.Monitoring, version string, log *slog.Logger) (watch func(monitor.Member), stop func(), err error) {
	if s.HTTPListen == "" {
		return func(monitor.Member) {}, func() {}, nil
	}
	m, err := monitor.Start(ctx, s.HTTPListen, &monitor.Options{Version: version, Logger: log})
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, nil, toolmesh.Errorf(toolmesh.CodeUnavailable, "%s is taken: choose another address with --http-listen or MESH_HTTP_LISTEN", s.HTTPListen)
	case err != nil:
		return nil, nil, toolmesh.Errorf(toolmesh.CodeUnavailable, "cannot listen on %s, choose another address with --http-listen or MESH_HTTP_LISTEN: %s", s.HTTPListen, toolmesh.AsError(err).Message)
	}
	log.Info("health and metrics are served", slog.String("http", m.Address()))
	return m.Watch, m.Stop, nil
}
