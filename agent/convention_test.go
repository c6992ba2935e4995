package agent_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/agent"
	"github.com/toolmesh/toolmesh/client"
	"github.com/toolmesh/toolmesh/meshtest"
	"github.com/toolmesh/toolmesh/subjects"
)

// mesh is a broker with one agent and a client.
func mesh(t *testing.T, change ...func(*agent.Options)) (*nats.Conn, *client.Client) {
	t.Helper()
	s := meshtest.Broker(t)
	startIn(t, s, "one", t.TempDir(), change...)
	nc := s.Connect(t)
	return nc, newClient(t, nc, nil)
}

// gives fails the test unless a call returns exactly want.
func gives(t *testing.T, c *client.Client, tool, args, want string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	r, err := c.Call(ctx, subjects.ToolID(tool), json.RawMessage(args))
	if err != nil {
		t.Errorf("%s(%s): %v %v", tool, args, err, toolmesh.AsError(err).Details)
		return
	}
	if string(r.Value) != want {
		t.Errorf("%s(%s) = %s, want %s", tool, args, r.Value, want)
	}
}

// fails fails the test unless a call is refused with a code and a text.
func fails(t *testing.T, c *client.Client, tool, args string, code toolmesh.Code, text string) *toolmesh.Error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	r, err := c.Call(ctx, subjects.ToolID(tool), json.RawMessage(args))
	e := toolmesh.AsError(err)
	if e == nil || e.Code != code || !strings.Contains(e.Message, text) {
		t.Fatalf("%s(%s): %v %v; want %s with %q", tool, args, r, err, code, text)
	}
	return e
}

// served are the ids of an install's last line.
func served(last map[string]any) string { return fmt.Sprint(last["tools"]) }

func TestLegacyIndex(t *testing.T) {
	t.Parallel()
	nc, c := mesh(t)
	last := install(t, nc, map[string]any{"source": repository(t, "mail", map[string]string{
		"TOOLS.yml": "description: Mail.\n\ntools:\n- mail.send\n- 'mail.sender'\n- keyed.f\n\nenv_vars:\n- MAIL_FROM:\n  - mail.sender\n- MAIL_KEY:\n  - 'keyed.f'\n",
		"mail.py":   "import os\n\ndef send(to: str) -> str:\n    \"\"\"Send.\"\"\"\n    return 'to ' + to\n\ndef sender() -> str:\n    return os.environ['MAIL_FROM']\n",
		"keyed.py":  "import os\nKEY = os.environ['MAIL_KEY']\n\ndef f(): return KEY\n",
	}), "env": map[string]string{"MAIL_FROM": "me"}})
	if served(last) != "[mail.mail.send mail.mail.sender]" || !strings.Contains(fmt.Sprint(last["unavailable"]), "--env MAIL_KEY") {
		t.Errorf("installed %v; want two tools and what the third lacks", last)
	}
	gives(t, c, "mail.mail.send", `{"to":"you"}`, `"to you"`)
	gives(t, c, "mail.mail.sender", `{}`, `"me"`)
	fails(t, c, "mail.keyed.f", `{}`, toolmesh.CodeUnavailable, "MAIL_KEY")
}

func TestEntryPointIndex(t *testing.T) {
	t.Parallel()
	nc, c := mesh(t)
	last := install(t, nc, map[string]any{"source": repository(t, "sky", map[string]string{
		"pyproject.toml": `
[project]
name = "sky"
version = "1"
requires-python = ">=3.10"
[project.entry-points."toolmesh.tools"]
today = "sky.forecast:today"
again = "sky.forecast:today"
hours = "sky.forecast:hours"
"maps.radar" = "sky.maps:radar"
nothing = "sky.nothing:at_all"
gone = "sky.maps:gone"
[tool.toolmesh.tool.today]
timeout = "7s"
`,
		"src/sky/__init__.py": "",
		"src/sky/forecast.py": "from .maps import radar\n\ndef today(city: str) -> str:\n    \"\"\"The weather.\"\"\"\n    return city + radar()\n\ndef hours(n: int):\n    for i in range(n):\n        yield i\n",
		"src/sky/maps.py":     "def radar() -> str:\n    return ': rain'\n",
	})})
	if served(last) != "[sky.again sky.hours sky.maps.radar sky.today]" {
		t.Errorf("installed %v", last)
	}
	reasons := fmt.Sprint(last["unavailable"])
	for _, want := range []string{"sky.gone", "sky.nothing", "No module named", "has no gone"} {
		if !strings.Contains(reasons, want) {
			t.Errorf("what is not served does not say %q: %s", want, reasons)
		}
	}
	gives(t, c, "sky.today", `{"city":"Oslo"}`, `"Oslo: rain"`)
	gives(t, c, "sky.again", `{"city":"Rome"}`, `"Rome: rain"`)
	gives(t, c, "sky.maps.radar", `{}`, `": rain"`)
	gives(t, c, "sky.hours", `{"n":3}`, `2`)
	about, err := c.Describe(t.Context(), "sky.today")
	if err != nil || !strings.Contains(string(about), `"timeout":"7s"`) || !strings.Contains(string(about), `"The weather."`) {
		t.Errorf("today is %s, %v", about, err)
	}
}

