package executor_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"

	"github.com/toolmesh/toolmesh"
	"github.com/toolmesh/toolmesh/executor"
	"github.com/toolmesh/toolmesh/executor/internal/output"
)

const talkingTools = `
import asyncio, logging, os, subprocess, sys, threading, multiprocessing, ctypes

log = logging.getLogger("my.tool")
logging.basicConfig(level=logging.INFO)

def prints():
    print("to stdout")
    print("to stderr", file=sys.stderr)
    sys.stdout.write("no newline")
    return 1

def logs():
    log.info("hello %s", "you", extra={"user": 7})
    log.warning("careful")
    try:
        1 / 0
    except ZeroDivisionError:
        log.exception("failed")
    return 1

def raw():
    os.write(1, b"raw one\n")
    os.write(2, b"raw two\n")
    return 1

def child():
    subprocess.run(["sh", "-c", "echo from child; echo child err >&2"], check=True)
    subprocess.run([sys.executable, "-c", "print('python child')"], stdout=sys.stdout, check=True)
    return 1

def c_code():
    libc = ctypes.CDLL(None)
    libc.printf(b"from C\n")
    libc.fflush(None)
    return 1

def threads():
    def say():
        print("from thread")
    t = threading.Thread(target=say)
    t.start()
    t.join()
    return 1

def forks():
    pid = os.fork()
    if pid == 0:
        print("from the fork", flush=True)
        os._exit(0)
    os.waitpid(pid, 0)
    return 1

def fork_returns():
    pid = os.fork()
    if pid == 0:
        return "child"
    os.waitpid(pid, 0)
    return "parent"

def square(n):
    return n * n

def pool():
    with multiprocessing.get_context("fork").Pool(2) as p:
        return p.map(square, [1, 2, 3])

def closes():
    os.close(1)
    sys.stdout.close()
    print("still there")
    return 1

def stdin():
    return sys.stdin.read() + os.read(0, 10).decode()

def flood(n: int):
    line = "x" * 999
    for _ in range(n):
        print(line)
    return 1

def raw_flood(n: int):
    data = b"y" * 65536
    for _ in range(n):
        os.write(1, data)
        os.write(2, data)
    return 1

def ok():
    return 1

async def aprints(name: str):
    for _ in range(5):
        print("hello from", name)
        await asyncio.sleep(0.001)
    return name

def frames():
    # What looks like a frame must not be one, wherever it is written.
    os.write(1, b"\x02\x00\x00\x00\x11\x00\x00\x00" + b"\x01" * 8 + b"42")
    sys.stdout.buffer.write(b"\x00\x01\xff\n")
    return "right"
`

func talkingIndex(t *testing.T) *executor.Index {
	t.Helper()
	return openModule(t, sharedExecutor(t), talkingTools, "prints", "logs", "raw", "child", "c_code", "threads",
		"forks", "fork_returns", "pool", "closes", "stdin", "flood", "raw_flood", "ok", "aprints", "frames")
}

func callWith(t *testing.T, ix *executor.Index, tool, args string) (string, *collector) {
	t.Helper()
	sink := &collector{}
	body, err := ix.Call(t.Context(), executor.Call{Tool: tool, Args: json.RawMessage(args)}, sink)
	if err != nil {
		t.Fatalf("%s: %v\n%s", tool, err, toolmesh.AsError(err).Stacktrace)
	}
	return string(body), sink
}

// Each call has its own output when it returns, and no other call's.
func TestOutputBelongsToItsCall(t *testing.T) {
	t.Parallel()
	ix := talkingIndex(t)
	for _, c := range []struct{ tool, stdout, stderr string }{
		{"t.prints", "to stdout\nno newline\n", "to stderr\n"},
		{"t.raw", "raw one\n", "raw two\n"},
		{"t.child", "from child\npython child\n", "child err\n"},
		{"t.c_code", "from C\n", ""},
		{"t.threads", "from thread\n", ""},
		{"t.forks", "from the fork\n", ""},
		{"t.ok", "", ""},
	} {
		for range 3 {
			_, sink := callWith(t, ix, c.tool, `{}`)
			if got := sink.text(output.StreamStdout); got != c.stdout {
				t.Errorf("%s: stdout %q, want %q", c.tool, got, c.stdout)
			}
			if got := sink.text(output.StreamStderr); got != c.stderr {
				t.Errorf("%s: stderr %q, want %q", c.tool, got, c.stderr)
			}
		}
	}
	if s := ix.Stats(); s.Restarts != 0 {
		t.Errorf("%d restarts", s.Restarts)
	}
}

