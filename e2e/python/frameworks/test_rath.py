"""OpenRath, the package of that name from PyPI, with the mesh's tools, and its tools in the mesh."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any

import pytest
from rath.flow.tool import FlowToolCall, FlowToolFilesRead, merge_tools_for_loop, tools_dict_to_schemas
from rath.llm import Provider
from rath.llm.chat_response import (
    RathLLMAssistantMessage,
    RathLLMChatChoice,
    RathLLMChatResponse,
    RathLLMToolCallFunction,
    RathLLMToolCallPart,
)
from rath.session import Session, create_system_session, create_user_session, run_session_loop

import toolmesh
from toolmesh.rath import MeshToolCall, host, tools
from toolmesh.remote import Description


def by_name(mesh, prefix):
    return {one.name: one for one in tools(mesh, prefix)}


def test_a_tool_of_the_mesh_in_openrath(mesh):
    table = merge_tools_for_loop(tools(mesh, "rich."))
    schemas = {one.name: one for one in tools_dict_to_schemas(table)}
    assert schemas["rich_rich_size"].parameters == mesh.tool("rich.rich.size").input_schema
    assert schemas["rich_rich_size"].description == "The length of a text."
    size = table["rich_rich_size"]
    assert isinstance(size, FlowToolCall) and size(create_user_session(""), {"text": "four"}) == 4
    assert table["rich_rich_numbers"](create_user_session(""), {"count": 2}) == [0, 1]
    with pytest.raises(toolmesh.ToolExecutionError):
        table["rich_rich_fails"](create_user_session(""), {"account": "a"})


def test_lanes_are_those_that_tools_declare(mesh):
    found = {**by_name(mesh, "odd."), **by_name(mesh, "lab.")}
    read, reserved, nap = found["odd_read"], found["odd_reserved"], found["lab_timing_nap"]
    assert (read.parallel_safe, reserved.parallel_safe, nap.parallel_safe) == (True, False, True)
    assert read.resource_key({"path": "/a"}) == ("file", "/a")
    assert read.resource_key({}) == ("file", "<unknown>")
    assert reserved.resource_key({"config": "x"}) == ("global",)
    assert nap.resource_key({"seconds": 1}) == ("safe", "lab_timing_nap")
    dynamic = MeshToolCall(Description({"id": "a.b", "annotations": {"resource_key": "dynamic"}}))
    assert dynamic.resource_key({}) == ("global",)


class Count(FlowToolCall):
    """Counts in a lane of each name."""

    parallel_safe = True
    name = "count"
    description = "Counts words."
    parameters = {"type": "object", "properties": {"text": {"type": "string", "description": "of people"},
                                                   "name": {"type": "string"}}, "required": ["text"]}

    def resource_key(self, arguments: Mapping[str, Any]) -> tuple[str, ...]:
        return ("counter", arguments["name"])

    def __call__(self, session: Session, arguments: Mapping[str, Any]) -> Any:
        assert isinstance(session, Session)
        return len(arguments["text"].split())


class Alone(FlowToolCall):
    """One that must not run twice at a time."""

    name = "alone"
    parameters = {"type": "object", "properties": {}}

    def __init__(self) -> None:
        self.running, self.peak, self.second = 0, 0, threading.Event()

    def __call__(self, session: Session, arguments: Mapping[str, Any]) -> Any:
        self.running += 1
        self.peak = max(self.peak, self.running)
        self.second.wait(0.05)
        self.running -= 1
        return self.peak


class Safe(Alone):
    """One that may run beside others, and by OpenRath's contract not beside itself."""

    parallel_safe = True
    name = "safe"


def test_openraths_tools_in_the_mesh(mesh, node):
    with host(Count(), Alone(), Safe(), FlowToolFilesRead(), index="flow", **node):
        told = mesh.tool("flow.count")
        assert told.input_schema == Count.parameters and told.description == "Counts words."
        assert told.annotations["parallel_safe"] is True and told.annotations["resource_key"] == "dynamic"
        assert mesh.call("flow.count", {"text": "a b c"}) == 3
        with pytest.raises(toolmesh.InvalidArguments):
            mesh.call("flow.count", {"text": 3})
        assert mesh.tool("flow.alone").annotations["parallel_safe"] is False
        reads = mesh.tool(f"flow.{FlowToolFilesRead().name}").annotations
        assert (reads["parallel_safe"], reads["resource_key"]) == (True, "dynamic")
        safe = mesh.tool("flow.safe").annotations
        assert (safe["parallel_safe"], safe["resource_key"]) == (True, ["safe", "safe"]), "OpenRath's default"
        assert mesh.batch(["flow.safe"] * 3, parallel=True) == [1, 1, 1] == mesh.batch(["flow.safe"] * 3)
        found, threads = [], []
        for _ in range(4):
            threads.append(threading.Thread(target=lambda: found.append(mesh.call("flow.alone"))))
            threads[-1].start()
        for thread in threads:
            thread.join()
        assert found == [1, 1, 1, 1]
        # And back: the lane is not known here, so the loop takes OpenRath's default.
        assert by_name(mesh, "flow.")["flow_count"].resource_key({}) == ("safe", "flow_count")


