"""DSPy on the mesh: the real package, a scripted model."""

import asyncio
import copy
import json
import pathlib
import pickle
import subprocess
import sys
import threading
import time
import uuid

import dspy
import pytest
from dspy.utils import DummyLM

import toolmesh
from toolmesh import Host, Mesh
from toolmesh import dspy as bridge
from toolmesh._adapters import common, proxies
from toolmesh._adapters.dspy_tool import MeshTool
from toolmesh.remote import Description

SOURCE = pathlib.Path(toolmesh.__file__).parent.parent


def tool_of(mesh: Mesh, tool_id: str) -> MeshTool:
    (found,) = [one for one in mesh.dspy_tools(tool_id) if one._proxy.tool_id == tool_id]
    return found


def made(schema: dict, **more) -> MeshTool:
    """A tool of which only the declaration is looked at."""
    told = Description({"id": "a.b", "description": "Does.", "input_schema": schema, **more})
    return MeshTool(bridge.RPCProxyTool("a.b", "a_b", told=told))


def step(tool: str, **args) -> dict:
    return {"next_thought": "so", "next_tool_name": tool, "next_tool_args": json.dumps(args)}


END = [step("finish"), {"reasoning": "seen", "answer": "done"}]


def react(tools: list, *steps: dict, **more):
    agent = dspy.ReAct("question -> answer", tools=tools, **more)
    return agent, dspy.context(lm=DummyLM([*steps, *END]))


# ReAct, as its users have it.


def test_react_calls_tools_of_the_mesh(mesh):
    agent, context = react(mesh.dspy_tools("rich."), step("rich_rich_size", text="four"),
                           step("rich_rich_numbers", count=3), step("rich_rich_echo", value={"a": [1, None]}))
    with context:
        found = agent(question="how long?")
    assert found.answer == "done"
    assert found.trajectory["observation_0"] == 4
    assert found.trajectory["observation_1"] == (0, 1, 2)  # a list would end the run: ReAct shows those of texts alone
    assert found.trajectory["observation_2"] == {"a": [1, None]}


def test_react_calls_tools_in_a_running_loop(mesh):
    agent, context = react(mesh.dspy_tools("rich."), step("rich_rich_size", text="four"),
                           step("rich_rich_numbers", count=2), step("rich_rich_fails", account="a"))

    async def main():
        with context:
            return await agent.acall(question="how long?")

    found = asyncio.run(main())
    assert found.trajectory["observation_0"] == 4
    assert found.trajectory["observation_1"] == (0, 1)
    assert "Overdrawn: a lacks 7" in found.trajectory["observation_2"]


def test_a_model_that_errs_reads_what_to_do_and_goes_on(mesh):
    agent, context = react(mesh.dspy_tools("rich."), step("rich_rich_size", txt="four"), step("rich_rich_size", text=4),
                           step("rich_rich_size", text="four"))
    with context:
        found = agent(question="how long?")
    assert "'text' is a required property" in found.trajectory["observation_0"]
    assert "text: 4 is not of type 'string'" in found.trajectory["observation_1"]
    assert "Call it again with other arguments." in found.trajectory["observation_1"]
    assert found.trajectory["observation_2"] == 4


# The traps of dspy.Tool, by their numbers in the research.


def test_trap_1_required_follows_the_schema():
    schema = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}}, "required": ["b"]}
    tool = made(schema)
    assert tool.format_as_litellm_function_call() == {
        "type": "function", "function": {"name": "a_b", "description": "Does.", "parameters": schema}}
    assert str(tool).endswith("Required: b.")


def test_trap_2_missing_arguments_and_values_without_a_type_are_refused():
    tool = made({"type": "object", "required": ["a"], "additionalProperties": False,
                 "properties": {"a": {"anyOf": [{"type": "integer", "minimum": 3}, {"type": "null"}]}, "b": {"enum": [1]}}})
    for arguments in ({}, {"a": 1}, {"a": 3, "b": 2}, {"a": 3, "c": 1}):
        with pytest.raises(toolmesh.InvalidArguments) as caught:
            tool(**arguments)
        assert caught.value.started is False and caught.value.details["errors"]


