package executor_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/executor"
)

// Secrets of every awkward kind: no text of ours may show them.
const (
	secretToken = `s3cr'et"/+&=tök\en`
	secretShort = `q7z`
	secretKey   = "-----BEGIN KEY-----\nMIIEvQIBADANBgkqhkiG9w0B\nAQEFAASCBKcwggSjAgEAAoIB\n-----END KEY-----"
	secretList  = `["first-of-the-keys", "second-of-the-keys"]`
)

const secretTools = `
import base64, json, logging, os, sys, threading, urllib.parse
from typing import Optional

TOKEN, SHORT, KEY, LIST = (os.environ[name] for name in ("TOKEN", "SHORT", "KEY", "LIST"))
os.environ["TOKEN"] = "changed"

class Refused(Exception):
    pass

def coded(value):
    """As in an Authorization header: the secret begins and ends anywhere in the groups of base64."""
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        for ahead in ("", "u", "us", "user"):
            for behind in ("", ":", "::", ":::"):
                yield "Basic " + encode((ahead + value + behind).encode()).decode()

def shapes(value):
    return [value, repr(value), json.dumps(value), urllib.parse.quote(value, safe=""),
            base64.b64encode(value.encode()).decode(), *coded(value), f"https://host/?key={urllib.parse.quote_plus(value)}&x=1"]

def fails(which: str):
    value = globals()[which]
    failure = Refused(*shapes(value))
    failure.__notes__ = [f"with {value}"]
    try:
        raise KeyError(value)
    except KeyError as cause:
        raise failure from cause

def fails_by_parts():
    raise Refused(KEY.splitlines()[1], json.loads(LIST)[1], {"short": SHORT}, f"{SHORT}!")

async def fails_later(which: str):
    fails(which)

def prints(which: str):
    value = globals()[which]
    print("out", value)
    print("err", value, file=sys.stderr)
    os.write(1, f"raw {value}\n".encode())
    os.write(2, f"raw {value}\n".encode())
    logging.getLogger("tool").error("logged %s", value, extra={"token": value, "more": {"deep": [value]}})
    return None

def crashes(which: str):
    value = globals()[which]
    os.write(2, ("x" * 3000 + " " + value + " " + "y" * (4096 - len(value.encode()) // 2)).encode())
    os._exit(3)

def quits(which: str):
    print("last words:", globals()[which], file=sys.stderr, flush=True)
    os._exit(3)

def groups():
    raise ExceptionGroup("several " + TOKEN, [ValueError(TOKEN), TypeError(KEY)]) if sys.version_info >= (3, 11) else Refused(TOKEN)

def unserializable():
    return {TOKEN: object()}

def gives(which: str) -> str:
    return globals()[which]

def shown(x: str = TOKEN, y: str = "fine") -> Optional[str]:
    return x

shown.__doc__ = f"Needs {TOKEN}."
`

// sight is what a test looks through for secrets.
func secretsIn(text string) (found []string) {
	for _, part := range []string{
		"cr'et", `cr\'et`, "s3cr", "s3cr%27et", "tök", "czNjc", secretShort,
		"MIIEvQIBADANBgkqhkiG9w0B", "AQEFAASCBKcwggSjAgEAAoIB", "first-of-the-keys", "second-of-the-keys", "TUlJRXZRSUJBREFOQmdrc",
	} {
		if strings.Contains(text, part) {
			found = append(found, part)
		}
	}
	return found
}

func secretSpec(t testing.TB, x *executor.Executor, files map[string]string, tools ...string) executor.Spec {
	t.Helper()
	dir := writeFiles(t, files)
	spec := specOf(t, x, dir, tools...)
	spec.Vars = map[string]string{"TOKEN": secretToken, "SHORT": secretShort, "KEY": secretKey, "LIST": secretList, "PLAIN": "plain-value"}
	spec.Secrets = []string{secretToken, secretShort, secretKey, secretList}
	return spec
}

// logText is a log that is looked at afterwards.
type logText struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *logText) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logText) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