func TestLoggingBecomesRecords(t *testing.T) {
	t.Parallel()
	ix := talkingIndex(t)
	_, sink := callWith(t, ix, "t.logs", `{}`)
	if len(sink.records) != 3 {
		t.Fatalf("got %d records, want 3: %+v", len(sink.records), sink.records)
	}
	r := sink.records[0]
	if r.Stream != output.StreamLog || r.Level != slog.LevelInfo || r.Logger != "my.tool" || r.Message != "hello you" ||
		string(r.Fields) != `{"user": 7}` {
		t.Errorf("got %+v, fields %s", r, r.Fields)
	}
	if sink.records[1].Level != slog.LevelWarn || sink.records[2].Level != slog.LevelError {
		t.Errorf("levels %v, %v", sink.records[1].Level, sink.records[2].Level)
	}
	if !strings.Contains(string(sink.records[2].Fields), "ZeroDivisionError") {
		t.Errorf("the exception is missing: %s", sink.records[2].Fields)
	}
}

func TestOutputIsNeverTakenForAnAnswer(t *testing.T) {
	t.Parallel()
	ix := talkingIndex(t)
	for tool, want := range map[string]string{
		"t.frames": `"right"`, "t.pool": `[1,4,9]`, "t.fork_returns": `"parent"`, "t.stdin": `""`,
	} {
		for range 3 {
			mustCall(t, ix, tool, `{}`, want)
		}
	}
	_, sink := callWith(t, ix, "t.closes", `{}`)
	if got := sink.text(output.StreamStdout); got != "still there\n" {
		t.Errorf("stdout %q", got)
	}
	_, sink = callWith(t, ix, "t.prints", `{}`)
	if got := sink.text(output.StreamStdout); got != "to stdout\nno newline\n" {
		t.Errorf("stdout after a tool closed it: %q", got)
	}
	if s := ix.Stats(); s.Restarts != 0 {
		t.Errorf("%d restarts", s.Restarts)
	}
}

func TestFloodOfOutputIsCutAndBlocksNoCall(t *testing.T) {
	t.Parallel()
	ix := talkingIndex(t)
	for _, c := range []struct{ tool, args string }{{"t.flood", `{"n":20000}`}, {"t.raw_flood", `{"n":200}`}} {
		_, sink := callWith(t, ix, c.tool, c.args)
		size := len(sink.text(output.StreamStdout)) + len(sink.text(output.StreamStderr))
		if size < 10_000 || size > 8<<20 {
			t.Errorf("%s: %d bytes were passed on; 20 MB were written", c.tool, size)
		}
		if c.tool == "t.flood" && !strings.Contains(sink.text(output.StreamStderr), "bytes of output left out") {
			t.Error("nothing says that output was left out")
		}
	}
	mustCall(t, ix, "t.ok", `{}`, `1`)
}

func TestOutputOfConcurrentCoroutinesIsSeparate(t *testing.T) {
	t.Parallel()
	ix := talkingIndex(t)
	var wg sync.WaitGroup
	for n := range 50 {
		wg.Go(func() {
			sink := &collector{}
			name := fmt.Sprintf("caller %d", n)
			_, err := ix.Call(context.WithoutCancel(t.Context()), executor.Call{
				Tool: "t.aprints", Args: json.RawMessage(fmt.Sprintf(`{"name":%q}`, name)),
			}, sink)
			if err != nil {
				t.Error(err)
			}
			if got, want := sink.text(output.StreamStdout), strings.Repeat("hello from "+name+"\n", 5); got != want {
				t.Errorf("%s: got %q", name, got)
			}
		})
	}
	wg.Wait()
}
