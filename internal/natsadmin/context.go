package natsadmin

import (
	"errors"

	"github.com/nats-io/jsm.go/natscontext"
	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh"
)

// ErrNoContext: no name was given and none is selected.
var ErrNoContext = errors.New("no NATS context is selected")

// Context is a saved connection.
type Context struct {
	Name string
	// URL is one server or several, separated by commas.
	URL string
	// Options hold what the context says of credentials, TLS, proxy and inbox.
	Options []nats.Option
	// Domain is the JetStream domain; empty for the connection's own.
	Domain string
}

// LoadContext reads a context by name, or the selected one if name is empty;
// [ErrNoContext] if there is none. Where contexts are kept is the nats command
// line's business: XDG_CONFIG_HOME or the home folder. Files that the context
// names are read when connecting, except an nkey seed, which is read now.
func LoadContext(name string) (Context, error) {
	if name == "" {
		if name = natscontext.SelectedContext(); name == "" {
			return Context{}, ErrNoContext
		}
	}
	c, err := natscontext.New(name, true)
	if err != nil {
		return Context{}, toolmesh.Errorf(toolmesh.CodeInvalidRequest,
			"the NATS context %q cannot be used: %w; `nats context ls` shows those that are saved", name, err).
			WithOrigin(toolmesh.OriginCaller)
	}
	options, err := c.NATSOptions()
	if err != nil {
		return Context{}, toolmesh.Errorf(toolmesh.CodeInvalidRequest,
			"the credentials of the NATS context %q cannot be used: %w", name, err).WithOrigin(toolmesh.OriginCaller)
	}
	return Context{Name: c.Name, URL: c.ServerURL(), Options: options, Domain: c.JSDomain()}, nil
}