const scriptSource = `#!/usr/bin/env -S uv run --script
# /// script
# requires-python = ">=3.10"
# dependencies = []
#
# [tool.toolmesh.tool.shout]
# idempotent = true
# ///
"""Words."""
import sys
from os.path import join


def shout(text: str, times: int = 1) -> str:
    """Say it louder.

    Args:
        text: what to say
    """
    return _louder(text) * times


def _louder(text):
    return text.upper()


async def later(text: str) -> str:
    return join(text, "later")


def letters(text: str):
    yield from text


if __name__ == "__main__":
    sys.exit("the script ran")
`

func TestScriptIndex(t *testing.T) {
	t.Parallel()
	nc, c := mesh(t)
	last := install(t, nc, map[string]any{"source": repository(t, "words", map[string]string{
		"words.py": scriptSource, "README.md": "x", "requirements.txt": "no-such-package-of-ours==9\n",
	})})
	if served(last) != "[words.words.shout words.words.later words.words.letters]" {
		t.Errorf("installed %v", last)
	}
	gives(t, c, "words.words.shout", `{"text":"ho","times":2}`, `"HOHO"`)
	gives(t, c, "words.words.later", `{"text":"see you"}`, `"see you/later"`)
	gives(t, c, "words.words.letters", `{"text":"abc"}`, `"c"`)
	fails(t, c, "words.words._louder", `{"text":"x"}`, toolmesh.CodeToolNotFound, "")
	fails(t, c, "words.words.join", `{"a":"x"}`, toolmesh.CodeToolNotFound, "")
	about, err := c.Describe(t.Context(), "words.words.shout")
	if err != nil || !strings.Contains(string(about), `"idempotent":true`) || !strings.Contains(string(about), "what to say") {
		t.Errorf("shout is %s, %v", about, err)
	}
}

// A script is installed with a dependency in its block.
func TestScriptDependencies(t *testing.T) {
	t.Parallel()
	uv := needsPackages(t)
	nc, c := mesh(t, func(o *agent.Options) { o.UV = uv })
	install(t, nc, map[string]any{"source": repository(t, "versions", map[string]string{
		"versions.py": "# /// script\n# dependencies = [\n#   \"packaging>=21\",\n# ]\n# ///\nfrom packaging.version import Version\n\ndef newer(a: str, b: str) -> bool:\n    return Version(a) > Version(b)\n",
	})})
	gives(t, c, "versions.versions.newer", `{"a":"1.10","b":"1.9"}`, `true`)
	_, failure := admin(t, nc, "install", map[string]any{"name": "bad", "source": repository(t, "bad", map[string]string{
		"bad.py": "# /// script\n# dependencies = [\"packaging==0.0.0.1\"]\n# ///\ndef f(): pass\n",
	})})
	if failure == nil || failure.Code != toolmesh.CodeInstallFailed || !strings.Contains(failure.Message, "bad.py") || !strings.Contains(failure.Message, "packaging") {
		t.Errorf("a dependency that cannot be resolved: %v", failure)
	}
}

const commandTools = `
[index]
tools = ["t.double"]

[tool.echo]
description = "Say it."
command = ["./echo.sh", "{first}", ["--more={more}"], "--", "{rest}"]
stdout = "text"
[tool.echo.input]
first = { type = "string", description = "the first" }
more = { type = "integer", required = false }
rest = { type = "array", items = { type = "string" }, default = [] }

[tool.count]
command = ["./count.sh", "{to}"]
input = { to = "integer" }
streaming = true

[tool.python]
command = ["python", "-c", "import sys, json; print(json.dumps([sys.prefix == sys.base_prefix, sys.argv[1]]))", "{text}"]

[tool.wrong]
command = ["./wrong.sh"]

[tool.noise]
command = ["echo", "this is no JSON"]

[tool.missing]
command = ["no-such-program-of-ours", "{x}"]

[tool.absent]
command = ["./no-such-file.sh"]
`