def test_trap_3_numbers_keep_their_type(mesh):
    assert json.dumps(tool_of(mesh, "rich.rich.echo")(value=3)) == "3"
    found = tool_of(mesh, "rich.rich.defaults")(first=1, third=3)
    assert found == {"first": 1, "second": "two", "third": 3}
    assert set(tool_of(mesh, "rich.rich.defaults").arg_types.values()) == {__import__("typing").Any}


def test_trap_4_references_and_lists_of_types():
    schema = {
        "type": "object",
        "properties": {"a": {"type": ["string", "null"]}, "b": {"$ref": "#/$defs/T", "description": "the tree"},
                       "c": {"$ref": "#/definitions/x~1y"}, "d": {"type": "array", "items": {"$ref": "#/$defs/T"}}},
        "$defs": {"T": {"type": "object", "properties": {"next": {"$ref": "#/$defs/T"}}}},
        "definitions": {"x/y": {"type": "integer"}},
    }
    tool = made(schema)
    assert tool.args == {
        "a": {"type": ["string", "null"]},
        "b": {"type": "object", "properties": {"next": {}}, "description": "the tree"},
        "c": {"type": "integer"},
        "d": {"type": "array", "items": {"type": "object", "properties": {"next": {}}}},
    }
    with pytest.raises(toolmesh.InvalidArguments, match="b.next.next"):
        tool(b={"next": {"next": 1}})


def test_trap_5_a_call_in_a_running_loop(mesh):
    tool = tool_of(mesh, "rich.rich.size")

    async def main():
        during = []
        busy = asyncio.get_running_loop().create_task(asyncio.sleep(0))
        busy.add_done_callback(lambda _: during.append(True))
        assert tool(text="sync") == 4
        found = await asyncio.gather(*(tool.acall(text="x" * n) for n in range(20)))
        return found, during

    assert asyncio.run(main()) == (list(range(20)), [True])


def test_trap_6_tool_calls_that_execute_themselves(mesh):
    tools = mesh.dspy_tools("rich.")
    call = dspy.ToolCalls.ToolCall(name="rich_rich_size", args={"text": "four"})
    assert call.execute(tools) == 4
    with pytest.raises(RuntimeError, match="not of type 'string'"):
        dspy.ToolCalls.ToolCall(name="rich_rich_size", args={"text": 4}).execute(tools)


def test_trap_7_errors_are_short_and_say_what_to_do(mesh):
    agent, context = react(mesh.dspy_tools("rich."), step("rich_rich_fails", account="x" * 5000))
    with context:
        seen = agent(question="?").trajectory["observation_0"]
    said, why = seen.splitlines()
    assert said.strip() == "Execution error in rich_rich_fails:" and len(why) < 800
    assert why.startswith("toolmesh.ToolExecutionError: rich.rich.fails: tool_error: Overdrawn: xxx")
    with pytest.raises(toolmesh.ToolExecutionError) as caught:
        tool_of(mesh, "rich.rich.fails")(account="a")
    assert caught.value.code == "tool_error" and caught.value.retryable is False
    again = pickle.loads(pickle.dumps(caught.value))
    assert type(again) is toolmesh.ToolExecutionError and again.stacktrace == caught.value.stacktrace


def test_trap_8_many_calls_of_one_round(mesh):
    tools = mesh.dspy_tools("rich.")
    answers = [
        {"next_thought": "both", "tool_calls": json.dumps({"tool_calls": [
            {"name": "rich_rich_size", "args": {"text": "four"}}, {"name": "rich_rich_size", "args": {"text": "seven"}}]})},
        {"next_thought": "end", "tool_calls": json.dumps({"tool_calls": [{"name": "submit", "args": {"answer": "done"}}]})},
    ]
    agent = dspy.ReActV2("question -> answer", tools=tools)
    with dspy.context(lm=DummyLM(answers)):
        found = agent(question="how long?")
    assert found.answer == "done"
    assert "4" in str(found.history) and "5" in str(found.history)


