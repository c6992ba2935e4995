"""A program that is of a mesh without a NATS client, in Python's standard library alone.

It starts `mesh bridge` and speaks frames with it (docs/bridge.md). It offers two tools
in the session "default", `shout` and `countdown`; `shout` calls another tool of the mesh
when it is told which. It ends, without losing a call, when its own stdin does.

    python3 examples/bridge/program.py &
    mesh call shout text=hello
    mesh stream countdown n=3
"""
import itertools
import json
import queue
import struct
import subprocess
import sys
import threading
import traceback

TOOLS = [
    {"name": "shout", "type": "standard", "description": "Says it louder.", "positional": ["text"],
     "input_schema": {"type": "object", "required": ["text"], "additionalProperties": False,
                      "properties": {"text": {"type": "string"}, "through": {"type": "string"}}}},
    {"name": "countdown", "type": "streaming", "description": "From n to 1.",
     "input_schema": {"type": "object", "required": ["n"], "properties": {"n": {"type": "integer"}}}},
]


class Bridge:
    def __init__(self, functions, arguments):
        self.functions = functions
        self.process = subprocess.Popen(["mesh", "bridge", *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.writing = threading.Lock()
        self.names = itertools.count(1)
        self.answers = {}  # our calls: rpc_id -> queue of one answer
        self.cancelled = {}  # calls that we serve: rpc_id -> event

    def write(self, **frame):
        body = json.dumps(frame, allow_nan=False).encode()
        with self.writing:
            self.process.stdin.write(struct.pack(">I", len(body)) + body)
            self.process.stdin.flush()

    def read(self):
        """The next frame, None at the end."""
        head = self.process.stdout.read(4)
        if len(head) < 4:
            return None
        return json.loads(self.process.stdout.read(struct.unpack(">I", head)[0]))

    def ask(self, **frame):
        """Send a request and wait for its answer."""
        name = next(self.names)
        answer = self.answers[name] = queue.Queue(1)
        self.write(rpc_id=name, **frame)
        response = answer.get()
        if response["status"] == "error":
            raise RuntimeError(f"{response['error']['code']}: {response['error']['message']}")
        return response["result"]

    def serve(self, frame):
        name, stream = frame["rpc_id"], frame["type"] == "rpc_tool_stream"
        kind = "rpc_stream_chunk" if stream else "rpc_tool_response"
        try:
            result = self.functions[frame["tool_id"]](self, name, *frame["args"], **frame["kwargs"])
            if not stream:
                self.write(type=kind, rpc_id=name, status="ok", result=result)
                return
            for item in result:
                if self.cancelled[name].is_set():
                    break
                self.write(type=kind, rpc_id=name, chunk_type="data", data=item)
            self.write(type=kind, rpc_id=name, chunk_type="complete")
        except Exception as e:
            error = {"type": type(e).__name__, "message": str(e), "stacktrace": traceback.format_exc()}
            self.write(type=kind, rpc_id=name, status="error", chunk_type="error", error=error)
        finally:
            del self.cancelled[name]

    def run(self):
        while (frame := self.read()) is not None:
            match frame["type"]:
                case "rpc_tool_call" | "rpc_tool_stream":
                    self.cancelled[frame["rpc_id"]] = threading.Event()
                    threading.Thread(target=self.serve, args=(frame,)).start()
                case "rpc_cancel" if frame["rpc_id"] in self.cancelled:
                    self.cancelled[frame["rpc_id"]].set()
                case "rpc_tool_response":
                    self.answers.pop(frame["rpc_id"]).put(frame)
                case "rpc_error":
                    print("the bridge refuses a frame:", frame["error"]["message"], file=sys.stderr)


def shout(bridge, rpc_id, text, through=None):
    if through:
        text = bridge.ask(type="rpc_tool_call", tool_id=through, args=[], kwargs={"text": text}, parent=rpc_id)
    return text.upper() + "!"


def countdown(bridge, rpc_id, n):
    yield from range(n, 0, -1)


if __name__ == "__main__":
    bridge = Bridge({"shout": shout, "countdown": countdown}, sys.argv[1:])
    reading = threading.Thread(target=bridge.run)
    reading.start()
    bridge.ask(type="init_tool_bridge", tools=TOOLS)
    print("ready", flush=True)
    sys.stdin.read()
    bridge.write(type="drain")
    reading.join()
    sys.exit(bridge.process.wait())
