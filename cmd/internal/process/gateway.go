package process

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"syscall"

	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/cmd/internal/settings"
	"github.com/toolmesh/toolmesh/gateway"
	"github.com/toolmesh/toolmesh/internal/bus"
	"github.com/toolmesh/toolmesh/internal/connect"
	"github.com/toolmesh/toolmesh/internal/monitor"
	"github.com/toolmesh/toolmesh/registry"
)

// DefaultGateway is the default address of the gateway of `mesh up`.
const DefaultGateway = "127.0.0.1:8420"

// ServeGateway serves the HTTP and MCP gateway until stopped, if the settings have an address. It
// connects with dial, which adds no credentials; member knows the sessions' keys and their changes.
// free takes a free port if that of the address is taken. url is empty if no gateway is served.
func ServeGateway(ctx context.Context, s settings.Gateway, address string, free bool, member monitor.Member, dial func(...nats.Option) (*nats.Conn, error), version string, log *slog.Logger) (url string, stop func(), err error) {
	if address == "" || address == settings.GatewayOff {
		return "", func() {}, nil
	}
	options := gateway.Options{Dial: dial, Version: version, Logger: log, KeyOf: keyOf(member), MCPResultMax: s.MCPResultMax}
	if s.CORSOrigin != "" {
		options.CORSOrigins = strings.Split(s.CORSOrigin, ",")
	}
	g, err := gateway.New(options)
	if err != nil {
		return "", nil, err
	}
	at := gateway.ListenOptions{Address: address, Insecure: s.GatewayInsecure}
	if s.GatewayTLS != "" {
		at.CertFile, at.KeyFile, _ = strings.Cut(s.GatewayTLS, ",")
	}
	served, err := gateway.Listen(ctx, g, at)
	if free && errors.Is(err, syscall.EADDRINUSE) {
		host, _, _ := strings.Cut(address, ":")
		at.Address = host + ":0"
		served, err = gateway.Listen(ctx, g, at)
	}
	var own *toolmesh.Error
	switch {
	case err == nil:
		log.Info("the gateway is served", slog.String("gateway", served.URL()))
		return served.URL(), served.Stop, nil
	case errors.Is(err, gateway.ErrInsecure):
		err = toolmesh.Errorf(toolmesh.CodeInvalidRequest, "the gateway does not listen on %s: %w. --gateway-tls CERT,KEY serves TLS, --gateway-insecure permits it without", address, err)
	case errors.Is(err, syscall.EADDRINUSE):
		err = toolmesh.Errorf(toolmesh.CodeUnavailable, "%s is taken: choose another address with --gateway-listen or MESH_GATEWAY_LISTEN (port 0 takes a free one, off serves none)", address)
	case !errors.As(err, &own):
		err = toolmesh.Errorf(toolmesh.CodeUnavailable, "the gateway cannot listen on %s, choose another address with --gateway-listen or MESH_GATEWAY_LISTEN: %w", address, err)
	}
	g.Close()
	return "", nil, err
}

// keyOf looks up a public key in the member's view of the mesh.
func keyOf(member monitor.Member) func(string) (registry.Key, bool) {
	return func(public string) (registry.Key, bool) {
		view := member.Seen()
		if view == nil {
			return registry.Key{}, false
		}
		return view.Key(public)
	}
}

// dialAs returns how the gateway of a router connects: to the servers of the router's connection and with its demands
// on their TLS, without its credentials and its client certificate.
func dialAs(nc *nats.Conn, log *slog.Logger) func(...nats.Option) (*nats.Conn, error) {
	demands := func(o *nats.Options) error {
		o.RootCAsCB, o.TLSHandshakeFirst, o.Secure = nc.Opts.RootCAsCB, nc.Opts.TLSHandshakeFirst, nc.Opts.Secure
		return nil
	}
	return func(options ...nats.Option) (*nats.Conn, error) {
		return nats.Connect(connect.Servers(nc), append(bus.ConnectOptions(&bus.ConnectConfig{Name: "mesh-gateway", Logger: log}), append(options, demands)...)...)
	}
}
