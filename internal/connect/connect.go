package connect

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/internal/access"
	"github.com/toolmesh/toolmesh/internal/bus"
	"github.com/toolmesh/toolmesh/subjects"
)

// DefaultURL is the address of the mesh if nothing names another one.
const DefaultURL = "nats://127.0.0.1:4222"

// Settings name the servers of a mesh and the credentials for them. Each may be empty.
type Settings struct {
	URL     string // servers, comma-separated; wins over Context
	Context string // name of a saved NATS context
	Creds   string // NATS credentials file
	Nkey    string // file of an nkey's seed, mode 0600
}

// FromEnv returns the settings of an environment: each of MESH_NATS_URL, MESH_NATS_CONTEXT,
// MESH_NATS_CREDS and MESH_NATS_NKEY, else the NATS_ variable of that name; one that is
// empty switches that one off. A context named for the mesh wins over NATS_URL, else an
// address wins over a context.
func FromEnv(env []string) Settings {
	first := func(name string) string {
		if value, set := LookupEnv(env, "MESH_"+name); set {
			return value
		}
		return Lookup(env, name)
	}
	s := Settings{URL: first("NATS_URL"), Context: first("NATS_CONTEXT"), Creds: first("NATS_CREDS"), Nkey: first("NATS_NKEY")}
	if Lookup(env, "MESH_NATS_CONTEXT") != "" && Lookup(env, "MESH_NATS_URL") == "" {
		s.URL = ""
	}
	if s.URL != "" {
		s.Context = ""
	}
	return s
}

// Options adjusts [Connect].
type Options struct {
	Settings
	// Env is the environment of the user, in the form of os.Environ, with the folders of saved
	// contexts and of the records of `mesh up`. Defaults to none.
	Env []string
	// Name is shown by the broker next to the connection. Defaults to "toolmesh".
	Name string
	// Role is the role of the process on the mesh. Where the settings name no credentials
	// it takes the key of that role which `mesh up` of this user made for the server, if
	// any. Defaults to none.
	Role access.Role
	// Inboxes are inbox prefixes for a connection with a key, which may subscribe
	// few of them: the first permitted one is taken; none is permission_denied. For the key
	// of a saved context the usual prefix comes last. Only the first is tried where Wait is
	// set. Of a credentials file the first one that it names is taken, and the usual prefix
	// where it names none.
	Inboxes []string
	// Wait returns before the first broker answers and goes on trying. Defaults to an
	// error.
	Wait bool
	// Logger logs the events of the connection; nil discards them.
	Logger *slog.Logger
	// SayServer and SaySession are the names of the user's settings for the server and the session
	// in errors. Default to those of client.Connect.
	SayServer, SaySession string
}

// Inboxes returns the inbox prefixes that a connection of a user may have, that of a role
// first, then that of a session ("" is the default one). The error is that of a name that no
// session can have.
func Inboxes(role access.Role, session subjects.SessionID) ([]string, error) {
	own, err := subjects.InboxPrefix(cmp.Or(session, subjects.DefaultSession))
	inboxes := []string{role.Inbox(), own}
	for _, other := range []access.Role{access.Admin, access.Node} {
		if other != role {
			inboxes = append(inboxes, other.Inbox())
		}
	}
	return inboxes, err
}

// Servers returns the servers that the settings name, else [DefaultURL], without the users and
// passwords in them: for connections with other credentials than those of the settings.
func Servers(o Settings, env []string) (string, error) {
	servers := o.URL
	if servers == "" && o.Context != "" {
		saved, _, err := readContext(env, o.Context)
		if err != nil {
			return "", failed(toolmesh.CodeInvalidRequest, err)
		}
		servers = saved.URL
	}
	all := strings.Split(cmp.Or(servers, DefaultURL), ",")
	for i, server := range all {
		u, err := parse(server)
		if err != nil {
			return "", failed(toolmesh.CodeInvalidRequest, fmt.Errorf("the address %q %w", Redact(servers), err))
		}
		u.User = nil
		all[i] = u.String()
	}
	return strings.Join(all, ","), nil
}

// Connect connects to the mesh that the settings name, else to the one that `mesh up` of
// the user of Env left running, else to [DefaultURL], with the connection policy of
// [bus.ConnectOptions]. The connection is the caller's to close; domain is the JetStream
// domain of the mesh's streams, if a saved context names one. The error is a
// [toolmesh.Error]: unavailable where nothing answers, permission_denied where the
// credentials are refused, invalid_request for settings that cannot be used.
func Connect(ctx context.Context, o Options) (nc *nats.Conn, domain string, err error) {
	var saved savedContext
	var options []nats.Option // a context's come first: the mesh's policy wins
	if o.URL == "" && o.Context != "" {
		if saved, options, err = readContext(o.Env, o.Context); err != nil {
			return nil, "", failed(toolmesh.CodeInvalidRequest, err)
		}
		o.URL = saved.URL
		if o.Creds == "" && o.Nkey == "" && saved.User == "" {
			if o.Creds = saved.Creds; o.Creds == "" {
				o.Nkey = saved.NKey
				if len(o.Inboxes) > 0 { // the server's configuration may give it those that any user has
					o.Inboxes = append(slices.Clip(o.Inboxes), strings.TrimSuffix(nats.InboxPrefix, "."))
				}
			}
		}
		if saved.InboxPrefix != "" {
			o.Inboxes = nil
		}
	} else {
		o.Context = ""
	}
	if o.URL == "" && o.Context == "" {
		if running := StateOf(o.Env).Running(); len(running) > 0 {
			o.URL = running[0].URL
		}
	}
	if o.URL == "" {
		o.URL = DefaultURL
	}
	for server := range strings.SplitSeq(o.URL, ",") {
		if err := CheckURL(server); err != nil {
			return nil, "", failed(toolmesh.CodeInvalidRequest, fmt.Errorf("the address %q %w", Redact(o.URL), err))
		}
	}
	more, file, err := o.credentials()
	if err != nil {
		return nil, "", err
	}
	options = append(options, more...)
	inboxes := o.Inboxes
	for {
		with := options
		if file != "" && len(inboxes) > 0 {
			inbox := inboxes[0]
			if public, err := access.PublicKey(file); err == nil && inbox != subjects.InboxNode {
				inbox = subjects.KeyedInbox(inbox, access.Digest(public)) // audits then name the key
			}
			with = append(slices.Clip(options), nats.CustomInboxPrefix(inbox))
			inboxes = inboxes[1:]
		}
		if nc, err = nats.Connect(o.URL, with...); err != nil {
			return nil, "", Explain(o.URL, cmp.Or(o.SayServer, "url or Env"), err)
		}
		if ctx.Err() != nil {
			nc.Close()
			return nil, "", context.Cause(ctx)
		}
		if file == "" || len(o.Inboxes) == 0 || o.Wait || bus.MayHear(nc, nc.NewInbox()) {
			return nc, saved.JSDomain, nil
		}
		nc.Close()
		if len(inboxes) == 0 {
			return nil, "", failed(toolmesh.CodePermissionDenied, fmt.Errorf(
				"the key in %s is for none of the inboxes %s: the key of a session takes %s", file, strings.Join(o.Inboxes, ", "), cmp.Or(o.SaySession, "Options.Session")))
		}
	}
}

