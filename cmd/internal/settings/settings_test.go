package settings_test

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"

	"github.com/toolmesh/toolmesh/cmd/internal/settings"
)

// every has each variable with its flag and a text that does not mean its default.
var every = map[string]struct{ flag, text string }{
	"MESH_NATS_URL":             {"server", "nats://a:1,nats://b:2"},
	"MESH_NATS_CONTEXT":         {"context", "work"},
	"MESH_NATS_CREDS":           {"creds", "me.creds"},
	"MESH_NATS_NKEY":            {"nkey", "me.nk"},
	"MESH_AUTH_ISSUER":          {"auth-issuer", "issuer.nk"},
	"MESH_AUTH_RENEW":           {"auth-renew", "90s"},
	"MESH_DATA_DIR":             {"data-dir", "data"},
	"MESH_ENVIRONMENTS":         {"environments", "data/shared"},
	"MESH_INDEXES":              {"indexes", "indexes.toml"},
	"MESH_MCP_RESULT_MAX":       {"mcp-result-max", "1000"},
	"MESH_HELD_CALLS":           {"held-calls", "0"},
	"MESH_HELD_TIMEOUT":         {"held-timeout", "90s"},
	"MESH_GATEWAY_LISTEN":       {"gateway-listen", "127.0.0.1:0"},
	"MESH_GATEWAY_TLS":          {"gateway-tls", "cert.pem,key.pem"},
	"MESH_GATEWAY_INSECURE":     {"gateway-insecure", "true"},
	"MESH_CORS_ORIGIN":          {"cors-origin", "https://a.example,https://b.example"},
	"MESH_HTTP_LISTEN":          {"http-listen", "127.0.0.1:0"},
	"MESH_NODE":                 {"node", "gpu-1"},
	"MESH_LABELS":               {"labels", "zone=b, gpu=yes"},
	"MESH_SLOTS":                {"slots", "7"},
	"MESH_SANDBOX":              {"sandbox", "strict"},
	"MESH_LIMITS":               {"limits", "memory=25%, pids=100,temp_files=2GB"},
	"MESH_MAX_LIMITS":           {"max-limits", "memory=8GB,open_files=4096"},
	"MESH_WORKER_USER":          {"worker-user", "tools"},
	"MESH_TOOL_ENV":             {"tool-env", "HTTPS_PROXY,CORP_REGION"},
	"MESH_PRIVATE_SOURCES":      {"private-sources", "true"},
	"MESH_MAX_TIMEOUT":          {"max-timeout", "90s"},
	"MESH_DRAIN_TIMEOUT":        {"drain-timeout", "5m"},
	"MESH_SESSION":              {"session", "bob"},
	"MESH_SESSION_POLICY":       {"session-policy", "strict"},
	"MESH_REPLICAS":             {"replicas", "3"},
	"MESH_CHUNKS_STORAGE":       {"chunks-storage", "memory"},
	"MESH_CHUNKS_MAX":           {"chunks-max", "2GB"},
	"MESH_PAYLOADS_MAX":         {"payloads-max", "4GB"},
	"MESH_PAYLOAD_MAX":          {"payload-max", "300MB"},
	"MESH_AUDIT":                {"audit", "true"},
	"MESH_AUDIT_ARGUMENTS":      {"audit-arguments", "true"},
	"MESH_SESSION_STREAM_QUOTA": {"session-stream-quota", "10MB"},
	"MESH_CACHE_MAX":            {"cache-max", "10MB"},
	"MESH_CACHE_ENTRIES":        {"cache-entries", "7"},
	"MESH_LOG_LEVEL":            {"log-level", "debug"},
	"MESH_LOG_FORMAT":           {"log-format", "json"},
}

func bound(spec any) *pflag.FlagSet {
	flags := pflag.NewFlagSet("test", pflag.ContinueOnError)
	settings.Bind(flags, spec)
	return flags
}