def test_arguments_of_models_are_understood(mesh):
    numbers = tool_of(mesh, "rich.rich.numbers")
    assert numbers(Count="2", pause=None) == asyncio.run(numbers.acall(Count="2", pause=None)) == (0, 1)
    with pytest.raises(toolmesh.InvalidArguments, match="two"):
        numbers(count="two")


def test_traps_9_and_10_names():
    ids = ["finish", "submit", "a.b-c", "a.b.c", "class", "1.a", "wetter.für", "x" * 80, "weather.forecast.today"]
    names = common.names(ids)
    assert names["weather.forecast.today"] == "weather_forecast_today"
    assert len(set(names.values())) == len(ids)
    assert not {"finish", "submit", "class"} & set(names.values())
    for name in names.values():
        assert name.isidentifier() and name.isascii() and len(name) <= 64


def test_tools_as_the_mesh_has_them(mesh):
    tool = dspy.Tool(mesh.tool("rich.rich.size"))
    assert (tool.name, tool.desc, tool.args) == ("size", "The length of a text.", {"text": {"type": "string"}})
    assert tool(text="four") == 4 and tool.arg_types == {"text": str}
    agent, context = react([mesh.tool("rich.rich.size"), mesh.tool("rich.rich.defaults")], step("size", text="four"))
    with context:
        assert agent(question="how long?").trajectory["observation_0"] == 4
    with dspy.context(lm=DummyLM([step("size", text="four"), *END])):
        assert agent.deepcopy()(question="how long?").trajectory["observation_0"] == 4


def test_unsupported_uses_have_a_reason(mesh, tmp_path):
    agent = dspy.ReAct("question -> answer", tools=mesh.dspy_tools("rich."))
    with pytest.raises(RuntimeError, match="Mesh cannot be pickled or copied: it is a connection of this process"):
        agent.save(tmp_path / "program", save_program=True)
    agent.save(tmp_path / "state.json")
    agent.load(tmp_path / "state.json")
    with pytest.warns(DeprecationWarning), pytest.raises(ValueError, match="only accepts functions"):
        dspy.CodeAct("question -> answer", tools=mesh.dspy_tools("rich."))


def test_copies_of_programs_share_the_connection(mesh):
    tool = tool_of(mesh, "rich.rich.size")
    agent = dspy.ReAct("question -> answer", tools=[tool])
    other = agent.deepcopy().tools["rich_rich_size"]
    other.desc = "changed"
    other.args["text"]["description"] = "changed"
    assert tool.desc == "The length of a text." and "description" not in tool.args["text"]
    assert copy.deepcopy(tool)(text="four") == other(text="four") == 4


# What the designs of the bridge left open, by their letters in the research.


def specs(*ids: str, kind: str = "standard", **more) -> list:
    return [{"tool_id": one, "name": one.rpartition(".")[2], "type": kind, "description": "", "metadata": {}, **more}
            for one in ids]


@pytest.fixture
def manager(mesh):
    one = bridge.ToolBridgeManager(mesh)
    one.create_tools_from_specs(specs("rich.rich.size", "rich.rich.echo", "rich.rich.fails", "lab.timing.nap"))
    return one


