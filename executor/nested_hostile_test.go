package executor_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/executor"
)

// Tools that write frames about nested calls themselves.
const forgingTools = `
import json, time
from _toolmesh_worker.calls import channel
from _toolmesh_worker.wire.frames import HEADER, NESTED_CALL, NESTED_CANCEL, NESTED_CREDIT, write_all
from toolmesh import mesh

def send(kind, number, body=b"", flags=0):
    with channel.current._outlet.lock:
        write_all(channel.current._outlet.fd, HEADER.pack(len(body), kind, flags, 0, number) + body)

def about(call=None, **more):
    head = json.dumps({"call": channel.current._call() if call is None else call, "tool": "t.slow", **more}).encode()
    return len(head).to_bytes(4, "little") + head

def forge(how):
    if how == "no body":
        send(NESTED_CALL, 90)
    elif how == "cut off":
        send(NESTED_CALL, 90, b"\xff\xff\xff\x7f{}")
    elif how == "no JSON":
        send(NESTED_CALL, 90, b"\2\0\0\0[}")
    elif how == "twice":
        send(NESTED_CALL, 90, about())
        send(NESTED_CALL, 90, about())
    elif how == "credit":
        send(NESTED_CALL, 90, about())
        send(NESTED_CREDIT, 90, b"\1")
    elif how == "unknown call":
        send(NESTED_CALL, 90, about(call=12345678))
        return mesh.call("t.one")
    elif how == "unknown cancel":
        send(NESTED_CANCEL, 91)
        send(NESTED_CREDIT, 92, b"\1\0\0\0")
        return mesh.call("t.one")
    elif how == "left open":
        send(NESTED_CALL, 90, about())
        return mesh.call("t.one")
    elif how == "past times":
        send(NESTED_CALL, 90, about(timeout_ms=-5))
        send(NESTED_CALL, 93, about(timeout_ms=1 << 62))
        return mesh.call("t.one")
    elif how == "no tool":
        try:
            return mesh.call("")
        except mesh.MeshError as e:
            return e.code
    time.sleep(60)

async def aforge(how):
    import asyncio
    try:
        return forge(how)
    except mesh.MeshError:  # it would block the loop
        return await mesh.acall("t.one")

def slow():
    time.sleep(60)

def one():
    return 1
`

// Forged frames of a tool cost at most its own worker: the agent goes on, no call is left behind,
// and the next one is served.
func TestForgedNestedCalls(t *testing.T) {
	t.Parallel()
	x := newExecutor(t, func(o *executor.Options) { o.CrashLimit = 100 }) // no quarantine here
	ix := openModule(t, x, forgingTools, "forge", "aforge", "slow", "one")
	for _, c := range []struct{ how, plain, coroutine string }{
		{"no body", "worker_crashed", "worker_crashed"},
		{"cut off", "worker_crashed", "worker_crashed"},
		{"no JSON", "worker_crashed", "worker_crashed"},
		{"twice", "worker_crashed", "worker_crashed"},
		{"credit", "worker_crashed", "worker_crashed"},
		{"unknown call", "1", "1"},
		{"unknown cancel", "1", "1"},
		{"left open", "1", "1"},
		{"past times", "1", "1"},
		{"no tool", `"tool_not_found"`, `"invalid_request"`}, // the latter for blocking the loop,
	} {
		for tool, want := range map[string]string{"t.forge": c.plain, "t.aforge": c.coroutine} {
			got, err := callNested(t, ix, tool, fmt.Sprintf(`{"how":%q}`, c.how))
			if err != nil {
				got = string(toolmesh.CodeOf(err))
			}
			if got != want {
				t.Errorf("%s, %s: got %s (%v), want %s", tool, c.how, got, err, want)
			}
			if want == "worker_crashed" && (err == nil || !strings.Contains(err.Error(), "t.")) {
				t.Errorf("%s, %s: the error %v does not name the tool", tool, c.how, err)
			}
		}
		eventually(t, "no call is left", func() bool { s := ix.Stats(); return s.Busy == 0 && s.Waiting == 0 })
	}
}