// credentials returns the options of a connection, and the file of the key in them, if
// there is one.
func (o *Options) credentials() (options []nats.Option, key string, err error) {
	options = bus.ConnectOptions(&bus.ConnectConfig{Name: o.Name, RetryFirst: o.Wait, Logger: o.Logger})
	if o.Creds != "" {
		if err := checkCreds(o.Creds); err != nil {
			return nil, "", failed(toolmesh.CodeInvalidRequest, err)
		}
		options = append(options, nats.UserCredentials(o.Creds))
		if prefix := inboxOf(o.Creds, o.Inboxes); prefix != "" {
			options = append(options, nats.CustomInboxPrefix(prefix))
		}
	}
	key = o.Nkey
	if key == "" && o.Creds == "" && o.Context == "" && o.Role != "" {
		key = StateOf(o.Env).key(o.URL, o.Role)
	}
	if key == "" {
		return options, "", nil
	}
	option, err := access.Option(key)
	return append(options, option), key, err
}

// inboxOf returns the first of some inbox prefixes that a credentials file lets its user
// subscribe; empty for none, and for a damaged file, which the server will refuse.
func inboxOf(creds string, prefixes []string) string {
	data, _ := os.ReadFile(creds)
	token, _ := jwt.ParseDecoratedJWT(data)
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

// Explain returns the [toolmesh.Error] for a failed connection to an address. setting names the
// setting to change.
func Explain(address, setting string, err error) error {
	var unparsable *url.Error
	shown := Redact(address)
	switch {
	case errors.As(err, &unparsable):
		return failed(toolmesh.CodeInvalidRequest, fmt.Errorf("%s is not the address of a NATS server: write nats://HOST:PORT: %w", shown, unparsable.Err))
	case errors.Is(err, nats.ErrNoServers):
		return failed(toolmesh.CodeUnavailable, fmt.Errorf("no mesh at %s: nothing answers there; start one with mesh up, or name another with %s", shown, setting))
	case errors.Is(err, nats.ErrAuthorization), errors.Is(err, nats.ErrAuthExpired), errors.Is(err, nats.ErrAuthRevoked):
		return failed(toolmesh.CodePermissionDenied, fmt.Errorf("the NATS server at %s refuses the credentials: they are neither in its configuration (where that has an auth_callout, among its auth_users, too) nor the key of a session that goes on: %w", shown, err))
	}
	return failed(toolmesh.CodeUnavailable, fmt.Errorf("no mesh at %s: %w", shown, err))
}

func failed(code toolmesh.Code, err error) error {
	return toolmesh.Errorf(code, "%w", err).WithOrigin(toolmesh.OriginCaller).WithStarted(toolmesh.StartedNo)
}

// Redact returns a list of server URLs without the secrets in them.
func Redact(servers string) string {
	parts := strings.Split(servers, ",")
	for i := len(parts) - 1; i > 0; i-- {
		if strings.Contains(parts[i], "@") && !strings.Contains(parts[i], "://") { // the rest of a password
			parts = slices.Replace(parts, i-1, i+1, parts[i-1]+","+parts[i])
		}
	}
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

// CheckURL returns an error for a server to which no client can connect, to be read after
// its name: "is not the URL of a NATS server …".
func CheckURL(server string) error {
	if strings.TrimSpace(server) == "" {
		return nil
	}
	_, err := parse(server)
	return err
}

// parse reads the URL of a server. The error is that of [CheckURL].
func parse(server string) (*url.URL, error) {
	if server = strings.TrimSpace(server); !strings.Contains(server, "://") {
		server = "nats://" + server
	}
	u, err := url.Parse(server)
	if err != nil || u.Host == "" {
		return nil, errors.New("is not the URL of a NATS server: want nats://host:port")
	}
	if !slices.Contains([]string{"nats", "tls", "ws", "wss"}, strings.ToLower(u.Scheme)) {
		return nil, errors.New("is not the URL of a NATS server: it begins with nats, tls, ws or wss, want nats://host:port")
	}
	if port := u.Port(); port != "" {
		if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
			return nil, errors.New("has no port between 1 and 65535")
		}
	}
	return u, nil
}
