package agent_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/client"
	"github.com/toolmesh/toolmesh/meshtest"
	"github.com/toolmesh/toolmesh/subjects"
)

func toolID(index, name string) subjects.ToolID { return subjects.ToolID(index + "." + name) }

const badTools = `
import asyncio, ctypes, os, sys, threading, time

def prints(n: int = 3) -> int:
    for i in range(n):
        print("line", i, "x" * 100000)
    sys.stderr.write("and stderr")
    return n

def garbage() -> str:
    os.write(1, b"\x00\x01\xff\xfe" * 5000)
    os.write(2, b"\xc3\x28 no utf-8")
    sys.stdout.buffer.write(b"{\"type\": \"result\"}")
    sys.__stdout__.write("straight to the first stdout")
    return "fine"

def closes() -> str:
    os.closerange(0, 3)
    return "closed"

def dies() -> str:
    os._exit(7)

def aborts() -> str:
    os.abort()

def segfaults() -> str:
    ctypes.string_at(0)

def exits() -> str:
    sys.exit("enough")

def quits() -> str:
    raise KeyboardInterrupt

def forever() -> str:
    while True:
        pass

def ignoring() -> str:
    while True:
        try:
            time.sleep(600)
        except BaseException:
            pass

async def aforever() -> str:
    while True:
        await asyncio.sleep(0.01)

async def ablocks() -> str:
    while True:
        time.sleep(0.01)

def not_json(kind: str):
    return {"rows": [{"ok": 1}, {"bad": {"object": object(), "cycle": cycle(), "nan": float("nan"), "key": {(1, 2): 3}}[kind]}]}

def cycle():
    a = []
    a.append(a)
    return a

def big(n: int) -> str:
    return "x" * n

def big_items(n: int):
    yield "small"
    yield "x" * n

def deep(n: int):
    a = []
    for _ in range(n):
        a = [a]
    return a

def raises_strange():
    class Strange(BaseException):
        def __str__(self):
            raise RuntimeError("no text")
    raise Strange()

def leaves_thread() -> str:
    threading.Thread(target=lambda: time.sleep(600)).start()
    return "left a thread"

def fork_child() -> int:
    pid = os.fork()
    if pid == 0:
        time.sleep(600)
        os._exit(0)
    return pid

def gives_up():
    yield 1
    os._exit(3)

def ok(x: int = 1) -> int:
    return x
`

