package agent_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/agent"
	"github.com/toolmesh/toolmesh/client"
	"github.com/toolmesh/toolmesh/meshtest"
	"github.com/toolmesh/toolmesh/subjects"
)

// randomJSON is a value as the worker writes it.
func randomJSON(r *rand.Rand, depth int) string {
	kinds := 8
	if depth == 0 {
		kinds = 6
	}
	switch r.IntN(kinds) {
	case 0:
		return []string{"null", "true", "false", `""`, "[]", "{}", "-0.0", "5e-324"}[r.IntN(8)]
	case 1:
		return fmt.Sprint(r.Int64())
	case 2: // far beyond 2^53
		return fmt.Sprintf("%d%018d", 1+r.IntN(9), r.Int64N(1e18))
	case 3:
		return fmt.Sprintf("%d.%d", r.IntN(1000), 1+2*r.IntN(4)) // one digit: the shortest form
	case 4, 5:
		return `"` + []string{"a", "ä", "😀", "\u2028", `\n`, `\"`, `\u0001`, "<&>"}[r.IntN(8)] + strings.Repeat("x", r.IntN(30)) + `"`
	case 6:
		items := make([]string, r.IntN(4))
		for i := range items {
			items[i] = randomJSON(r, depth-1)
		}
		return "[" + strings.Join(items, ",") + "]"
	default:
		items := make([]string, r.IntN(4))
		for i := range items {
			items[i] = fmt.Sprintf(`"%c%d":%s`, 'z'-rune(i), i, randomJSON(r, depth-1)) // not in the order of the alphabet
		}
		return "{" + strings.Join(items, ",") + "}"
	}
}

// Values pass unchanged through the client, the broker, the host and the worker, and back.
func TestValuesPassUnchanged(t *testing.T) {
	t.Parallel()
	s := meshtest.Broker(t)
	start(t, s, "one")
	nc := s.Connect(t)
	url := repository(t, "echo", map[string]string{
		"tools.toml": "[index]\ntools = [\"m.echo\", \"m.later\", \"m.items\"]\n",
		"m.py": `
def echo(x): return x
async def later(x): return x
def items(x: list): yield from x
`,
	})
	install(t, nc, map[string]any{"source": url})
	c := newClient(t, nc, nil)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 2))
	for i := range 100 {
		want := randomJSON(r, 4)
		name := subjects.ToolID([]string{"echo.m.echo", "echo.m.later"}[i%2])
		got, err := c.Call(t.Context(), name, json.RawMessage(`{"x":`+want+`}`))
		if err != nil || string(got.Value) != want {
			t.Fatalf("%s: got %s, %v\nwant %s", name, got.Value, err, want)
		}
		if i%10 != 0 {
			continue
		}
		list := "[" + want + "," + randomJSON(r, 2) + "]"
		var items []string
		for chunk, err := range c.Stream(t.Context(), "echo.m.items", json.RawMessage(`{"x":`+list+`}`)) {
			if err != nil {
				t.Fatal(err)
			}
			items = append(items, string(chunk.Data))
		}
		if got := "[" + strings.Join(items, ",") + "]"; got != list {
			t.Fatalf("items: got %s\nwant %s", got, list)
		}
	}
	for _, bad := range []string{`1e400`, strings.Repeat("[", 2000) + strings.Repeat("]", 2000)} {
		if got, err := c.Call(t.Context(), "echo.m.echo", json.RawMessage(`{"x":`+bad+`}`)); toolmesh.CodeOf(err) != toolmesh.CodeInvalidArguments {
			t.Errorf("echo(%.20s) = %+v, %v; want invalid_arguments", bad, got, err)
		}
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
