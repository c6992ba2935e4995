package process

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nats.go"
	"github.com/spf13/pflag"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/cmd/internal/settings"
	"github.com/toolmesh/toolmesh/internal/access"
	"github.com/toolmesh/toolmesh/internal/bus"
	"github.com/toolmesh/toolmesh/internal/natsadmin"
)

// DefaultURL is where a mesh is looked for if nothing says where.
const DefaultURL = "nats://127.0.0.1:4222"

// ConnectOptions adjusts [Connect].
type ConnectOptions struct {
	// Name is shown by the broker beside the connection. Required.
	Name string
	// Wait goes on trying until the first broker answers. Defaults to an error.
	Wait bool
	// Role is what the process is on the mesh. Where the settings name no credentials
	// it takes the key of that role which `mesh up` of this user made for the server
	// (found by Env, an environment), if any. Defaults to none.
	Role access.Role
	Env  []string
	// Inboxes are inbox prefixes for a connection with a key, which may subscribe
	// few: the first that it may is taken, and none is permission_denied. Only the
	// first is tried where Wait is set. Of a credentials file the first that it names
	// is taken, and the usual prefix where it names none.
	Inboxes []string
	// Logger takes what happens to the connection; nil discards it.
	Logger *slog.Logger
}

// Connect connects as the settings say: to the context if one is named, else to
// the URL, else to [DefaultURL]. The connection is the caller's to close. The
// error is a [toolmesh.Error]: unavailable where nothing answers,
// permission_denied where the credentials are refused.
func Connect(ctx context.Context, c settings.Connection, o ConnectOptions) (*nats.Conn, error) {
	options := bus.ConnectOptions(&bus.ConnectConfig{Name: o.Name, RetryFirst: o.Wait, Logger: o.Logger})
	at := c.NATSURL
	if at == "" && c.NATSContext != "" {
		saved, err := savedContext(c.NATSContext)
		if err != nil {
			return nil, toolmesh.AsError(err).WithStarted(toolmesh.StartedNo)
		}
		// The context's options come first: the mesh's policy stands.
		options, at = append(saved.Options, options...), saved.URL
	}
	if at == "" {
		at = DefaultURL
	}
	if c.NATSCreds != "" {
		if _, err := os.Stat(c.NATSCreds); err != nil {
			return nil, toolmesh.Errorf(toolmesh.CodeInvalidRequest, "the NATS credentials file %s cannot be read: %w", c.NATSCreds, err).
				WithOrigin(toolmesh.OriginCaller).WithStarted(toolmesh.StartedNo)
		}
		options = append(options, nats.UserCredentials(c.NATSCreds))
		if prefix := inboxOf(c.NATSCreds, o.Inboxes); prefix != "" {
			options = append(options, nats.CustomInboxPrefix(prefix))
		}
	}
	file := c.NATSNkey
	if file == "" && c.NATSCreds == "" && (c.NATSURL != "" || c.NATSContext == "") && o.Role != "" {
		file = StateOf(o.Env).key(at, o.Role)
	}
	var inboxes []string
	if file != "" {
		key, err := access.Option(file)
		if err != nil {
			return nil, err
		}
		options, inboxes = append(options, key), o.Inboxes
	}
	for {
		with := options
		if len(inboxes) > 0 {
			with = append(slices.Clip(options), nats.CustomInboxPrefix(inboxes[0]))
			inboxes = inboxes[1:]
		}
		nc, err := nats.Connect(at, with...)
		if err != nil {
			return nil, connectError(at, err)
		}
		if ctx.Err() != nil {
			nc.Close()
			return nil, context.Cause(ctx)
		}
		if file == "" || len(o.Inboxes) == 0 || o.Wait || bus.MayHear(nc, nc.NewInbox()) {
			return nc, nil
		}
		nc.Close()
		if len(inboxes) == 0 {
			return nil, toolmesh.Errorf(toolmesh.CodePermissionDenied,
				"the key in %s is for none of the inboxes %s: the key of a session takes --session", file, strings.Join(o.Inboxes, ", ")).
				WithOrigin(toolmesh.OriginCaller).WithStarted(toolmesh.StartedNo)
		}
	}
}

// inboxOf is the first of some inbox prefixes that a credentials file names among what
// its user may subscribe; empty for none, and for a file that is damaged, which the
// server will refuse.
func inboxOf(creds string, prefixes []string) string {
	data, err := os.ReadFile(creds)
	if err != nil {
		return ""
	}
	token, err := jwt.ParseDecoratedJWT(data)
	if err != nil {
		return ""
	}
	user, err := jwt.DecodeUserClaims(token)
	if err != nil {
		return ""
	}
	for _, prefix := range prefixes {
		if slices.Contains(user.Sub.Allow, prefix+".>") {
			return prefix
		}
	}
	return ""
}

