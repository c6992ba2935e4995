package settings

import (
	"log/slog"
	"time"

	"github.com/toolmesh/toolmesh/registry"
	"github.com/toolmesh/toolmesh/tool"
)

// A field is one setting: its flag, the variable MESH_<FLAG>, the kind of its values, and the text for --help. The
// text of a setting without a default says what happens without it. The zero value of each means unset.

// Connection names the NATS servers of the mesh, as [connect.Settings]. NATS_URL, NATS_CONTEXT, NATS_CREDS and NATS_NKEY
// replace unset variables.
type Connection struct {
	URL     string `env:"NATS_URL" flag:"server" short:"s" arg:"URL" help:"NATS servers of the mesh, comma-separated (default this machine's)"`
	Context string `env:"NATS_CONTEXT" flag:"context" arg:"NAME" help:"saved NATS context to connect with"`
	Creds   string `env:"NATS_CREDS" flag:"creds" arg:"FILE" help:"NATS credentials file"`
	Nkey    string `env:"NATS_NKEY" flag:"nkey" arg:"FILE" help:"file of an nkey's seed, mode 0600; mesh auth template makes some"`
}

// Logging configures the logs on stderr.
type Logging struct {
	LogLevel  string `is:"level" flag:"log-level" arg:"LEVEL" help:"what to log: debug, info, warn or error (default info; mesh up at a terminal and mesh bridge: warn, other commands of mesh: error)"`
	LogFormat string `is:"format" default:"text" flag:"log-format" arg:"FORMAT" help:"text or json"`
}

// Level returns the level in the settings, or else.
func (l Logging) Level(otherwise slog.Level) slog.Level {
	if l.LogLevel != "" {
		_ = otherwise.UnmarshalText([]byte(l.LogLevel)) // validated when it was read
	}
	return otherwise
}

// Session names the session of a command.
type Session struct {
	Session string `is:"session" default:"default" flag:"session" arg:"NAME" help:"session: the namespace of tools"`
}

// Policy says which sessions exist.
type Policy struct {
	SessionPolicy string `is:"policy" default:"open" flag:"session-policy" arg:"POLICY" help:"open: sessions exist on first use; strict: only after they are created"`
}

// Serving configures any process that is a node of the mesh.
type Serving struct {
	Node   string          `is:"node" flag:"node" arg:"ID" help:"id of this node (default of an agent the host's name, made unique, kept in the data folder; of mesh bridge a random one)"`
	Labels registry.Labels `is:"labels" flag:"labels" arg:"K=V,…" help:"labels of this node, k=v,k=v"`
	Slots  int             `is:"count" flag:"slots" arg:"N" help:"calls that run at once on this node (default 128)"`
}

// Node configures an agent as a node of the mesh.
type Node struct {
	DataDir string `flag:"data-dir" arg:"DIR" help:"folder of environments, bundles and the node's id (default $XDG_DATA_HOME/toolmesh)"`
	Serving
	Environments       string        `flag:"environments" arg:"DIR" help:"folder below the data folder, shared with other agents: an environment that one has built is used by all (default this agent's own folder)"`
	Sandbox            string        `is:"sandbox" flag:"sandbox" arg:"LEVEL" help:"none, guard, strict or offline, for indexes that declare nothing (default guard)"`
	Limits             Limits        `is:"limits" flag:"limits" arg:"K=V,…" help:"limits of a call where its tool declares none (default memory=25%,pids=256,open_files=1024,temp_files=1GB; 25% is at least 256MB)"`
	MaxLimits          Limits        `is:"limits" flag:"max-limits" arg:"K=V,…" help:"max for the limits of a tool, as in --limits (default what the machine has)"`
	WorkerUser         string        `flag:"worker-user" arg:"USER" help:"user, by name or number, that tools run as in all levels but none (default one for each index where the agent is root, else the agent's)"`
	ToolEnv            []string      `is:"names" flag:"tool-env" arg:"NAME,…" help:"variables of the agent that every tool gets, in upper and lower case, or none (default HTTPS_PROXY, HTTP_PROXY, ALL_PROXY, NO_PROXY, SSL_CERT_FILE, SSL_CERT_DIR, REQUESTS_CA_BUNDLE, CURL_CA_BUNDLE, NODE_EXTRA_CA_CERTS)"`
	PrivateSources     bool          `flag:"private-sources" help:"install from URLs of this machine and of private networks, too"`
	MaxTimeout         time.Duration `is:"timeout" default:"1h" flag:"max-timeout" arg:"DURATION" help:"longest call of a tool that declares no timeout"`
	DrainTimeout       time.Duration `is:"timeout" default:"30s" flag:"drain-timeout" arg:"DURATION" help:"how long calls that run may take to end once this node is told to stop"`
	SessionStreamQuota tool.Size     `is:"quota" default:"256MB" flag:"session-stream-quota" arg:"SIZE" help:"max bytes of stream items that one session may store here in 15 minutes"`
	CacheMax           tool.Size     `is:"quota" default:"64MB" flag:"cache-max" arg:"SIZE" help:"max bytes of results that this node keeps, of tools that declare a cache_ttl"`
	PayloadMax         tool.Size     `is:"quota" default:"1GB" flag:"payload-max" arg:"SIZE" help:"max size of one argument, result or file that this node takes or returns"`
	CacheEntries       int           `is:"count" default:"10000" flag:"cache-entries" arg:"N" help:"max number of results that this node keeps, of tools that declare a cache_ttl"`
	AuditArguments     bool          `flag:"audit-arguments" help:"as --audit, and keep the arguments of this node's calls, without what indexes declare as secret"`
}

