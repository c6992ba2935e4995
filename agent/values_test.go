package agent_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/agent"
	"github.com/toolmesh/toolmesh/client"
	"github.com/toolmesh/toolmesh/meshtest"
	"github.com/toolmesh/toolmesh/subjects"
)

// Values pass unchanged through the client, the broker, the host and the worker, and back; executor
// tries random ones.
func TestValuesPassUnchanged(t *testing.T) {
	t.Parallel()
	nc, c := mesh(t)
	install(t, nc, map[string]any{"source": repository(t, "echo", map[string]string{
		"tools.toml": "[index]\ntools = [\"m.echo\", \"m.items\"]\n", "m.py": "def echo(x): return x\ndef items(x: list): yield from x\n",
	})})
	values := []string{`null`, `-0.0`, `5e-324`, `12345678901234567890123456789`, `"ä😀\n\"\u0001<&>"`, `{"z":[{}],"a":[[],0.1]}`}
	for _, want := range values {
		gives(t, c, "echo.m.echo", `{"x":`+want+`}`, want)
	}
	if got := items(t, c, "echo.m.items", map[string]any{"x": json.RawMessage("[" + strings.Join(values, ",") + "]")}); got != strings.Join(values, " ") {
		t.Errorf("items: %s", got)
	}
	for _, bad := range []string{`1e400`, strings.Repeat("[", 2000) + strings.Repeat("]", 2000)} {
		fails(t, c, "echo.m.echo", `{"x":`+bad+`}`, toolmesh.CodeInvalidArguments, "")
	}
}

// A secret of the manifest is in no error that leaves the mesh, of a call, of
// an import and of an init command.
func TestDeclaredSecretsAreInNoError(t *testing.T) {
	t.Parallel()
	s := meshtest.Broker(t)
	startIn(t, s, "one", t.TempDir(), func(o *agent.Options) { o.AuditArguments = true })
	nc := s.Connect(t)
	const secret = "hunter2-hunter2"
	manifest := `
[index]
tools = ["m.fails", "m.dies", "m.gives", "broken.tool"]
%s
[[index.env]]
name = "API_KEY"
required = true
secret = true
`
	files := map[string]string{
		"tools.toml": fmt.Sprintf(manifest, ""),
		"m.py": `
import os, sys
def fails(): raise ValueError("refused " + os.environ["API_KEY"])
def dies():
    print("last words", os.environ["API_KEY"], file=sys.stderr, flush=True)
    os._exit(3)
def gives(): return os.environ["API_KEY"]
`,
		"broken.py": "import os\nraise RuntimeError('no ' + os.environ['API_KEY'])\n",
		"init.py":   "import os, sys\nsys.exit('init says ' + os.environ['API_KEY'])\n",
	}
	env := map[string]string{"API_KEY": secret}
	last, err := json.Marshal(install(t, nc, map[string]any{"source": repository(t, "safe", files), "env": env}))
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(last), secret) || !strings.Contains(string(last), "RuntimeError: no ***") {
		t.Errorf("the install says %s", last)
	}
	c := newClient(t, nc, &client.Options{})
	for name, part := range map[string]string{"safe.m.fails": "refused ***", "safe.m.dies": "last words ***"} {
		_, callErr := c.Call(t.Context(), subjects.ToolID(name), nil)
		data, err := json.Marshal(toolmesh.AsError(callErr))
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(data), secret) || !strings.Contains(string(data), part) {
			t.Errorf("%s: %s, want %q and no secret", name, data, part)
		}
	}
	if got, err := c.Call(t.Context(), "safe.m.gives", nil); err != nil || string(got.Value) != `"`+secret+`"` {
		t.Errorf("a result is %s, %v; want it as it is", got.Value, err)
	}
	// Another index's tool is given the secret, in a text and as a key, and the event of its call tells neither.
	events, err := nc.SubscribeSync(subjects.AllCallEvents)
	if err != nil || nc.Flush() != nil {
		t.Fatal(err)
	}
	install(t, nc, map[string]any{"source": repository(t, "other", map[string]string{"tools.toml": working, "t.py": "def tool(**more) -> None: pass\n"})})
	meshtest.Until(t, "the call's event is heard", func() bool {
		_, _ = c.Call(t.Context(), "other.t.tool", map[string]any{"note": "it is " + secret + "!", secret: 1})
		e, err := events.NextMsg(time.Second)
		return err == nil && strings.Contains(string(e.Data), `"arguments":{"***":1,"note":"it is ***!"}`) && !strings.Contains(string(e.Data), secret)
	})
	files["tools.toml"] = fmt.Sprintf(manifest, `init = ["python", "init.py"]`)
	_, failure := admin(t, nc, "install", map[string]any{"source": repository(t, "initial", files), "env": env})
	data, err := json.Marshal(failure)
	if err != nil {
		t.Fatal(err)
	}
	if failure == nil || strings.Contains(string(data), secret) || !strings.Contains(string(data), "init says ***") {
		t.Errorf("the init command's failure is %s", data)
	}
}