def test_hole_a_calls_of_one_tool_at_once(manager):
    proxy, found = manager.tools["rich.rich.echo"], {}

    def one(number: int) -> None:
        found[number] = [proxy(value=[number, turn]) for turn in range(10)]

    threads = [threading.Thread(target=one, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {number: [[number, turn] for turn in range(10)] for number in range(8)}


def test_hole_b_a_late_answer_reaches_no_other_call(mesh, manager):
    late = bridge.RPCProxyTool("lab.timing.nap", mesh=mesh, timeout=0.3)
    with pytest.raises(TimeoutError):
        late(seconds=1.5)
    assert late(seconds=0) == "napped 0 s"
    assert late(0) == "napped 0 s"


def test_hole_c_an_agent_started_by_a_command_gets_its_answers(node, mesh):
    host = Host(index="agents", **node)

    @host.tool
    def command(session: str) -> dict:
        """Makes tools and an agent, and runs it, while it is itself a call."""
        told = bridge.init_tool_bridge({"session_id": session, "tools": [
            {**one, "input_schema": {"type": "object", "properties": {"text": {"type": "string"}}}}
            for one in specs("rich.rich.size")]})
        agent = bridge.create_react_agent({"signature": "question -> answer", "session_id": session})
        with dspy.context(lm=DummyLM([step("size", text="four"), *END])):
            found = bridge.agent(agent["agent_id"])(question="how long?")
        bridge.end_session(session)
        return {**told, "max_iters": agent["max_iters"], "seen": found.trajectory["observation_0"]}

    with host:
        assert mesh.call("agents.command", {"session": "s1"}, timeout=60) == {
            "session_id": "s1", "tool_count": 1, "tool_names": ["size"], "max_iters": 5, "seen": 4}


def test_hole_d_bridges_share_no_waiting_calls(mesh):
    one, other = bridge.ToolBridgeManager(mesh), bridge.ToolBridgeManager(Mesh(mesh._links.settings["servers"]))
    one.create_tools_from_specs(specs("rich.rich.size"))
    other.create_tools_from_specs(specs("rich.rich.echo"))
    with pytest.raises(ValueError, match="rich.rich.echo"):
        one.validate_tool_call("rich.rich.echo", [], {})
    assert one.tools["rich.rich.size"]("four") == 4
    assert other.tools["rich.rich.echo"]([1]) == [1]


@pytest.fixture
def mark():
    """A file that tools can write, too."""
    path = pathlib.Path(f"/tmp/mesh-e2e-{uuid.uuid4().hex}")
    yield path
    path.unlink(missing_ok=True)


def test_hole_e_an_abandoned_stream_is_cancelled(mesh, mark):
    items = bridge.StreamingRPCProxyTool("rich.rich.endless", mesh=mesh)(mark=str(mark))
    assert [next(items), next(items)] == [0, 1]
    items.close()
    wait_for(mark.exists)


def wait_for(true) -> None:
    until = time.monotonic() + 30
    while not true():
        assert time.monotonic() < until
        threading.Event().wait(0.02)


def test_hole_f_streams_have_a_limit_between_items_and_one_for_all(mesh, mark):
    slow = bridge.StreamingRPCProxyTool("rich.rich.numbers", mesh=mesh, timeout=0.5)
    items = slow(count=2, pause=30)
    assert next(items) == 0
    with pytest.raises(toolmesh.ToolTimeout) as caught:
        next(items)
    assert caught.value.details == {"limit": "idle"}
    steady = bridge.StreamingRPCProxyTool("rich.rich.endless", mesh=mesh, timeout=20)
    with pytest.raises(toolmesh.ToolTimeout) as caught, toolmesh.scope(timeout=1):
        for _ in steady(mark=str(mark), pause=0.01):
            pass
    assert caught.value.details.get("limit") != "idle"
    wait_for(mark.exists)

    async def main():
        async for _ in slow.acall(count=2, pause=30):
            pass

    with pytest.raises(toolmesh.ToolTimeout):
        asyncio.run(main())


def test_hole_g_type_and_stack_of_a_failure(mesh, manager):
    with pytest.raises(toolmesh.ToolExecutionError) as caught:
        manager.tools["rich.rich.fails"]("anna")
    assert (caught.value.error_type, caught.value.message) == ("Overdrawn", "anna lacks 7")
    assert "KeyError" in caught.value.stacktrace and caught.value.tool_name == "rich.rich.fails"


class Counted:
    """A mesh that counts."""

    def __init__(self, session: str = "default") -> None:
        self.session_name, self.calls, self.failing = session, 0, False

    def call(self, tool, arguments, timeout):
        self.calls += 1
        if self.failing:
            raise toolmesh.Busy("busy", "no place")
        return {"seen": [self.calls]}


def test_hole_h_results_are_cached():
    mesh = Counted()
    proxy = bridge.CachedRPCProxyTool("a.b", mesh=mesh, cache_ttl=300)
    first = proxy(value={"list": [1, {"deep": [2]}]}, other=1)
    assert proxy(other=1, value={"list": [1, {"deep": [2]}]}) == first and mesh.calls == 1
    first["seen"].append("changed")
    assert proxy(other=1, value={"list": [1, {"deep": [2]}]}) == {"seen": [1]}
    for other in (1.0, True, "1"):
        proxy(value={"list": [1, {"deep": [2]}]}, other=other)
    assert mesh.calls == 4  # they are equal to Python, and not to a tool
    mesh.session_name = "another"
    proxy(other=1, value={"list": [1, {"deep": [2]}]})
    assert mesh.calls == 5
    mesh.failing = True
    with pytest.raises(toolmesh.Busy):
        proxy(value="new")
    mesh.failing = False
    assert proxy(value="new") == {"seen": [7]}
    for number in range(200):
        proxy(value=number)
    assert len(proxy._kept) == 100
    assert bridge.CachedRPCProxyTool("a.b", mesh=mesh, cache_ttl=0)(value=1) != proxy(value=199)
    with pytest.raises(toolmesh.InvalidArguments):
        proxy(value=object())


def test_cached_results_expire(mesh, monkeypatch):
    counted, now = Counted(), [0.0]
    monkeypatch.setattr(proxies.time, "monotonic", lambda: now[0])
    proxy = bridge.CachedRPCProxyTool("a.b", mesh=counted, cache_ttl=300)
    proxy(value=1)
    now[0] = 299.0
    assert proxy(value=1) == {"seen": [1]}
    now[0] = 301.0
    assert proxy(value=1) == {"seen": [2]}


def test_hole_i_models_see_the_real_parameters(mesh):
    tools = bridge.ToolBridgeManager(mesh).create_tools_from_specs(specs("rich.rich.defaults"))
    assert isinstance(tools["defaults"], dspy.Tool)
    assert tools["defaults"].args["first"] == {"type": "integer", "description": "The first one."}
    assert "args" not in tools["defaults"].args and "kwargs" not in tools["defaults"].args


# The contract of the seed.


def test_the_commands_of_the_bridge(mesh):
    told = bridge.init_tool_bridge({"session_id": "default", "tools": [
        *specs("rich.rich.size"), *specs("rich.rich.numbers", kind="streaming", timeout_ms=1000),
        *specs("rich.rich.echo", cache_ttl=5)]}, mesh)
    assert told == {"session_id": "default", "tool_count": 3, "tool_names": ["size", "numbers", "echo"]}
    made = bridge.create_react_agent({"signature": "question -> answer", "session_id": "default", "max_iters": 3})
    assert made == {"agent_id": made["agent_id"], "tool_count": 3, "max_iters": 3}
    with dspy.context(lm=DummyLM([step("numbers", count=2), step("size", text="four"), *END])):
        found = bridge.agent(made["agent_id"])(question="?")
    assert (found.trajectory["observation_0"], found.trajectory["observation_1"]) == ((0, 1), 4)
    bridge.end_session("default")
    with pytest.raises(LookupError):
        bridge.agent(made["agent_id"])
    with pytest.raises(ValueError, match="init_tool_bridge"):
        bridge.create_react_agent({"signature": "question -> answer", "session_id": "default"})


@pytest.mark.parametrize("request_", [
    {"session_id": "", "tools": []}, {"tools": []}, {"session_id": "default", "tools": [{"name": "x"}]},
    {"session_id": "default", "tools": [{"tool_id": "rich.rich.size", "name": "x", "type": "other"}]},
    {"session_id": "default", "tools": [{"tool_id": "rich.rich.size", "name": "x"}, {"tool_id": "rich.rich.echo", "name": "x"}]},
    {"session_id": "default", "tools": [{"tool_id": "rich.rich.nothing", "name": "x"}]},
])
def test_invalid_specifications_are_refused(mesh, request_):
    with pytest.raises(ValueError):
        bridge.init_tool_bridge(request_, mesh)


def test_invalid_bridge_calls_are_refused(mesh, manager):
    for args, kwargs in (("text", {}), ([], []), ([], {1: 2}), (None, {})):
        with pytest.raises(TypeError):
            manager.validate_tool_call("rich.rich.size", args, kwargs)
    with pytest.raises(ValueError):
        manager.validate_tool_call("rich.rich.other", [], {})
    with pytest.raises(ValueError):
        bridge.RPCProxyTool("rich.rich.other", mesh=mesh)(text="x")
    assert manager.tools["rich.rich.size"](text="x" * 9_000_000) == 9_000_000  # by reference
    with pytest.raises(ValueError):
        manager.tools["rich.rich.size"](text="x" * (65 << 20))  # more than a worker's frame
    with pytest.raises(ValueError):
        manager.tools["rich.rich.size"]("a", "b")
    with pytest.raises(TypeError):
        bridge.init_tool_bridge({"session_id": "default", "tools": "rich.rich.size"}, mesh)


def test_a_batch_has_its_results_in_order(mesh, manager):
    requests = [{"tool_id": "rich.rich.size", "args": ["x" * n]} for n in range(40)]
    requests[7] = {"index": "seven", "tool_id": "rich.rich.fails", "kwargs": {"account": "a"}}
    found = bridge.BatchToolProcessor(manager).process_batch(requests)
    assert [one["index"] for one in found] == [*range(7), "seven", *range(8, 40)]
    failed = found.pop(7)
    assert failed["status"] == "error" and failed["error"]["type"] == "Overdrawn"
    assert "Overdrawn" in failed["error"]["stacktrace"]
    assert [one["result"] for one in found] == [*range(7), *range(8, 40)]
    with pytest.raises(ValueError):
        bridge.BatchToolProcessor(manager).process_batch([{"tool_id": "nothing"}])
    with pytest.raises(TypeError):
        bridge.BatchToolProcessor(manager).process_batch([{"tool_id": "rich.rich.size", "args": "x"}])
    assert bridge.BatchToolProcessor(manager).process_batch([]) == []


def test_a_batch_is_one_of_the_mesh(mesh, manager, monkeypatch):
    asked = []
    batch = type(mesh).batch
    monkeypatch.setattr(type(mesh), "batch", lambda self, calls, **more: asked.append(len(calls)) or batch(self, calls, **more))
    requests = [{"tool_id": "rich.rich.size", "kwargs": {"text": "x" * n}} for n in range(40)]
    assert [one["result"] for one in bridge.BatchToolProcessor(manager).process_batch(requests)] == [*range(40)]
    assert asked == [40]
    # More than one message takes: calls of their own, then.
    large = [{"tool_id": "rich.rich.size", "kwargs": {"text": "x" * 400_000}} for _ in range(4)]
    assert [one["result"] for one in bridge.BatchToolProcessor(manager).process_batch(large)] == [400_000] * 4
    assert asked == [40, 4]


def test_the_calls_of_a_batch_end_within_its_time(mesh, manager):
    naps = [{"tool_id": "lab.timing.nap", "kwargs": {"seconds": 60}} for _ in range(3)]
    with toolmesh.scope(timeout=0.5):
        found = bridge.BatchToolProcessor(manager).process_batch(naps)
    assert {one["error"]["code"] for one in found} == {"deadline_exceeded"}


def test_without_dspy_there_are_callables(rich):
    script = """
import importlib.abc, sys
class Nothing(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "dspy": raise ModuleNotFoundError("No module named 'dspy'", name="dspy")
sys.meta_path.insert(0, Nothing())
from toolmesh import Mesh, dspy
mesh = Mesh(sys.argv[1])
tools = {one.__name__: one for one in mesh.dspy_tools("rich.")}
assert tools["rich_rich_size"]("four") == 4, tools
assert list(tools["rich_rich_numbers"](2)) == [0, 1]
made = dspy.init_tool_bridge({"session_id": "default", "tools": [{"tool_id": "rich.rich.size", "name": "size"}]}, mesh)
assert made["tool_names"] == ["size"]
try:
    dspy.create_react_agent({"session_id": "default", "signature": "q -> a"})
except ImportError as failure:
    print(failure)
mesh.close()
"""
    told = subprocess.run([sys.executable, "-W", "error", "-c", script, rich.url], capture_output=True, text=True,
                          env={"PYTHONPATH": str(SOURCE), "PATH": "/usr/bin:/bin"}, timeout=60)
    assert (told.returncode, told.stderr) == (0, "") and "pip install toolmesh[dspy]" in told.stdout