// Store configures the streams and buckets that the process creates. It has no defaults: an unset
// setting must not change an existing stream (decision 010).
type Store struct {
	Replicas      int       `is:"copies" flag:"replicas" arg:"N" help:"copies of the mesh's streams, 1 to 5 (default as the cluster allows, up to 3)"`
	ChunksStorage string    `is:"storage" flag:"chunks-storage" arg:"KIND" help:"file or memory: where the chunks of streams are kept (default file, or as the mesh has it)"`
	ChunksMax     tool.Size `is:"room" flag:"chunks-max" arg:"SIZE" help:"bytes of chunks that the mesh keeps, 1MB to 1000TB (default 1GB, or as the mesh has it)"`
	PayloadsMax   tool.Size `is:"room" flag:"payloads-max" arg:"SIZE" help:"bytes of values too large for a message that the mesh holds at once, 1MB to 1000TB (default 2GB, or as the mesh has it)"`
	Audit         bool      `flag:"audit" help:"keep ended calls with their callers and outcomes in the stream MESH_AUDIT: mesh audit lists them"`
}

// Auth configures whether a process admits the keys of sessions at a NATS server that asks for
// them. mesh up has its own way.
type Auth struct {
	AuthIssuer string        `flag:"auth-issuer" arg:"FILE" help:"file of the issuer's key, mode 0600, by which this process admits the keys of sessions; mesh auth template makes it (default: other processes admit them)"`
	AuthRenew  time.Duration `is:"renew" default:"5m" flag:"auth-renew" arg:"DURATION" help:"how long a connection with a session's key lasts before its client connects again, and how long one may outlive its session"`
}

// Monitoring configures the health and metrics of a process.
type Monitoring struct {
	HTTPListen string `is:"address" flag:"http-listen" arg:"HOST:PORT" help:"serve /healthz, /readyz, /metrics and /demand there, without credentials; port 0 takes a free one (default nothing listens)"`
}

// GatewayOff is the address that turns the gateway off.
const GatewayOff = "off"

// Gateway configures the HTTP and MCP gateway.
type Gateway struct {
	GatewayListen   string `is:"gateway" flag:"gateway-listen" arg:"HOST:PORT" help:"serve the HTTP and MCP gateway there, or off; port 0 takes a free one (default of mesh up 127.0.0.1:8420, or a free port where that is taken; of mesh-router none)"`
	GatewayTLS      string `is:"files" flag:"gateway-tls" arg:"CERT,KEY" help:"files of the certificate and key for TLS at the gateway (default no TLS, and only this machine's own addresses)"`
	MCPResultMax    int    `is:"count" default:"25000" flag:"mcp-result-max" arg:"N" help:"max characters of a result for an MCP client, which gets the beginning of a longer one, with a link to all of it"`
	GatewayInsecure bool   `flag:"gateway-insecure" help:"let the gateway listen without TLS on an address that other machines reach, because a proxy in front of it speaks TLS"`
	CORSOrigin      string `flag:"cors-origin" arg:"ORIGIN,…" help:"origins whose web pages may use the gateway (default none)"`
}

// Agent has the settings of mesh-agent.
type Agent struct {
	Connection
	Auth
	Node
	Policy
	Store
	Monitoring
	Logging
}

// Router has the settings of mesh-router.
type Router struct {
	Connection
	Auth
	Policy
	Store
	Monitoring
	Gateway
	HeldCalls   int           `is:"held" default:"1000" flag:"held-calls" arg:"N" help:"max calls that wait here for a node while no node serves their installed index; 0: they fail at once"`
	HeldTimeout time.Duration `is:"timeout" default:"5m" flag:"held-timeout" arg:"DURATION" help:"max wait of such a call, within its own time"`
	Indexes     string        `flag:"indexes" arg:"FILE" help:"TOML file that lists the indexes of the mesh: this process installs and removes them as it says, also when it changes; needs an administrator's key (default none)"`
	Logging
}

// Mesh has the settings of mesh: Node, Policy, Store and Gateway for `mesh up` only, and Serving
// for `mesh bridge`.
type Mesh struct {
	Connection
	Session
	Node
	Policy
	Store
	Gateway
	Logging
}
