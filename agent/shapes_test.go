package agent_test

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/client"
	"github.com/toolmesh/toolmesh/subjects"
)

// shape is a way in which indexes that exist are written.
type shape struct {
	name  string
	files map[string]string
	env   map[string]string
	tools string // as installed
	calls []shapeCall
}

type shapeCall struct {
	tool, args string
	want       string
	code       toolmesh.Code // of a call that fails
	kind       string        // of its exception
	text       string        // of its message
}

const declaredEnv = "[index]\ntools = [\"t.f\"]\n[[index.env]]\nname = \"PLACES\"\n[[index.env]]\nname = \"HOME_DIR\"\n[[index.env]]\nname = \"URL\"\n"

// shapes are the features seen in published indexes.
func shapes(t *testing.T) []shape {
	t.Helper()
	service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, `{"asked": %q}`, r.URL.Query().Get("q"))
	}))
	t.Cleanup(service.Close)
	if host, _, err := net.SplitHostPort(service.Listener.Addr().String()); err != nil || host != "127.0.0.1" {
		t.Fatalf("the service listens on %s", service.Listener.Addr())
	}
	return []shape{
		{
			name: "env-at-import", tools: "[env-at-import.t.f]", env: map[string]string{"PLACES": `{"home": ["Oslo"]}`, "HOME_DIR": "/tmp"},
			files: map[string]string{
				"tools.toml": declaredEnv,
				"t.py": "import json, os, pathlib\nPLACES = json.loads(os.environ['PLACES'])\nHOME = pathlib.Path(os.environ['HOME_DIR'])\n\n" +
					"def f(place: str) -> list[str]:\n    return PLACES[place] + [str(HOME / place)]\n",
			},
			calls: []shapeCall{{tool: "t.f", args: `{"place":"home"}`, want: `["Oslo","/tmp/home"]`}, {tool: "t.f", args: `{"place":"x"}`, code: toolmesh.CodeToolError, kind: "KeyError"}},
		},
		{
			name: "env-in-the-call", tools: "[env-in-the-call.t.f]",
			files: map[string]string{"tools.toml": declaredEnv, "t.py": "import os\n\ndef f(needed: bool) -> str:\n    return os.environ['PLACES'] if needed else os.environ.get('PLACES', 'none')\n"},
			calls: []shapeCall{{tool: "t.f", args: `{"needed":false}`, want: `"none"`}, {tool: "t.f", args: `{"needed":true}`, code: toolmesh.CodeToolError, kind: "KeyError", text: "PLACES"}},
		},
		{
			name: "service-in-env", tools: "[service-in-env.t.f]", env: map[string]string{"URL": service.URL},
			files: map[string]string{"tools.toml": declaredEnv, "t.py": "import json, os, urllib.parse, urllib.request\n\n" +
				"def f(q: str) -> dict:\n    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))\n" +
				"    with opener.open(os.environ['URL'] + '?q=' + urllib.parse.quote(q)) as answer:\n        return json.load(answer)\n"},
			calls: []shapeCall{{tool: "t.f", args: `{"q":"what is ü?"}`, want: `{"asked":"what is ü?"}`}},
		},
		{
			name: "pools-and-programs", tools: "[pools-and-programs.t.pool pools-and-programs.t.missing pools-and-programs.t.shell]",
			files: map[string]string{
				"tools.toml": "[index]\ntools = [\"t.pool\", \"t.missing\", \"t.shell\"]\n",
				"t.py": "import multiprocessing, subprocess\n\ndef double(x): return 2 * x\n\n" +
					"def pool(n: int) -> list[int]:\n    with multiprocessing.get_context('fork').Pool(2) as p:\n        return p.map(double, range(n))\n\n" +
					"def missing() -> str:\n    return subprocess.check_output(['no-such-program-of-ours'], text=True)\n\n" +
					"def shell() -> str:\n    return subprocess.check_output(['sh', '-c', 'echo from a program'], text=True)\n",
			},
			calls: []shapeCall{
				{tool: "t.pool", args: `{"n":4}`, want: `[0,2,4,6]`}, {tool: "t.missing", args: `{}`, code: toolmesh.CodeToolError, kind: "FileNotFoundError"},
				{tool: "t.shell", args: `{}`, want: `"from a program\n"`},
			},
		},
		{
			name: "loud-import", tools: "[loud-import.t.f]",
			files: map[string]string{"tools.toml": "[index]\ntools = [\"t.f\"]\n", "t.py": "import os, sys, urllib.request\nprint('{\"type\": \"result\"}')\nos.write(1, b'\\x00\\xff' * 70000)\nsys.stderr.write('warned\\n')\n" +
				"DATA = sum(range(200000))\n\ndef f() -> int:\n    return DATA\n"},
			calls: []shapeCall{{tool: "t.f", args: `{}`, want: `19999900000`}},
		},
		{
			name: "package", tools: "[package.kit.make package.kit.inner.deep.count package.single.f]",
			files: map[string]string{
				"tools.toml":             "[index]\ntools = [\"kit.make\", \"kit.inner.deep.count\", \"single.f\"]\n",
				"pyproject.toml":         "[project]\nname = \"kit\"\nversion = \"1\"\ndependencies = []\n[tool.setuptools]\npy-modules = [\"single\"]\npackages = [\"kit\"]\n",
				"kit/__init__.py":        "from .maker import make\nfrom . import inner\n__all__ = ['make']\n",
				"kit/maker.py":           "from .inner.deep import count\nfrom kit import inner\n\ndef make(text: str) -> int:\n    return count(text) + inner.ONE\n",
				"kit/inner/__init__.py":  "ONE = 1\n",
				"kit/inner/deep.py":      "from .. import inner\n\ndef count(text: str) -> int:\n    return len(text) * inner.ONE\n",
				"single.py":              "import kit\n\ndef f() -> str:\n    return kit.__name__\n",
				"tests/test_nothing.py":  "raise SystemExit\n",
				"kit/never_imported.py":  "raise SystemExit\n",
				"requirements.txt":       "this-is-not-read==0\n",
				"setup.py":               "raise SystemExit\n",
				"docs/conf.py":           "raise SystemExit\n",
				".github/workflows/x.py": "raise SystemExit\n",
			},
			calls: []shapeCall{{tool: "kit.make", args: `{"text":"abc"}`, want: `4`}, {tool: "kit.inner.deep.count", args: `{"text":"abc"}`, want: `3`}, {tool: "single.f", args: `{}`, want: `"kit"`}},
		},
		{
			name: "empty-dependencies", tools: "[empty-dependencies.t.f]",
			files: map[string]string{"tools.toml": "[index]\ntools = [\"t.f\"]\n", "requirements.txt": "# nothing\n\n", "t.py": "def f(): return None\n"},
			calls: []shapeCall{{tool: "t.f", args: `{}`, want: `null`}},
		},
		{
			name: "recursive-result", tools: "[recursive-result.t.tree recursive-result.t.other]",
			files: map[string]string{"tools.toml": "[index]\ntools = [\"t.tree\", \"t.other\"]\n", "t.py": "from typing import TypedDict\n\n" +
				"class Tree(TypedDict):\n    name: str\n    children: 'list[Tree]'\n\ndef tree(deep: int) -> Tree:\n    return {'name': str(deep), 'children': [tree(deep - 1)] if deep else []}\n\ndef other() -> int: return 1\n"},
			calls: []shapeCall{{tool: "t.tree", args: `{"deep":1}`, want: `{"name":"1","children":[{"name":"0","children":[]}]}`}, {tool: "t.other", args: `{}`, want: `1`}},
		},
		{
			name: "errors", tools: "[errors.t.f]",
			files: map[string]string{"tools.toml": "[index]\ntools = [\"t.f\"]\n", "t.py": "class TooFar(Exception):\n    pass\n\n" +
				"def f(kind: str):\n    if kind == 'own':\n        raise TooFar('beyond the map')\n    if kind == 'exists':\n        raise FileExistsError('it is there')\n    return int(kind)\n"},
			calls: []shapeCall{
				{tool: "t.f", args: `{"kind":"own"}`, code: toolmesh.CodeToolError, kind: "TooFar", text: "beyond the map"},
				{tool: "t.f", args: `{"kind":"exists"}`, code: toolmesh.CodeToolError, kind: "FileExistsError"},
				{tool: "t.f", args: `{"kind":"x"}`, code: toolmesh.CodeToolError, kind: "ValueError"},
				{tool: "t.f", args: `{"kind":"7"}`, want: `7`},
			},
		},
	}
}