// Each setting can be made by its variable and by its flag, and the list of
// names is the one that is promised.
func TestEverySetting(t *testing.T) {
	for _, name := range settings.Names() {
		if _, ok := every[name]; !ok {
			t.Errorf("the setting %s is not tested, or not promised", name)
		}
	}
	for name, s := range every {
		t.Run(name, func(t *testing.T) {
			spec := func(env ...string) any {
				var spec any = new(settings.Mesh)
				switch {
				case strings.HasPrefix(name, "MESH_AUTH_") || name == "MESH_HTTP_LISTEN":
					spec = new(settings.Agent)
				case name == "MESH_INDEXES" || strings.HasPrefix(name, "MESH_HELD_"):
					spec = new(settings.Router)
				}
				if err := settings.Load(env, spec); err != nil {
					t.Fatal(err)
				}
				return spec
			}
			unset, byFlag := spec(), spec()
			flags := bound(byFlag)
			if err := flags.Parse([]string{"--" + s.flag, s.text}); err != nil {
				t.Fatal(err)
			}
			if reflect.DeepEqual(byFlag, unset) {
				t.Errorf("--%s %s changes nothing", s.flag, s.text)
			}
			if got := flags.Lookup(s.flag).Value.String(); got != s.text { // for mesh up --detach
				t.Errorf("--%s %s reads %q", s.flag, s.text, got)
			}
			t.Setenv(name, s.text)
			if byVariable := spec(name + "=" + s.text); !reflect.DeepEqual(byVariable, byFlag) {
				t.Errorf("%s=%s gives %+v, --%s %+v", name, s.text, byVariable, s.flag, byFlag)
			}
		})
	}
}

func TestDefaults(t *testing.T) {
	t.Parallel()
	var s settings.Mesh
	if err := settings.Load(nil, &s); err != nil {
		t.Fatal(err)
	}
	if s.Session.Session != "default" || s.SessionPolicy != "open" || s.MaxTimeout != time.Hour ||
		s.SessionStreamQuota != 256e6 || s.LogFormat != "text" || s.Slots != 0 {
		t.Errorf("defaults are %+v", s)
	}
}

func TestFlagWins(t *testing.T) {
	t.Setenv("MESH_SLOTS", "7")
	var s settings.Agent
	if err := settings.Load([]string{"MESH_SLOTS=7"}, &s); err != nil {
		t.Fatal(err)
	}
	if err := bound(&s).Parse([]string{"--slots=9"}); err != nil || s.Slots != 9 {
		t.Errorf("slots %d %v, want 9", s.Slots, err)
	}
}

// Unset settings leave existing streams as they are: a joining process would change them for all.
func TestUnsetStoreSettingsStayUnset(t *testing.T) {
	t.Parallel()
	for _, spec := range []any{new(settings.Mesh), new(settings.Agent), new(settings.Router)} {
		if err := settings.Load(nil, spec); err != nil {
			t.Fatal(err)
		}
		got := reflect.ValueOf(spec).Elem().FieldByName("Store").Interface()
		if got != (settings.Store{}) {
			t.Errorf("%T that nobody set has the store %+v, want none", spec, got)
		}
	}
}

// The error of an invalid setting has its name and the accepted values.
func TestBadSettings(t *testing.T) {
	for name, tc := range map[string]struct{ value, want string }{
		"MESH_SLOTS":            {"0", "whole number"},
		"MESH_REPLICAS":         {"9", "whole number from 1 to 5"},
		"MESH_NODE":             {"\xff", "UTF-8"},
		"MESH_LABELS bytes":     {"a=\xff", "UTF-8"},
		"MESH_LABELS":           {"gpu", "k=v"},
		"MESH_MAX_TIMEOUT":      {"5", "duration"},
		"MESH_MAX_TIMEOUT < 0":  {"-1s", "from 1ms on"},
		"MESH_CHUNKS_MAX":       {"big", "size"},
		"MESH_CHUNKS_MAX small": {"1KB", "from 1MB to 1000TB"},
		"MESH_CHUNKS_MAX bytes": {"10", "from 1MB to 1000TB"},
		"MESH_CHUNKS_MAX large": {"2000TB", "from 1MB to 1000TB"},
		"MESH_SESSION":          {"\xff", "UTF-8"},

		"MESH_LIMITS":            {"memory=little", "want for memory a size from 1MB on"},
		"MESH_LIMITS percent":    {"memory=101%", "1% to 100%"},
		"MESH_LIMITS none":       {"pids=0", "want for pids a whole number from 1 on"},
		"MESH_LIMITS files":      {"open_files=100", "want for open_files a whole number from 256 on"},
		"MESH_LIMITS temp files": {"temp_files=1KB", "want for temp_files a size from 1MB on"},
		"MESH_LIMITS unknown":    {"cpu=1", `and not "cpu"`},
		"MESH_MAX_LIMITS twice":  {"pids=5,pids=6", "pids is given twice"},

		"MESH_SESSION_STREAM_QUOTA": {"0B", "from 1KB on"},
		"MESH_CACHE_MAX":            {"10B", "from 1KB on"},
		"MESH_CACHE_ENTRIES":        {"0", "whole number from 1 on"},
		"MESH_CHUNKS_STORAGE":       {"tape", "file or memory"},
		"MESH_SESSION_POLICY":       {"shut", "open or strict"},
		"MESH_SANDBOX":              {"padded", "none, guard, strict or offline"},
		"MESH_TOOL_ENV":             {"CORP,mesh_x", "mesh_x is the agent's own setting"},
		"MESH_LOG_LEVEL":            {"loud", "debug, info, warn or error"},
		"MESH_LOG_FORMAT":           {"xml", "text or json"},
	} {
		name, _, _ := strings.Cut(name, " ")
		t.Run(name, func(t *testing.T) {
			t.Setenv(name, tc.value)
			err := settings.Load([]string{name + "=" + tc.value}, new(settings.Mesh))
			if err == nil || !strings.Contains(err.Error(), name) || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error is %v, want one with %s and %q", err, name, tc.want)
			}
			flag := strings.ToLower(strings.ReplaceAll(strings.TrimPrefix(name, "MESH_"), "_", "-"))
			if err := bound(new(settings.Mesh)).Parse([]string{"--" + flag, tc.value}); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("as a flag: error is %v, want one with %q", err, tc.want)
			}
		})
	}
}