// TestBadTools calls tools that misbehave in every way, and after each one that
// does not: the mesh and the other calls are none the worse for it.
func TestBadTools(t *testing.T) {
	t.Parallel()
	const maxPayload = 64 << 10
	s := meshtest.Broker(t, meshtest.MaxPayload(maxPayload))
	dir := t.TempDir()
	startIn(t, s, "one", dir)
	nc := s.Connect(t)
	var names []string
	for line := range strings.SplitSeq(badTools, "\n") {
		text, found := strings.CutPrefix(strings.TrimPrefix(line, "async "), "def ")
		if name, _, isDef := strings.Cut(text, "("); found && isDef && name != "cycle" {
			names = append(names, `"t.`+name+`"`)
		}
	}
	install(t, nc, map[string]any{"source": repository(t, "bad", map[string]string{
		"tools.toml": "[index]\ntools = [" + strings.Join(names, ", ") + "]\n", "t.py": badTools,
	})})
	c := newClient(t, nc, nil)
	const short = 400 * time.Millisecond
	for _, tc := range []struct {
		tool    string
		args    map[string]any
		timeout time.Duration
		want    string // the result
		code    toolmesh.Code
		says    string // in the message
		origin  toolmesh.Origin
	}{
		{tool: "prints", want: "3"},
		{tool: "garbage", want: `"fine"`},
		{tool: "closes", want: `"closed"`},
		{tool: "dies", code: toolmesh.CodeWorkerCrashed, says: "7", origin: toolmesh.OriginWorker},
		{tool: "aborts", code: toolmesh.CodeWorkerCrashed, says: "aborted", origin: toolmesh.OriginWorker},
		{tool: "segfaults", code: toolmesh.CodeWorkerCrashed, says: "segmentation fault", origin: toolmesh.OriginWorker},
		{tool: "exits", code: toolmesh.CodeToolError, says: "enough", origin: toolmesh.OriginTool},
		{tool: "quits", code: toolmesh.CodeToolError, origin: toolmesh.OriginTool},
		{tool: "forever", timeout: short, code: toolmesh.CodeDeadlineExceeded},
		{tool: "ignoring", timeout: short, code: toolmesh.CodeDeadlineExceeded},
		{tool: "aforever", timeout: short, code: toolmesh.CodeDeadlineExceeded},
		{tool: "ablocks", timeout: short, code: toolmesh.CodeDeadlineExceeded},
		{tool: "not_json", args: map[string]any{"kind": "object"}, code: toolmesh.CodeResultNotSerializable, says: "object"},
		{tool: "not_json", args: map[string]any{"kind": "cycle"}, code: toolmesh.CodeResultNotSerializable},
		{tool: "not_json", args: map[string]any{"kind": "nan"}, code: toolmesh.CodeResultNotSerializable},
		{tool: "not_json", args: map[string]any{"kind": "key"}, code: toolmesh.CodeResultNotSerializable},
		{tool: "big", args: map[string]any{"n": maxPayload + 1}, want: `"` + strings.Repeat("x", maxPayload+1) + `"`},
		{tool: "big", args: map[string]any{"n": 65 << 20}, code: toolmesh.CodePayloadTooLarge, says: "more than"},
		{tool: "big", args: map[string]any{"n": maxPayload / 2}, want: `"` + strings.Repeat("x", maxPayload/2) + `"`},
		{tool: "deep", args: map[string]any{"n": 100000}, code: toolmesh.CodeResultNotSerializable},
		{tool: "raises_strange", code: toolmesh.CodeToolError, origin: toolmesh.OriginTool},
		{tool: "leaves_thread", want: `"left a thread"`},
		{tool: "fork_child"},
		{tool: "gives_up", code: toolmesh.CodeWorkerCrashed},
	} {
		var opts []client.CallOption
		if tc.timeout > 0 {
			opts = append(opts, client.WithTimeout(tc.timeout))
		}
		r, err := c.Call(t.Context(), toolID("bad", "t."+tc.tool), tc.args, opts...)
		e := toolmesh.AsError(err)
		// Its time may be up before it came to a worker.
		for again := 0; again < 20 && tc.timeout > 0 && e != nil && e.Code == tc.code && e.Started == toolmesh.StartedNo; again++ {
			r, err = c.Call(t.Context(), toolID("bad", "t."+tc.tool), tc.args, opts...)
			e = toolmesh.AsError(err)
		}
		label := fmt.Sprint(tc.tool, tc.args)
		switch {
		case tc.code == "" && err != nil:
			t.Errorf("%s: %v %v", label, err, e.Details)
		case tc.code != "" && (e == nil || e.Code != tc.code):
			t.Errorf("%s: %v %v, want %s", label, r, err, tc.code)
		case tc.code == "" && tc.want != "" && string(r.Value) != tc.want:
			t.Errorf("%s: result %.100s", label, r.Value)
		case tc.code != "" && !strings.Contains(e.Message, tc.says):
			t.Errorf("%s: the message %q does not say %q", label, e.Message, tc.says)
		case tc.code != "" && (e.Message+e.Type == "" || tc.origin != "" && e.Origin != tc.origin || e.Started != toolmesh.StartedYes):
			t.Errorf("%s: message %q, origin %s, started %v", label, e.Message, e.Origin, e.Started)
		}
		if e != nil && tc.code == toolmesh.CodeResultNotSerializable && !strings.HasPrefix(fmt.Sprint(e.Details["path"]), "result.rows[1].bad") && tc.tool != "deep" {
			t.Errorf("%s: details.path is %v", label, e.Details["path"])
		}
		if r, err := c.Call(t.Context(), "bad.t.ok", map[string]any{"x": 5}); err != nil || string(r.Value) != "5" {
			t.Fatalf("the call after %s: %v %v", label, r, err)
		}
	}
	t.Run("stream item too large", func(t *testing.T) {
		n, err := drain(t, c, "bad.t.big_items", map[string]any{"n": 65 << 20})
		if toolmesh.CodeOf(err) != toolmesh.CodePayloadTooLarge || n != 1 {
			t.Errorf("%d items, then %v", n, err)
		}
	})
	t.Run("stream whose worker dies", func(t *testing.T) {
		n, err := drain(t, c, "bad.t.gives_up", nil)
		if toolmesh.CodeOf(err) != toolmesh.CodeWorkerCrashed || n != 1 {
			t.Errorf("%d items, then %v", n, err)
		}
	})
	t.Run("arguments too large", func(t *testing.T) {
		_, err := c.Call(t.Context(), "bad.t.ok", map[string]any{"x": 1, "y": strings.Repeat("x", maxPayload)})
		if toolmesh.CodeOf(err) != toolmesh.CodeInvalidArguments { // they have come, and y is none of them
			t.Errorf("%v", err)
		}
	})
	if r, err := c.Call(t.Context(), "bad.t.ok", nil); err != nil || string(r.Value) != "1" {
		t.Errorf("at last: %v %v", r, err)
	}
}

