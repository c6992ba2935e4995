"""What the pages show runs."""

import asyncio
import pathlib
import re

import dspy
import pytest
from dspy.utils import DummyLM

import toolmesh

PAGES = pathlib.Path(__file__).parents[3] / "docs" / "python"


def snippets(page: str) -> list:
    found = re.findall(r"```python\n(.*?)```", (PAGES / page).read_text(), re.DOTALL)
    assert found
    return found


@pytest.fixture
def here(mesh, monkeypatch):
    """Mesh() is the mesh of the tests."""
    monkeypatch.setattr(toolmesh, "Mesh", lambda: mesh, raising=False)


@pytest.mark.parametrize("code", snippets("dspy.md"))
def test_dspy(here, capsys, code):
    name = "withdraw" if "init_tool_bridge" in code else "lab_bank_withdraw"
    script = [{"next_thought": "so", "next_tool_name": name, "next_tool_args": {"account": "alice", "amount": 0}},
              {"next_thought": "so", "next_tool_name": "finish", "next_tool_args": {}},
              {"reasoning": "seen", "answer": "what the tool said"}]
    with dspy.context(lm=DummyLM(script)):
        exec(code, {})
    assert capsys.readouterr().out.endswith("what the tool said\n")


@pytest.mark.parametrize("code", snippets("frameworks.md"), ids=lambda code: re.search(r"toolmesh\.(\w+)", code)[1])
def test_frameworks(here, monkeypatch, code):
    from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
    from pydantic_ai.models.test import TestModel

    monkeypatch.setenv("ANTHROPIC_API_KEY", "none")
    model = TestModel(call_tools=["lab_bank_withdraw"]) if "pydantic_ai" in code else GenericFakeChatModel(messages=iter([]))
    names = {"model": model}
    exec(code, names)
    if "pydantic_ai" in code:
        assert "lab_bank_withdraw" in asyncio.run(names["agent"].run("?")).output


README = pathlib.Path(__file__).parents[3] / "python" / "README.md"
WEATHER = pathlib.Path(__file__).parents[3] / "examples" / "indexes" / "weather"


@pytest.mark.parametrize("code", re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL),
                         ids=lambda code: re.sub(r"\W+", "-", code.partition("\n")[0]))
def test_readme(here, rich, mesh, monkeypatch, capsys, tmp_path, code):
    rich.run("install", str(WEATHER))
    monkeypatch.setattr(toolmesh, "local", lambda: mesh, raising=False)
    if "@host.tool" in code:
        served = []
        monkeypatch.setattr(toolmesh.Host, "serve", lambda host: served.append(repr(host)))
        exec(code, {})
        assert served == ["<Host of refund>"]
        return
    monkeypatch.setenv("XDG_STATE_HOME", str(rich.folder / "state"))
    monkeypatch.chdir(README.parents[1])
    if "stores" in code:
        monkeypatch.setattr("toolmesh.stores.indexes.mesh_here", lambda: mesh)
        (tmp_path / "weather").symlink_to(WEATHER)
        monkeypatch.chdir(tmp_path)
    script = [{"next_thought": "so", "next_tool_name": "weather_forecast_today", "next_tool_args": {"city": "Oslo"}},
              {"next_thought": "so", "next_tool_name": "finish", "next_tool_args": {}},
              {"reasoning": "seen", "answer": "Oslo: cold"}]
    with dspy.context(lm=DummyLM(script)):
        exec(code, {})
    assert ("weather_forecast_today" if "langchain" in code else "Oslo: ") in capsys.readouterr().out