func told(t testing.TB, err error) string {
	t.Helper()
	data, jsonErr := json.Marshal(toolmesh.AsError(err))
	if jsonErr != nil {
		t.Fatal(jsonErr)
	}
	// As text, so that escaped secrets are found too.
	return strings.ReplaceAll(string(data), `\\`, `\`) + fmt.Sprint(toolmesh.AsError(err).Details)
}

func TestSecretsStayInside(t *testing.T) {
	t.Parallel()
	logged := &logText{}
	x := newExecutor(t, func(o *executor.Options) {
		o.Logger = slog.New(slog.NewTextHandler(logged, &slog.HandlerOptions{Level: slog.LevelDebug}))
	})
	ix := open(t, x, secretSpec(t, x, map[string]string{"t.py": secretTools}, "t.fails", "t.fails_by_parts", "t.fails_later",
		"t.prints", "t.crashes", "t.quits", "t.groups", "t.unserializable", "t.gives", "t.shown"))

	for _, which := range []string{"TOKEN", "SHORT", "KEY", "LIST"} {
		args := `{"which":"` + which + `"}`
		for _, name := range []string{"t.fails", "t.fails_later", "t.crashes", "t.quits"} {
			_, err := call(t, ix, name, args)
			if err == nil {
				t.Fatalf("%s(%s) did not fail", name, which)
			}
			text := told(t, err)
			if found := secretsIn(text); found != nil {
				t.Errorf("%s(%s) shows %q:\n%s", name, which, found, text)
			}
			if !strings.Contains(text, "***") && name != "t.crashes" {
				t.Errorf("%s(%s) does not say that something is left out:\n%s", name, which, text)
			}
		}
		sink := &collector{}
		if _, err := ix.Call(t.Context(), executor.Call{Tool: "t.prints", Args: json.RawMessage(args)}, sink); err != nil {
			t.Fatal(err)
		}
		var all strings.Builder
		for _, r := range sink.records {
			fmt.Fprintf(&all, "%s %s %s\n", r.Stream, r.Message, r.Fields)
		}
		if found := secretsIn(all.String()); found != nil || strings.Count(all.String(), "***") < 7 {
			t.Errorf("prints(%s) shows %q:\n%s", which, found, all.String())
		}
	}
	for _, name := range []string{"t.fails_by_parts", "t.groups", "t.unserializable"} {
		_, err := call(t, ix, name, `{}`)
		if text := told(t, err); err == nil || secretsIn(text) != nil {
			t.Errorf("%s shows %q:\n%s", name, secretsIn(text), text)
		}
	}

	// Results are the caller's data: exact.
	want, _ := json.Marshal(secretKey)
	mustCall(t, ix, "t.gives", `{"which":"KEY"}`, string(want))
	// A tool's description is public.
	shown := toolOf(t, ix, "t.shown")
	if found := secretsIn(shown.Description + string(shown.InputSchema)); found != nil {
		t.Errorf("the description shows %q: %s %s", found, shown.Description, shown.InputSchema)
	}
	if !strings.Contains(string(shown.InputSchema), `"fine"`) {
		t.Errorf("a default that is no secret is gone: %s", shown.InputSchema)
	}
	if err := x.Close(); err != nil {
		t.Fatal(err)
	}
	if found := secretsIn(logged.String()); found != nil {
		t.Errorf("the log shows %q", found)
	}
}

func TestSecretsStayOutOfReasons(t *testing.T) {
	t.Parallel()
	logged := &logText{}
	x := newExecutor(t, func(o *executor.Options) {
		o.Logger = slog.New(slog.NewTextHandler(logged, &slog.HandlerOptions{Level: slog.LevelDebug}))
	})
	ix := open(t, x, secretSpec(t, x, map[string]string{
		"raises.py": "import os\nraise RuntimeError(f\"refused {os.environ['TOKEN']} {os.environ['PLAIN']}\")",
		"exits.py":  "import os, sys\nsys.exit('no ' + os.environ['KEY'])",
		"dies.py":   "import os, sys\nos.write(2, ('key ' + os.environ['TOKEN']).encode())\nos._exit(5)",
		"prints.py": "import os, sys\nprint(os.environ['TOKEN'])\nos.write(2, os.environ['KEY'].encode() * 900)\ndef tool(): pass",
		"lazy.py":   "import os\ndef __getattr__(name): raise RuntimeError(os.environ['TOKEN'])",
	}, "raises.tool", "exits.tool", "dies.tool", "prints.tool", "lazy.tool"))
	reasons := 0
	for _, u := range ix.Unavailable() {
		text := u.Reason
		if found := secretsIn(text); found != nil || !strings.Contains(text, "***") {
			t.Errorf("%s shows %q:\n%s", u.Name, found, text)
		}
		reasons++
	}
	if reasons != 4 {
		t.Errorf("%d reasons, want 4: %+v", reasons, ix.Unavailable())
	}
	if u := ix.Unavailable()[0]; !strings.Contains(u.Reason, "plain-value") {
		t.Errorf("a variable that is no secret is hidden too: %s", u.Reason)
	}
	_, err := call(t, ix, "raises.tool", `{}`)
	if found := secretsIn(told(t, err)); found != nil {
		t.Errorf("the call shows %q: %v", found, err)
	}
	if found := secretsIn(logged.String()); found != nil {
		t.Errorf("the log shows %q:\n%s", found, logged.String())
	}
}

func TestSecretsStayOutOfInit(t *testing.T) {
	t.Parallel()
	x := sharedExecutor(t)
	spec := secretSpec(t, x, map[string]string{"t.py": "", "init.py": `
import os, sys
sys.stderr.write("x" * 3000 + os.environ["TOKEN"] + "y" * 4080 + os.environ["KEY"])
sys.exit(1)
`})
	err := x.Command(context.WithoutCancel(t.Context()), spec.Env, spec.Name, spec.SourceDir, []string{"python", "init.py", secretToken}, spec.Vars, spec.Secrets, executor.Given{})
	if toolmesh.CodeOf(err) != toolmesh.CodeInstallFailed {
		t.Fatalf("got %v, want install_failed", err)
	}
	if found := secretsIn(told(t, err)); found != nil || !strings.Contains(err.Error(), "***") {
		t.Errorf("the failure shows %q: %v", found, err)
	}
}

// A secret of a policy is redacted too, and one that no tool's environment has stays with the
// agent.
func TestSecretsOfAPolicy(t *testing.T) {
	t.Parallel()
	x := sharedExecutor(t)
	dir := writeFiles(t, map[string]string{"t.py": `
import os
def mine(): raise ValueError(os.environ["MINE"])
def dies():
    os.write(2, os.environ["MINE"].encode())
    os._exit(1)
def other(): return os.environ.get("MINE")
`})
	spec := specOf(t, x, dir, "t.mine", "t.dies", "t.other")
	own := executor.Policy{Vars: map[string]string{"MINE": "the-token-of-mine"}}
	spec.Policies = map[string]executor.Policy{"t.mine": own, "t.dies": own}
	spec.Secrets = []string{"the-token-of-mine", ""}
	ix := open(t, x, spec)
	if e := mustFail(t, ix, "t.mine", `{}`, toolmesh.CodeToolError); e.Message != "***" || strings.Contains(told(t, e), "of-mine") {
		t.Errorf("got %q\n%s", e.Message, e.Stacktrace)
	}
	if e := mustFail(t, ix, "t.dies", `{}`, toolmesh.CodeWorkerCrashed); e.Details["stderr"] != "***" {
		t.Errorf("last words are %v", e.Details["stderr"])
	}
	mustCall(t, ix, "t.other", `{}`, `null`)
}

// Behind a company's proxy tools reach the network as installs do; their output shows no password
// of the proxy.
func TestToolsGetTheProxyOfTheirAgent(t *testing.T) {
	t.Parallel()
	environ := append(os.Environ(), "HTTPS_PROXY=http://alice:pass-of-proxy@proxy.example:3128", "no_proxy=localhost", "SSL_CERT_FILE=/etc/ssl/company.pem", "CORP_REGION=north", "CORP_TOKEN=not-for-tools")
	dir := writeFiles(t, map[string]string{"t.py": `
import os
def seen(): return {name: value for name, value in sorted(os.environ.items()) if "PROXY" in name.upper() or name.startswith(("SSL_CERT_FILE", "CORP_"))}
def fails(): raise ConnectionError(f"cannot connect to {os.environ['HTTPS_PROXY']}")
`})
	for what, c := range map[string]struct {
		names []string
		vars  map[string]string
		want  string
	}{
		"those of proxies":   {nil, nil, `{"HTTPS_PROXY":"http://alice:pass-of-proxy@proxy.example:3128","SSL_CERT_FILE":"/etc/ssl/company.pem","no_proxy":"localhost"}`},
		"what is named":      {[]string{"CORP_REGION", "NO_PROXY"}, nil, `{"CORP_REGION":"north","no_proxy":"localhost"}`},
		"none":               {[]string{}, nil, `{}`},
		"what the index has": {[]string{"CORP_REGION"}, map[string]string{"CORP_REGION": "south"}, `{"CORP_REGION":"south"}`},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			x := newExecutor(t, func(o *executor.Options) {
				o.Environ = slices.DeleteFunc(slices.Clone(environ), func(line string) bool {
					name, value, _ := strings.Cut(line, "=")
					return strings.HasSuffix(strings.ToUpper(name), "_PROXY") && !strings.Contains(value, "proxy.example") && value != "localhost"
				})
				o.ToolEnv = c.names
			})
			spec := specOf(t, x, dir, "t.seen", "t.fails")
			spec.Vars = c.vars
			ix := open(t, x, spec)
			mustCall(t, ix, "t.seen", `{}`, c.want)
			if c.names == nil {
				if e := mustFail(t, ix, "t.fails", `{}`, toolmesh.CodeToolError); e.Message != "cannot connect to http://***@proxy.example:3128" || strings.Contains(told(t, e), "pass-of-proxy") {
					t.Errorf("%q\n%s", e.Message, e.Stacktrace)
				}
			}
		})
	}
}

// Proxies are written in forms that are no URLs, and programs take them: none shows its password,
// in a tool or in an init command.
func TestProxyLoginsStayOut(t *testing.T) {
	t.Parallel()
	forms := map[string]string{
		"HTTPS_PROXY": "alice:s3cret-one@proxy:3128",
		"https_proxy": "http://alice:s3cret%two@proxy:3128",
		"HTTP_PROXY":  "http://alice:s3c#retthree@proxy:3128",
		"ALL_PROXY":   "http://alice:s3cret@fo/ur@proxy:3128",
		"all_proxy":   "http://alice:s3cret%2Ffive@proxy:3128",
		"NO_PROXY":    "http://alice:s3cret%E4six@proxy:3128", // not UTF-8
	}
	x := newExecutor(t, func(o *executor.Options) {
		o.Environ = slices.DeleteFunc(slices.Clone(o.Environ), func(line string) bool {
			name, _, _ := strings.Cut(line, "=")
			return strings.HasSuffix(strings.ToUpper(name), "_PROXY")
		})
		for name, value := range forms {
			o.Environ = append(o.Environ, name+"="+value)
		}
	})
	say := "import os, sys, urllib.parse\n" +
		"said = ' '.join(v + ' ' + urllib.parse.unquote(v) for n, v in sorted(os.environ.items()) if n.upper().endswith('_PROXY'))\n"
	dir := writeFiles(t, map[string]string{"t.py": say + "def fails(): raise ConnectionError(said)\n", "init.py": say + "sys.exit(said)\n"})
	spec := specOf(t, x, dir, "t.fails")
	shown := map[string]error{
		"tool": mustFail(t, open(t, x, spec), "t.fails", `{}`, toolmesh.CodeToolError),
		"init": x.Command(t.Context(), spec.Env, spec.Name, dir, []string{"python", "init.py"}, nil, nil, executor.Given{}),
	}
	for what, err := range shown {
		text := told(t, err)
		for name, value := range forms {
			_, value, _ = strings.Cut(strings.TrimPrefix(value, "http://"), ":")
			password := strings.TrimSuffix(value, "@proxy:3128")
			if plain, _ := url.PathUnescape(password); strings.Contains(text, password) || plain != "" && strings.Contains(text, plain) {
				t.Errorf("%s shows the password of %s:\n%s", what, name, text)
			}
		}
		if !strings.Contains(text, "@proxy:3128") {
			t.Errorf("%s does not say which proxy: %s", what, text)
		}
	}
}