class Scripted:
    """A model that says what it is told to; tools run as OpenRath's own executor runs them."""

    def __init__(self, *rounds: list) -> None:
        self.rounds = list(rounds)

    def complete(self, request: Any) -> RathLLMChatResponse:
        calls = tuple(
            RathLLMToolCallPart(str(number), "function", RathLLMToolCallFunction(name, json.dumps(given), given, False))
            for number, (name, given) in enumerate(self.rounds.pop(0) if self.rounds else ()))
        message = RathLLMAssistantMessage(content=None if calls else "done", tool_calls=calls or None)
        choice = RathLLMChatChoice(0, "tool_calls" if calls else "stop", message)
        return RathLLMChatResponse(id="r", choices=(choice,), created=0, model="scripted")

    def dispatch_tool(self, session: Session, tool: FlowToolCall, arguments: Mapping[str, Any]) -> Any:
        return tool(session, arguments)

    def tool_schemas(self) -> tuple:
        return ()


def test_openraths_loop_on_tools_of_the_mesh(mesh):
    calls = [("rich_rich_size", {"text": "four"}), ("rich_rich_fails", {"account": "a"}), ("rich_rich_size", {"text": "seven"})]
    found = run_session_loop(
        create_user_session("?"), create_system_session("You use tools."), agent_provider=Provider(model="scripted"),
        tools=tools(mesh, "rich."), executor=Scripted(calls), lazy=False)
    shown = [str(row) for row in found.chunk_table.rows]
    results = [row for row in shown if "rich_rich" in row and "tool_call_id" in row]
    assert len(results) == 3, shown
    assert "'4'" in results[0] and "Overdrawn: a lacks 7" in results[1] and "'5'" in results[2]
    assert "done" in shown[-1]


PROGRAM = """
import sys, threading
from rath.flow.tool import FlowToolCall
from toolmesh.rath import serve

class Meets(FlowToolCall):
    parallel_safe = True
    name = "meets"
    parameters = {"type": "object", "properties": {"who": {"type": "string"}}, "required": ["who"]}
    both = threading.Barrier(2)

    def resource_key(self, arguments):
        return ("person", arguments["who"])

    def __call__(self, session, arguments):
        self.both.wait(60)
        return arguments["who"], session.id

class Breaks(FlowToolCall):
    name = "breaks"
    description = "Fails."
    parameters = {"type": "object", "properties": {}}

    def __call__(self, session, arguments):
        raise LookupError("no such file")

serve(Meets(), Breaks(), index="program", servers=sys.argv[1], nkey=sys.argv[2])
print("served")
"""


@pytest.mark.timeout(300)  # a loaded machine imports OpenRath for more than a minute
def test_a_program_that_serves_openraths_tools(mesh, node):
    running = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, node["servers"], node["nkey"]], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, env={**os.environ, "PYTHONPATH": os.path.dirname(os.path.dirname(toolmesh.__file__))})
    try:
        # Asking often would take the processor from its imports.
        while len(mesh.tools("program.")) < 2 and running.poll() is None:
            time.sleep(0.2)
        meets, breaks = mesh.tool("program.meets"), mesh.tool("program.breaks")
        assert meets.annotations["parallel_safe"] is True and meets.annotations["resource_key"] == "dynamic"
        assert not breaks.annotations.get("parallel_safe") and "resource_key" not in breaks.annotations
        assert breaks.description == "Fails." and meets.input_schema["required"] == ["who"]
        found = []
        threads = [threading.Thread(target=lambda who=who: found.append(meets(who=who))) for who in ("a", "b")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(one[0] for one in found) == ["a", "b"], "they waited for each other"
        assert found[0][1] == found[1][1], "in one session of OpenRath's"
        with pytest.raises(toolmesh.ToolExecutionError, match="no such file") as raised:
            breaks()
        assert raised.value.error_type == "LookupError"
        with pytest.raises(toolmesh.InvalidArguments):
            mesh.call("program.meets", {"who": 3})
    finally:
        running.send_signal(signal.SIGTERM)
        out, err = running.communicate(timeout=60)
    assert (running.returncode, out) == (0, "served\n"), err
