package registry

import (
	"log/slog"

	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh/internal/bus"
)

// Conn is a NATS connection with the parts that a client, a host and a view share: one inbox, the
// mesh's time and the heartbeats of nodes. [NewConn] makes one for all that use a connection.
type Conn = bus.Conn

// NewConn wraps a connection as client.New and host.New do for themselves. Close it last; the
// NATS connection stays open. A nil logger discards.
func NewConn(nc *nats.Conn, log *slog.Logger) (Conn, error) {
	b, err := bus.New(nc, &bus.Options{Logger: log})
	if err != nil {
		return nil, err
	}
	return b, nil
}