func TestBadSwitch(t *testing.T) {
	t.Setenv("MESH_PRIVATE_SOURCES", "x")
	err := settings.Load([]string{"MESH_PRIVATE_SOURCES=x"}, new(settings.Mesh))
	if err == nil || err.Error() != `MESH_PRIVATE_SOURCES is "x": want true or false` {
		t.Errorf("error is %v", err)
	}
}

// A setting for the mesh wins over one for NATS.
func TestNATSVariables(t *testing.T) {
	for name, tc := range map[string]struct {
		env          map[string]string
		url, context string
	}{
		"fallback":             {map[string]string{"NATS_URL": "nats://n"}, "nats://n", ""},
		"ours":                 {map[string]string{"NATS_URL": "nats://n", "MESH_NATS_URL": "nats://m"}, "nats://m", ""},
		"our context, its url": {map[string]string{"NATS_URL": "nats://n", "MESH_NATS_CONTEXT": "c"}, "", "c"},
		"our url, its context": {map[string]string{"MESH_NATS_URL": "nats://m", "NATS_CONTEXT": "c"}, "nats://m", ""},
	} {
		t.Run(name, func(t *testing.T) {
			var env []string
			for k, v := range tc.env {
				t.Setenv(k, v)
				env = append(env, k+"="+v)
			}
			var s settings.Agent
			if err := settings.Load(env, &s); err != nil {
				t.Fatal(err)
			}
			if s.URL != tc.url || s.Context != tc.context {
				t.Errorf("url %q context %q, want %q and %q", s.URL, s.Context, tc.url, tc.context)
			}
		})
	}
}

func TestPasswordsOfServersAreHidden(t *testing.T) {
	err := settings.Settle(nil, pflag.NewFlagSet("", pflag.ContinueOnError), &settings.Connection{URL: "nats://me:hunter2,secret@h:1"})
	if err == nil || strings.Contains(err.Error(), "hunter2") || strings.Contains(err.Error(), "secret") {
		t.Errorf("%v, want an error without the password", err)
	}
}

func TestUnknown(t *testing.T) {
	t.Parallel()
	got := settings.Unknown([]string{
		"MESH_SLOTS=1", "MESH_SLOT=1", "MESH_COLOUR=blue", "PATH=/bin", "mesh_slots=1",
		// Variables that Kubernetes makes for services called mesh, mesh-router and mesh-nats.
		"MESH_SERVICE_HOST=10.0.0.1", "MESH_PORT=tcp://10.0.0.1:80", "MESH_ROUTER_SERVICE_HOST=10.0.0.1",
		"MESH_ROUTER_SERVICE_PORT=80", "MESH_ROUTER_SERVICE_PORT_HTTP=80", "MESH_ROUTER_PORT=tcp://10.0.0.1:80",
		"MESH_NATS_PORT_4222_TCP=tcp://10.0.0.1:4222", "MESH_NATS_PORT_4222_TCP_ADDR=10.0.0.1",
	})
	want := []string{"MESH_COLOUR", "MESH_SLOT (did you mean MESH_SLOTS?)"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("unknown (-want +got):\n%s", diff)
	}
}
