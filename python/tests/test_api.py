"""The public API as people and programs read it: names, hints, docstrings. Run where the frameworks are, too."""

import asyncio
import copy
import functools
import importlib
import inspect
import json
import logging
import pathlib
import pickle
import pkgutil
import re
import traceback
import types
import typing
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import toolmesh
from toolmesh import AsyncMesh, AsyncTask, Host, Mesh, RemoteTool, Task, client, dspy
from toolmesh._client import answers, results
from toolmesh._client.background import Background
from toolmesh._client.connection import Connection
from toolmesh._core import errors
from toolmesh.stores import Index, ProviderFormat, llm_parse_json

PYTHON = pathlib.Path(__file__).parent.parent
TOLD = {"id": "a.add", "description": "Adds.", "input_schema": {
    "type": "object", "properties": {"x": {"type": "integer"}, "y": {"type": "integer", "default": 1}},
    "required": ["x"]}}
FRAMEWORKS = {"anthropic", "agents", "dspy", "langchain_core", "pydantic_ai", "rath"}


def modules(package: Any) -> Iterator[str]:
    """The public modules of a package."""
    yield package.__name__
    for one in pkgutil.iter_modules(package.__path__, package.__name__ + "."):
        if one.name.rpartition(".")[2].startswith("_"):
            continue
        if one.ispkg:
            yield from modules(importlib.import_module(one.name))
        else:
            yield one.name


def ours(value: Any) -> bool:
    return str(getattr(value, "__module__", "")).startswith("toolmesh")