// The mesh serves the features of published indexes; each in a repository of its own.
func TestShapesOfIndexes(t *testing.T) {
	t.Parallel()
	nc, c := mesh(t)
	for _, s := range shapes(t) {
		t.Run(s.name, func(t *testing.T) {
			body := map[string]any{"source": repository(t, s.name, s.files)}
			if s.env != nil {
				body["env"] = s.env
			}
			if got := served(install(t, nc, body)); got != s.tools {
				t.Fatalf("installed %s, want %s", got, s.tools)
			}
			for _, one := range s.calls {
				id := s.name + "." + one.tool
				if one.code == "" {
					gives(t, c, id, one.args, one.want)
					continue
				}
				if e := fails(t, c, id, one.args, one.code, one.text); e.Type != one.kind {
					t.Errorf("%s(%s) raised %s, want %s", id, one.args, e.Type, one.kind)
				}
			}
		})
	}
}

// The items of a stream may differ in type.
func TestStreamsOfMixedItems(t *testing.T) {
	t.Parallel()
	nc, c := mesh(t)
	install(t, nc, map[string]any{"source": repository(t, "mixed", map[string]string{
		"tools.toml": "[index]\ntools = [\"t.words\", \"t.events\"]\n",
		"t.py": "def words():\n    yield 'thinking'\n    yield 'still'\n    yield {'answer': 42}\n\n" +
			"async def events(n: int):\n    yield {'type': 'metadata', 'data': {'n': n}}\n    for i in range(n):\n        yield {'type': 'result', 'data': i}\n",
	})})
	for tool, want := range map[string]string{
		"mixed.t.words":  `"thinking" "still" {"answer":42}`,
		"mixed.t.events": `{"type":"metadata","data":{"n":2}} {"type":"result","data":0} {"type":"result","data":1}`,
	} {
		var args any = map[string]any{}
		if tool == "mixed.t.events" {
			args = map[string]any{"n": 2}
		}
		if got := items(t, c, tool, args); got != want {
			t.Errorf("%s: %s, want %s", tool, got, want)
		}
	}
	gives(t, c, "mixed.t.words", `{}`, `{"answer":42}`)
}

// items are those of a stream, one after the other.
func items(t *testing.T, c *client.Client, tool string, args any) string {
	t.Helper()
	var all []string
	for chunk, err := range c.Stream(t.Context(), subjects.ToolID(tool), args) {
		if err != nil {
			t.Fatalf("%s after %d items: %v", tool, len(all), err)
		}
		all = append(all, string(chunk.Data))
	}
	return strings.Join(all, " ")
}
