"""Parameters of any name, by the frameworks' own calls: see e2e/python/test_roads.py for the mesh's."""

import asyncio
import json
from collections.abc import Callable, Iterator
from typing import Any

import dspy
import pytest
from test_dspy import END

from toolmesh import Host, Mesh
from toolmesh import dspy as bridge

NAMES = [
    "proxy", "self", "timeout", "session", "args", "kwargs", "tool", "mesh", "name", "call", "function", "instance",
    "config", "callbacks", "run_manager", "context", "cls", "arguments", "value", "further", "returns", "idle", "rpc_id",
    "ctx", "fn", "call_id", "inputs", "func",
]

SOURCE = f"""
def given({', '.join(f'{one}: str = ""' for one in NAMES)}) -> dict[str, str]:
    "What it was given."
    return {{key: value for key, value in locals().items() if value}}

def items({', '.join(f'{one}: str = ""' for one in NAMES)}):
    "The same, as an item."
    yield {{key: value for key, value in locals().items() if value}}
"""


@pytest.fixture(scope="module")
def roads(mesh: Mesh, node: dict) -> Iterator[Mesh]:
    host = Host(index="roads", **node)
    made: dict[str, Any] = {}
    exec(SOURCE, made)
    for one in ("given", "items"):
        host.tool(made[one])
    with host:
        yield mesh


def by_name(tools: list, name: str) -> Any:
    (found,) = [one for one in tools if one.name == name]
    return found


def dspy_tool(mesh: Mesh, name: str = "roads_given") -> Any:
    return by_name(mesh.dspy_tools("roads."), name)


class Watch(dspy.utils.BaseCallback):
    """What dspy tells of tools; its own wrapper does more where somebody listens."""

    def __init__(self) -> None:
        self.inputs: list[Any] = []

    def on_tool_start(self, call_id: str, instance: Any, inputs: dict[str, Any]) -> None:
        self.inputs.append(inputs)


def watched(call: Callable[[], Any], given: dict[str, Any]) -> Any:
    watch = Watch()
    with dspy.context(callbacks=[watch]):
        found = call()
    assert watch.inputs == [{"kwargs": given}]
    return found


def by_react(mesh: Mesh, given: dict[str, Any]) -> Any:
    from dspy.utils import DummyLM

    agent = dspy.ReAct("question -> answer", tools=mesh.dspy_tools("roads."))
    one = {"next_thought": "so", "next_tool_name": "roads_given", "next_tool_args": json.dumps(given)}
    with dspy.context(lm=DummyLM([one, *END])):
        return agent(question="?").trajectory["observation_0"]


def by_langchain(mesh: Mesh, given: dict[str, Any], how: str) -> Any:
    from toolmesh.langchain import tools

    tool = by_name(tools(mesh, "roads."), "roads_given")
    call = {"type": "tool_call", "id": "1", "name": tool.name, "args": given}
    message = tool.invoke(call) if how == "invoke" else asyncio.run(tool.ainvoke(call))
    return message.artifact


def by_openai(mesh: Mesh, given: dict[str, Any]) -> Any:
    from toolmesh.openai_agents import tools

    tool = by_name(tools(mesh, "roads.given"), "roads-given")
    return json.loads(asyncio.run(tool.on_invoke_tool(None, json.dumps(given))))


def by_pydantic(mesh: Mesh, given: dict[str, Any]) -> Any:
    from pydantic_ai import Agent
    from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart
    from pydantic_ai.models.function import FunctionModel

    from toolmesh.pydantic_ai import tools

    seen: list[Any] = []

    def model(messages: Any, _: Any) -> ModelResponse:
        seen.append(messages[-1])
        return ModelResponse(parts=[TextPart("done") if len(seen) > 1 else ToolCallPart("roads_given", given)])

    asyncio.run(Agent(FunctionModel(model), tools=tools(mesh, "roads.")).run("?"))
    return seen[1].parts[0].content


def by_anthropic(mesh: Mesh, given: dict[str, Any], how: str) -> Any:
    from toolmesh import anthropic

    if how == "sync":
        return json.loads(by_name(anthropic.tools(mesh, "roads.given"), "roads-given").call(given))
    return json.loads(asyncio.run(by_name(anthropic.async_tools(mesh, "roads.given"), "roads-given").call(given)))


def by_rath(mesh: Mesh, given: dict[str, Any]) -> Any:
    from rath.session import create_user_session

    from toolmesh.rath import tools

    tool = by_name(tools(mesh, "roads."), "roads_given")
    assert tool.resource_key(given)
    return tool(create_user_session(""), given)


ROADS: dict[str, Callable[[Mesh, dict[str, Any]], Any]] = {
    "dspy.Tool": lambda mesh, given: dspy_tool(mesh)(**given),
    "dspy.Tool.acall": lambda mesh, given: asyncio.run(dspy_tool(mesh).acall(**given)),
    "dspy.Tool.func": lambda mesh, given: dspy_tool(mesh).func(**given),
    "dspy.Tool of a stream": lambda mesh, given: dspy_tool(mesh, "roads_items")(**given)[0],
    "dspy.Tool of a stream, acall": lambda mesh, given: asyncio.run(dspy_tool(mesh, "roads_items").acall(**given))[0],
    "dspy.Tool with a callback": lambda mesh, given: watched(lambda: dspy_tool(mesh)(**given), given),
    "dspy.Tool.acall with a callback": lambda mesh, given: watched(
        lambda: asyncio.run(dspy_tool(mesh).acall(**given)), given),
    "dspy.ReAct": by_react,
    "init_tool_bridge": lambda mesh, given: bridge.ToolBridgeManager(mesh).create_tools_from_specs(
        [{"tool_id": "roads.given", "name": "given"}])["given"](**given),
    "langchain": lambda mesh, given: by_langchain(mesh, given, "invoke"),
    "langchain, ainvoke": lambda mesh, given: by_langchain(mesh, given, "ainvoke"),
    "openai_agents": by_openai,
    "pydantic_ai": by_pydantic,
    "anthropic": lambda mesh, given: by_anthropic(mesh, given, "sync"),
    "anthropic, async": lambda mesh, given: by_anthropic(mesh, given, "async"),
    "rath": by_rath,
}


@pytest.mark.parametrize("road", ROADS)
def test_any_name(roads: Mesh, road: str) -> None:
    for one in NAMES:
        assert ROADS[road](roads, {one: "x"}) == {one: "x"}, one