def public(module: Any) -> Iterator[tuple[str, Any]]:
    """The classes, methods and functions of a module that are ours, by their names."""
    names = getattr(module, "__all__", None) or [
        name for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", "") == module.__name__]
    for name in names:
        value = getattr(module, name)
        if inspect.isclass(value) and ours(value):
            yield name, value
            for klass in value.__mro__:
                for attribute, member in vars(klass).items() if ours(klass) else ():
                    member = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
                    if inspect.isfunction(member) and ours(member) and not attribute.startswith("_"):
                        yield f"{name}.{attribute}", member
                    elif inspect.isfunction(member) and ours(member) and attribute.endswith("__"):
                        yield f"{name}.{attribute}", member
        elif inspect.isfunction(value) and ours(value):
            yield name, value


@pytest.fixture(params=list(modules(toolmesh)))
def module(request: Any) -> Any:
    try:
        return importlib.import_module(request.param)
    except ModuleNotFoundError as failure:
        if failure.name and failure.name.partition(".")[0] in FRAMEWORKS:
            pytest.skip(f"{failure.name} is installed where frameworks are tested")
        raise


def test_annotations_resolve(module: Any) -> None:
    """What frameworks make of functions begins with typing.get_type_hints."""
    wrong = []
    for name, value in public(module):
        try:
            typing.get_type_hints(value)
        except NameError as failure:
            wrong.append(f"{name}: {failure}")
    assert not wrong, "\n".join(wrong)


def test_every_public_object_has_a_docstring(module: Any) -> None:
    missing = [name for name, value in public(module)
               if not inspect.getdoc(value) and not name.rpartition(".")[2].startswith("__")]
    assert not missing and module.__doc__


def test_the_package_shows_its_api() -> None:
    assert dir(toolmesh) == sorted(toolmesh.__all__) and len(set(toolmesh.__all__)) == len(toolmesh.__all__)
    assert all(getattr(toolmesh, name) is not None for name in dir(toolmesh))
    assert re.fullmatch(r"[0-9]+\.[0-9]+\.[0-9]+", toolmesh.__version__)


def test_reprs() -> None:
    host = Host(index="a")
    host.tool(test_reprs)
    shown = [repr(one) for one in (Mesh(session="s"), AsyncMesh("nats://u:password@h"), host, Index([test_reprs]),
                                   Task("t", lambda verb, request: None))]
    assert shown == ["<Mesh of session 's'>", "<AsyncMesh of session 'default'>", "<Host of test_reprs>",
                     "<Index of 1 tools>", "<Task t>"]


def test_a_refused_pickle_has_the_reason() -> None:
    mesh = Mesh()
    for one, why in ((mesh, "connection of this process"), (AsyncMesh(), "connection of this process"),
                     (RemoteTool(mesh, TOLD), "connection of this process"), (Host(), "functions are those of this"),
                     (Task("t", print), "send its id, 't'")):
        with pytest.raises(TypeError, match=why):
            pickle.dumps(one)
    assert mesh.session("s").session_name == "s"
    tool = RemoteTool(mesh, TOLD)
    assert copy.deepcopy({"tools": [tool]})["tools"][0] is tool, "programs are copied with their tools"


def test_a_tool_looks_like_its_function() -> None:
    tool = RemoteTool(Mesh(), TOLD)
    for one in (tool, tool.__call__, tool.acall):
        assert str(inspect.signature(one)) == "(x: int, y: int = 1)"
    assert typing.get_type_hints(tool.__call__) == {"x": int, "y": int}
    assert inspect.iscoroutinefunction(tool.acall) and tool.__call__.__doc__ == "Adds."


def test_the_trace_of_a_tool_is_a_note_of_its_error() -> None:
    told = {"code": "tool_error", "message": "no", "type": "KeyError", "stacktrace": 'File "tool.py", line 3'}
    failure = errors.rebuilt(told, "a.b")
    assert isinstance(failure, RuntimeError) and failure.stacktrace == told["stacktrace"]
    shown = "".join(traceback.format_exception(failure))
    assert ('In the tool: File "tool.py", line 3' in shown) is hasattr(failure, "add_note")


def test_an_error_with_fields_of_wrong_types_is_an_error() -> None:
    for told, want in (
        ({"code": "busy", "message": "m", "details": [1], "started": "no", "retryable": 1}, ("busy", "m", False)),
        ({"code": 7, "message": {}}, ("tool_error", "", False)),
        (None, ("tool_error", "from the header", False)),
    ):
        headers = {"Mesh-Error-Code": "tool_error", "Mesh-Started": "false", "Nats-Service-Error": "from the header"}
        message = types.SimpleNamespace(data=json.dumps({"error": told}).encode(), headers=headers)
        failure = answers.failed(typing.cast("Any", message))
        assert (failure.code, failure.message, failure.started) == want and failure.details == {}
    with pytest.raises(toolmesh.ProtocolError):
        results._typed(b"", None, "a.b")  # null is the text null


MESH, OTHER = Mesh("nats://127.0.0.1:1"), AsyncMesh("nats://127.0.0.1:1")
PROXY = dspy.RPCProxyTool("a.b", mesh=MESH)


def failing(verb: str, request: bytes) -> Any:
    """What a task asks with: any answer says that it has failed."""
    return {"state": "failed", "error": {"code": "tool_error", "message": "no"}, "tool": "a.b"}


async def afailing(verb: str, request: bytes) -> Any:
    return failing(verb, request)


async def anexted(items: Any) -> None:
    await anext(items)


def scoped() -> None:
    with toolmesh.scope(timeout=0):
        pass


FAILURES: dict[str, Callable[[], Any]] = {
    "a call": lambda: MESH.call("a.b"), "describe": lambda: MESH.describe("a.b"),
    "a stream": lambda: list(MESH.stream("a.b")), "a refused stream": lambda: list(MESH.stream("a.b", rpc_id=" ")),
    "astream": lambda: asyncio.run(anexted(MESH.astream("a.b", rpc_id=" "))),
    "AsyncMesh.stream": lambda: asyncio.run(anexted(OTHER.stream("a.b", rpc_id=" "))),
    "AsyncMesh.call": lambda: asyncio.run(OTHER.call("a.b")),
    "a tool": lambda: RemoteTool(MESH, TOLD)(1), "what a tool refuses": lambda: RemoteTool(MESH, TOLD)("no number"),
    "a proxy": lambda: PROXY(x=1), "arguments of a proxy": lambda: PROXY(1),
    "the result of a task": Task("t", failing).wait, "Task.result": Task("t", failing).result,
    "AsyncTask.wait": lambda: asyncio.run(AsyncTask("t", afailing).wait()),
    "a task that has no time": lambda: Task("t", failing).wait(0),
    "mesh.call": lambda: toolmesh.mesh.call("a.b"), "mesh.acall": lambda: asyncio.run(toolmesh.mesh.acall("a.b")),
    "mesh.stream": lambda: list(toolmesh.mesh.stream("a.b")), "mesh.batch": lambda: toolmesh.mesh.batch(["a.b"]),
    "mesh.submit": lambda: toolmesh.mesh.submit("a.b"), "mesh.task": lambda: toolmesh.mesh.task("t").show(),
    "mesh.secret": lambda: toolmesh.mesh.secret("NO_SUCH_VARIABLE"),
    "a file": lambda: MESH.call("a.b", {"file": toolmesh.File("/no/such/file")}),
    "no command": lambda: MESH.install("/no/such@index"),
    # Misuse.
    "no tool": lambda: MESH.call(3), "no arguments": lambda: MESH.call("a.b", 3),  # type: ignore[call-overload]
    "no text": lambda: MESH.tool(), "an unknown option": lambda: MESH.call("a.b", now=1),  # type: ignore[call-arg,call-overload]
    "no coroutine's option": lambda: asyncio.run(OTHER.call("a.b", now=1)),  # type: ignore[call-overload]
    "a timeout": lambda: MESH.call("a.b", timeout=0), "a stream's timeout": lambda: next(MESH.stream("a.b", timeout=0)),
    "a mesh's timeout": lambda: Mesh(timeout=-1), "a session": lambda: MESH.session(""), "scope": scoped,
    "a batch": lambda: MESH.batch([3]), "a task": lambda: MESH.submit("a.b", delay=-1),
    "a pickle": lambda: pickle.dumps(MESH), "slots": lambda: Host(slots=0),
    "nothing to serve": lambda: asyncio.run(Host().aserve()), "nothing to serve at all": lambda: Host().serve(),
    "a decorator": lambda: Host().tool(name="a b")(scoped), "mesh.tool": lambda: toolmesh.mesh.tool(lane="x")(scoped),  # type: ignore[call-overload]
    "no function": lambda: Host().tool(3), "an Index": lambda: Index(["/no/such/index"], mesh=MESH),  # type: ignore[call-overload]
    "a name of an Index": lambda: Index([scoped]).execute("other"), "no JSON": lambda: llm_parse_json("none"),
    "a bridge": lambda: dspy.init_tool_bridge({}), "specifications": lambda: dspy.ToolBridgeManager().
    create_tools_from_specs("no list"), "a proxy without a name": lambda: dspy.RPCProxyTool(""),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("name", FAILURES)
def test_tracebacks_are_short(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MESH_NATS_URL", "nats://127.0.0.1:1")
    monkeypatch.delenv("TOOLMESH_BINARY", raising=False)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(Exception) as raised:
        FAILURES[name]()
    frames = [one.name for one in traceback.extract_tb(raised.value.__traceback__) if "/toolmesh/" in one.filename]
    shown = "".join(traceback.format_exception(raised.value))
    assert not frames and "another exception" not in shown and "direct cause" not in shown


def test_faults_of_ours_keep_their_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Background, "run", lambda _, make: b"1")
    faults: list[tuple[Any, Any]] = [(lambda *_: {}["missing"], KeyError), (lambda *_: None + 1, TypeError)]  # type: ignore[index,operator]
    for fault, kind in faults:
        monkeypatch.setattr(client, "_typed", types.FunctionType(fault.__code__, vars(client)))
        with pytest.raises(kind) as raised:
            MESH.call("a.b")
        assert any("/toolmesh/" in one.filename for one in traceback.extract_tb(raised.value.__traceback__))


def test_errors_of_a_callers_own_code_stay_whole() -> None:
    mesh, other = Mesh("nats://127.0.0.1:1"), AsyncMesh("nats://127.0.0.1:1")

    def calls() -> Iterator[str]:
        yield "a.b"
        raise errors.error("busy", "the caller's own") from ValueError("why")

    def thrown() -> toolmesh.MeshError:
        failure = errors.error("busy", "the caller's own")
        failure.__cause__ = ValueError("why")
        return failure

    async def into_a_stream(one: typing.Any, name: str) -> None:
        async def page(_self: object) -> list[bytes]:
            return [b"1"]

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(client._Pages, "_next", page)
            items = getattr(one, name)("a.b")
            if name == "stream" and one is mesh:
                next(items)
                items.throw(thrown())
            await anext(items)
            await items.athrow(thrown())

    for run in (lambda: mesh.batch(calls()), lambda: asyncio.run(mesh.abatch(calls())),
                lambda: asyncio.run(other.batch(calls()))):
        with pytest.raises(toolmesh.MeshError) as raised:
            run()
        assert isinstance(raised.value.__cause__, ValueError)
        assert "calls" in [one.name for one in traceback.extract_tb(raised.value.__traceback__)]
    for one, name in ((mesh, "stream"), (mesh, "astream"), (other, "stream")):
        with pytest.raises(toolmesh.MeshError) as raised:
            asyncio.run(into_a_stream(one, name))
        assert isinstance(raised.value.__cause__, ValueError), (one, name)


def test_values_of_misfitting_results_stay_out_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async def warned() -> None:
        link = Connection(lambda: pytest.fail("it connects"), "", "default")
        for tool in ("a.b", "a.b", "a.c"):
            link._warn(tool, "#/n: a secret\x1b[2J\r\nis no integer")

    with caplog.at_level(logging.DEBUG, "toolmesh"):
        asyncio.run(warned())
    said = [(one.levelname, one.getMessage()) for one in caplog.records]
    once, text = "does not fit its output schema", "#/n: a secret"
    assert [level for level, _ in said] == ["WARNING", "DEBUG", "DEBUG", "WARNING", "DEBUG"], said
    assert all((once if level == "WARNING" else text) in one for level, one in said)
    assert not any(text in one for level, one in said if level == "WARNING")
    assert all(one.isprintable() for _, one in said)


def test_functions_without_a_name_get_one() -> None:
    host = Host()
    host.tool(lambda a: a)
    host.tool(lambda a: a)
    host.tool(functools.partial(lambda a, b: a, 1))
    assert len(host.tools) == 3 and all(re.fullmatch(r"tool_[0-9a-f-]{36}", one) for one in host.tools)


def test_names_of_providers() -> None:
    assert ProviderFormat("gemini") is ProviderFormat("google-gemini")
    assert ProviderFormat("openai") is ProviderFormat("openai-chat-completions")
    with pytest.raises(ValueError, match="mistral"):
        ProviderFormat("mistral")


def test_every_extra_that_a_page_names() -> None:
    declared = re.findall(r"^([\w-]+) = \[", (PYTHON / "pyproject.toml").read_text().partition(
        "[project.optional-dependencies]\n")[2].partition("\n\n")[0], re.MULTILINE)
    pages = [PYTHON / "README.md", *(PYTHON.parent / "docs").rglob("*.md"), *(PYTHON / "src").rglob("*.py")]
    named = {extra for page in pages for extra in re.findall(r"toolmesh\[([\w-]+)\]", page.read_text())}
    assert named <= set(declared) and set(declared) - named == set()