// savedContext reads a saved context where the nats command line keeps it: below
// XDG_CONFIG_HOME, else below HOME. The library would ask the system whose home
// it is where HOME, as in a container or under sudo, says another.
func savedContext(name string) (natsadmin.Context, error) {
	if home := os.Getenv("HOME"); home != "" && os.Getenv("XDG_CONFIG_HOME") == "" {
		if err := os.Setenv("XDG_CONFIG_HOME", filepath.Join(home, ".config")); err != nil {
			return natsadmin.Context{}, toolmesh.Errorf(toolmesh.CodeInternal, "%w", err)
		}
	}
	return natsadmin.LoadContext(name)
}

// Domain is the JetStream domain that holds the mesh's streams, if the settings
// name a saved context that has one; empty for the connection's own.
func Domain(c settings.Connection) string {
	if c.NATSURL != "" || c.NATSContext == "" {
		return ""
	}
	saved, err := savedContext(c.NATSContext)
	if err != nil {
		return ""
	}
	return saved.Domain
}

func connectError(at string, err error) error {
	code, shown := toolmesh.CodeUnavailable, Redact(at)
	text := fmt.Errorf("no mesh at %s: %w", shown, err)
	var unparsable *url.Error
	switch {
	case errors.As(err, &unparsable):
		code = toolmesh.CodeInvalidRequest
		text = fmt.Errorf("%s is no address of a NATS server, write nats://HOST:PORT: %w", shown, unparsable.Err)
	case errors.Is(err, nats.ErrNoServers):
		text = fmt.Errorf("no mesh at %s: nothing answers there; start one with mesh up, or name another with --server", shown)
	case errors.Is(err, nats.ErrAuthorization), errors.Is(err, nats.ErrAuthExpired), errors.Is(err, nats.ErrAuthRevoked):
		code = toolmesh.CodePermissionDenied
		text = fmt.Errorf("the NATS server at %s refuses the credentials: they are neither in its configuration (where that has an auth_callout, among its auth_users, too) nor the key of a session that goes on: %w", shown, err)
	}
	return toolmesh.Errorf(code, "%w", text).WithOrigin(toolmesh.OriginCaller).WithStarted(toolmesh.StartedNo)
}

// Redact returns a list of server URLs without what is secret in them.
func Redact(servers string) string {
	parts := strings.Split(servers, ",")
	for i, part := range parts {
		part = strings.TrimSpace(part)
		if u, err := url.Parse(part); err == nil && u.User != nil {
			u.User = nil
			part = u.String()
		} else if at := strings.LastIndexByte(part, '@'); at >= 0 {
			part = fmt.Sprintf("…%s", part[at:])
		}
		parts[i] = part
	}
	return strings.Join(parts, ",")
}

// Settle makes what flags and the environment say of the connection one: a flag wins
// over the variable of the other kind. It refuses both flags at once, and a list of
// servers that no client could connect to, by the name of the setting that says it.
func Settle(env []string, flags *pflag.FlagSet, c *settings.Connection) error {
	server, saved := flags.Changed("server"), flags.Changed("context")
	name := "--server"
	switch {
	case server && saved:
		return errors.New("--server and --context both say where the mesh is: give one")
	case server:
		c.NATSContext = ""
	case saved:
		c.NATSURL = ""
	case Lookup(env, "MESH_NATS_URL") != "":
		name = "MESH_NATS_URL"
	default:
		name = "NATS_URL"
	}
	for server := range strings.SplitSeq(c.NATSURL, ",") {
		if err := checkURL(strings.TrimSpace(server)); err != nil {
			return fmt.Errorf("%s: %q %w", name, Redact(server), err)
		}
	}
	return nil
}

func checkURL(server string) error {
	if server == "" {
		return nil
	}
	if !strings.Contains(server, "://") {
		server = "nats://" + server
	}
	u, err := url.Parse(server)
	if err != nil || u.Host == "" {
		return errors.New("is not the URL of a NATS server: want nats://host:port")
	}
	if !slices.Contains([]string{"nats", "tls", "ws", "wss"}, strings.ToLower(u.Scheme)) {
		return errors.New("is not the URL of a NATS server: it begins with nats, tls, ws or wss, want nats://host:port")
	}
	if port := u.Port(); port != "" {
		if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
			return errors.New("has no port between 1 and 65535")
		}
	}
	return nil
}