func TestCommandIndex(t *testing.T) {
	t.Parallel()
	nc, c := mesh(t)
	last := install(t, nc, map[string]any{"source": repository(t, "shell", map[string]string{
		"tools.toml": commandTools,
		"t.py":       "def double(x: int) -> int:\n    return 2 * x\n",
		"echo.sh":    "#!/bin/sh\nfor a in \"$@\"; do echo \"<$a>\"; done\n",
		"count.sh":   "#!/bin/sh\ni=0\nwhile [ $i -lt $1 ]; do echo \"{\\\"i\\\": $i}\"; i=$((i+1)); done\n",
		"wrong.sh":   "#!/bin/sh\necho first >&2\necho 'the table is down' >&2\nexit 3\n",
	})})
	if served(last) != "[shell.t.double shell.count shell.echo shell.noise shell.python shell.wrong]" {
		t.Errorf("installed %v", last)
	}
	reasons := fmt.Sprint(last["unavailable"])
	for _, want := range []string{"shell.missing", "command not found: no-such-program-of-ours", "shell.absent", "the index has no file ./no-such-file.sh"} {
		if !strings.Contains(reasons, want) {
			t.Errorf("what is not served does not say %q: %s", want, reasons)
		}
	}
	gives(t, c, "shell.t.double", `{"x":21}`, `42`)
	gives(t, c, "shell.echo", `{"first":"a; touch /tmp/x $(id) 'b' \"c\" *","more":7,"rest":["-x","d\ne",""]}`,
		`"<a; touch /tmp/x $(id) 'b' \"c\" *>\n<--more=7>\n<-->\n<-x>\n<d\ne>\n<>"`)
	gives(t, c, "shell.python", `{"text":"größe"}`, `[false, "gr\u00f6\u00dfe"]`)
	gives(t, c, "shell.count", `{"to":3}`, `{"i": 2}`)
	n := 0
	for chunk, err := range c.Stream(t.Context(), "shell.count", map[string]any{"to": 500}) {
		if err != nil {
			t.Fatalf("stream after %d: %v", n, err)
		}
		var item struct{ I int }
		if err := chunk.Decode(&item); err != nil || item.I != n {
			t.Fatalf("item %d is %s", n, chunk.Data)
		}
		n++
	}
	if n != 500 {
		t.Errorf("the stream had %d items, want 500", n)
	}
	e := fails(t, c, "shell.wrong", `{}`, toolmesh.CodeToolError, "exit status 3: the table is down")
	if e.Details["exit_status"] != float64(3) || e.Details["stderr"] != "first\nthe table is down" || e.Started != toolmesh.StartedYes {
		t.Errorf("the error is %+v", e)
	}
	e = fails(t, c, "shell.noise", `{}`, toolmesh.CodeResultNotSerializable, "not one JSON value")
	if e.Details["output"] != "this is no JSON" {
		t.Errorf("details %v", e.Details)
	}
	fails(t, c, "shell.echo", `{"first":"-o"}`, toolmesh.CodeInvalidArguments, "option")
	fails(t, c, "shell.echo", `{"first":"a\u0000b"}`, toolmesh.CodeInvalidArguments, "NUL")
	fails(t, c, "shell.echo", `{"first":1}`, toolmesh.CodeInvalidArguments, "first")
	fails(t, c, "shell.echo", `{"first":"a","secnd":"b"}`, toolmesh.CodeInvalidArguments, "secnd")
	fails(t, c, "shell.missing", `{"x":"y"}`, toolmesh.CodeUnavailable, "command not found")
	about, err := c.Describe(t.Context(), "shell.echo")
	if err != nil || !strings.Contains(string(about), `"the first"`) || !strings.Contains(string(about), `"Say it."`) {
		t.Errorf("echo is %s, %v", about, err)
	}
}

// An index without any Python is served, while the node's
// load is told and sessions end.
func TestCommandsAlone(t *testing.T) {
	t.Parallel()
	nc, c := mesh(t)
	last := install(t, nc, map[string]any{"source": repository(t, "bare", map[string]string{
		"tools.toml": "[index]\n[tool.say]\ncommand = [\"printf\", \"%s\", \"{text}\"]\nstdout = \"text\"\n" +
			"[tool.missing]\ncommand = [\"no-such-program-of-ours\"]\n",
	})})
	if served(last) != "[bare.say]" {
		t.Errorf("installed %v", last)
	}
	heartbeats, err := nc.SubscribeSync("mesh.hb.one")
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if _, err := heartbeats.NextMsg(30 * time.Second); err != nil {
			t.Fatalf("the node is silent: %v", err)
		}
		gives(t, c, "bare.say", `{"text":"a b"}`, `"a b"`)
	}
	install(t, nc, map[string]any{"name": "more", "source": repository(t, "more", map[string]string{
		"tools.toml": "[index]\ntools = [\"t.f\"]\n", "t.py": "def f(): return 1\n",
	})})
	gives(t, c, "more.t.f", `{}`, `1`)
	gives(t, c, "bare.say", `{"text":"still"}`, `"still"`)
}
