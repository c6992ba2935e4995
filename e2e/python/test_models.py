"""Calls as models give them, on a mesh."""

from typing import Any

import pytest
from conftest import Started

import toolmesh
from toolmesh import Mesh


def test_models(rich: Started) -> None:
    with Mesh(rich.url) as mesh:
        for provider in ("openai", "openai-responses", "anthropic", "gemini", "mcp"):
            declared = mesh.format(provider, ["rich.rich.size"])
            name = declared[0].get("name") or declared[0]["function"]["name"]
            given = {
                "openai": {"id": "1", "type": "function", "function": {"name": name, "arguments": '{"text": "abc"}'}},
                "openai-responses": {"type": "function_call", "name": name, "arguments": '{"text":"abc"}'},
                "anthropic": {"type": "tool_use", "id": "1", "name": name, "input": {"text": "abc"}},
                "gemini": {"functionCall": {"name": name, "args": {"text": "abc"}}},
                "mcp": {"method": "tools/call", "params": {"name": name, "arguments": {"text": "abc"}}},
            }[provider]
            assert mesh.execute(given) == 3, provider
            with Mesh(rich.url) as other:  # which has declared nothing
                assert other.execute(given) == 3, provider
        with pytest.raises(toolmesh.InvalidRequest):
            mesh.execute({"arguments": {}})
        with pytest.raises(toolmesh.ToolNotFound):
            mesh.execute({"name": "nobody_knows_it", "arguments": "{}"})
        with pytest.raises(toolmesh.InvalidArguments):
            mesh.execute({"name": "rich.rich.size", "arguments": "{" + "x" * 200_000})
        with pytest.raises(toolmesh.InvalidArguments, match="more than once"):
            mesh.execute({"name": "rich.rich.size", "arguments": '{"text": "a", "text": "b"}'})


@pytest.mark.parametrize("call", [
    {"name": "rich-rich-echo", "parameters": {"value": 1}}, {"toolname": "rich.rich.echo", "kwargs": '{"value": 1}'},
    {"name": "rich-rich-echo", "arguments": {"value": 1}, "input": {"value": 1}},
])
def test_arguments_by_other_names(rich: Started, call: Any) -> None:
    with Mesh(rich.url) as mesh:
        assert mesh.execute(call) == 1


@pytest.mark.parametrize("call", [
    {"name": "rich-rich-size", "value": "abc"}, {"name": "rich-rich-size", "arguement": {"text": "abc"}},
    {"name": "rich-rich-size", "arguments": {}, "input": {"text": "abc"}},
])
def test_arguments_are_not_dropped(rich: Started, call: Any) -> None:
    with Mesh(rich.url) as mesh, pytest.raises(toolmesh.InvalidRequest, match="arguments"):
        mesh.execute(call)