func drain(t *testing.T, c *client.Client, id subjects.ToolID, args any) (n int, err error) {
	t.Helper()
	for _, err := range c.Stream(t.Context(), id, args) {
		if err != nil {
			return n, err
		}
		n++
	}
	return n, nil
}

// TestMalformedRequests sends requests that no client of ours would send.
func TestMalformedRequests(t *testing.T) {
	t.Parallel()
	s := meshtest.Broker(t)
	start(t, s, "one")
	nc := s.Connect(t)
	install(t, nc, map[string]any{"source": repository(t, "idx", map[string]string{"tools.toml": working, "t.py": "def tool(x: int = 1) -> int: return x\n"})})
	ask := func(subject, body string, headers ...string) (code string, e *toolmesh.Error) {
		t.Helper()
		m := nats.NewMsg(subject)
		m.Data = []byte(body)
		for i := 0; i < len(headers); i += 2 {
			m.Header.Set(headers[i], headers[i+1])
		}
		r, err := nc.RequestMsgWithContext(t.Context(), m)
		if err != nil {
			t.Fatalf("%s %s: %v", subject, body, err)
		}
		var answer struct {
			Status string
			Error  *toolmesh.Error
		}
		if err := json.Unmarshal(r.Data, &answer); err != nil || answer.Error == nil {
			return "", nil
		}
		return string(answer.Error.Code), answer.Error
	}
	const tool = "tools.default.idx.t.tool"
	for _, tc := range []struct {
		name, body string
		headers    []string
		want       toolmesh.Code
	}{
		{name: "no JSON", body: "{", want: toolmesh.CodeInvalidArguments},
		{name: "no object", body: "[1]", want: toolmesh.CodeInvalidArguments},
		{name: "another tool in the body", body: `{"type":"rpc_tool_call","rpc_id":"a","tool_id":"idx.t.other"}`, want: toolmesh.CodeInvalidRequest},
		{name: "args that are no list", body: `{"type":"rpc_tool_call","rpc_id":"b","tool_id":"idx.t.tool","args":{}}`, want: toolmesh.CodeInvalidRequest},
		{name: "empty rpc_id", body: `{"type":"rpc_tool_call","rpc_id":"","tool_id":"idx.t.tool"}`, want: toolmesh.CodeInvalidRequest},
		{name: "too many positional", body: `{"type":"rpc_tool_call","rpc_id":"c","tool_id":"idx.t.tool","args":[1,2]}`, want: toolmesh.CodeInvalidArguments},
		{name: "timeout that is no number", body: "{}", headers: []string{"Mesh-Timeout-Ms", "soon"}, want: toolmesh.CodeInvalidRequest},
		{name: "no time left", body: "{}", headers: []string{"Mesh-Timeout-Ms", "0"}, want: toolmesh.CodeDeadlineExceeded},
		{name: "unknown requirement", body: "{}", headers: []string{"Mesh-Require", "teleport"}, want: toolmesh.CodeProtocolError},
		{name: "another version", body: "{}", headers: []string{"Mesh-Proto", "99"}, want: toolmesh.CodeProtocolError},
		{name: "another encoding", body: "{}", headers: []string{"Mesh-Rpc-Id", "d", "Content-Type", "application/xml"}, want: toolmesh.CodeInvalidRequest},
		{name: "wrong type", body: `{"x":"1"}`, want: toolmesh.CodeInvalidArguments},
		{name: "unknown argument", body: `{"y":1}`, want: toolmesh.CodeInvalidArguments},
		{name: "null", body: `{"x":null}`, want: toolmesh.CodeInvalidArguments},
	} {
		code, e := ask(tool, tc.body, tc.headers...)
		if code != string(tc.want) || e.Started != toolmesh.StartedNo || e.Message == "" {
			t.Errorf("%s: %v, want %s, not started", tc.name, e, tc.want)
		}
		if strings.Contains(tc.body, `":`) && tc.want == toolmesh.CodeInvalidArguments && !strings.Contains(fmt.Sprint(e.Details["errors"]), "pointer") {
			t.Errorf("%s: details %v have no pointers", tc.name, e.Details)
		}
	}
	if code, e := ask(tool, `{"x":7}`); code != "" {
		t.Errorf("a good request: %v", e)
	}
}

// TestForeignReplySubject is the attack of docs/protocol, section 2: a caller
// that may call tools names a subject of the broker as its reply subject.
func TestForeignReplySubject(t *testing.T) {
	t.Parallel()
	s := meshtest.Broker(t)
	start(t, s, "one")
	nc := s.Connect(t)
	install(t, nc, map[string]any{"source": repository(t, "idx", map[string]string{"tools.toml": working, "t.py": "def tool(): return 1\n"})})
	victim, err := nc.SubscribeSync("victim.>")
	if err != nil {
		t.Fatal(err)
	}
	stream := "$JS.API.STREAM.DELETE.MESH_CHUNKS"
	for _, subject := range []string{
		"tools.default.idx.t.tool", "mesh.node.one.tools.default.idx.t.tool", "mesh.node.one.tools.default.idx.t.nothing", "mesh.registry.default.list",
		"mesh.replay.default.rpc_1", "mesh.ctl.default.rpc_1", "mesh.node.one.ctl.default.rpc_1", "mesh.admin.uninstall", "mesh.node.one.admin.label",
	} {
		for _, reply := range []string{"victim." + subject, stream, "tools.default.idx.t.tool", "_INBOXES.x"} {
			if err := nc.PublishRequest(subject, reply, []byte("{}")); err != nil {
				t.Fatal(err)
			}
		}
	}
	c := newClient(t, nc, nil)
	for range 20 { // behind everything that was sent
		if _, err := c.Call(t.Context(), "idx.t.tool", nil); err != nil {
			t.Fatal(err)
		}
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	for {
		m, err := victim.NextMsg(time.Millisecond) // an answer has arrived already
		if errors.Is(err, nats.ErrTimeout) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Errorf("an answer went to %s: %s", m.Subject, m.Data)
	}
	info, err := nc.RequestWithContext(t.Context(), "$JS.API.STREAM.INFO.MESH_CHUNKS", nil)
	if err != nil || strings.Contains(string(info.Data), `"error"`) {
		t.Errorf("the stream of chunks: %s %v", info.Data, err)
	}
}
