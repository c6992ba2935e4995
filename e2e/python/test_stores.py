"""toolmesh.stores on a real mesh: what the tests of stores 0.1.7 ask of it, and what it does not survive there."""

import asyncio
import importlib.util
import inspect
import json
import os
import pathlib
import re
import shutil
import subprocess
import typing
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from conftest import HERE, Started

import toolmesh
from toolmesh import Mesh, binary
from toolmesh.stores import Index, ProviderFormat
from toolmesh.stores.indexes import BaseIndex, LocalIndex, RemoteIndex

INDEXES = HERE / "indexes"
DOCS = HERE.parent.parent / "docs"


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    """A mesh on which indexes are installed with the binary that is tested."""
    with pytest.MonkeyPatch.context() as patch:
        one = Started(tmp_path_factory.mktemp("stores"))
        for name, value in one.environment.items():
            patch.setenv(name, value)
        patch.setattr(binary, "find", lambda: one.binary)
        with Mesh(one.url) as found:
            yield found
        one.kill()


@pytest.fixture(scope="module")
def shapes(mesh: Mesh) -> Index:
    return Index([INDEXES / "shapes"], mesh=mesh)


@pytest.fixture(scope="module")
def faults(mesh: Mesh) -> Index:
    return Index([str(INDEXES / "faults")], mesh=mesh)


def here() -> list[Any]:
    """The functions of the index shapes, in this process."""
    spec = importlib.util.spec_from_file_location("shapes_here", INDEXES / "shapes" / "shapes.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    functions = [one for one in vars(module).values() if inspect.isfunction(one) and one.__module__ == spec.name]
    for one in functions:
        one.__name__ = f"shapes.{one.__name__}"
    return functions


TEXT, INTEGER = {"type": "string"}, {"type": "integer"}
NULL = {"type": "null"}
OPTIONAL = {"anyOf": [TEXT, NULL]}
RED = {"type": "string", "enum": ["red", "blue"]}
AB = {"type": "string", "enum": ["a", "b"]}
ONE_TWO = {"type": "integer", "enum": [1, 2]}
NAMED = {"type": "object", "properties": {"name": TEXT}}
STRICT_NAMED = {"type": "object", "properties": {"name": {"type": ["string", "null"]}}, "required": ["name"],
                "additionalProperties": False}
ONE_TEXT = {"type": "array", "minItems": 1, "maxItems": 1, "items": TEXT}
ONE_TEXT_IN_PLACE = {"type": "array", "minItems": 1, "maxItems": 1, "prefixItems": [TEXT], "items": False}


def person(tags: Any, **more: Any) -> Any:
    fields = {"name": TEXT, "likes": RED, "hates": RED, "kind": AB, "tags": tags}
    return {"type": "object", "properties": fields, "required": list(fields), **more}


def default(value: str) -> dict[str, str]:
    return {"description": f"Default: {value}."}


def any_of(*members: Any) -> dict[str, Any]:
    return {"anyOf": list(members)}


def array(items: Any) -> dict[str, Any]:
    return {"type": "array", "items": items}


# What is declared of the parameter of each tool: for Anthropic, and for Gemini but for defaults; and for OpenAI (with
# strict, unless it says "loose"), None is as for Anthropic. What stores says otherwise is in docs/python/stores.md.
ROWS: dict[str, tuple[Any, ...]] = {
    "text": (TEXT, None),
    "integer": (INTEGER, None),
    "number": ({"type": "number"}, None),
    "truth": ({"type": "boolean"}, None),
    "text_default": ({**TEXT, "default": "test"}, {"type": ["string", "null"], **default('"test"')}),
    "bare_default": ({"default": "test"}, None, "loose"),
    "optional_default": ({**OPTIONAL, "default": "test"}, {"type": ["string", "null"], **default('"test"')}),
    "optional_none": ({**OPTIONAL, "default": None}, {"type": ["string", "null"], **default("null")}),
    "optional": (OPTIONAL, {"type": ["string", "null"]}),
    "union": (any_of(TEXT, INTEGER), None),
    "union_default": ({**any_of(TEXT, INTEGER), "default": "x"}, {**any_of(TEXT, INTEGER, NULL), **default('"x"')}),
    "literal": (AB, None),
    "literal_default": ({**AB, "default": "a"},
                        {"type": ["string", "null"], "enum": ["a", "b", None], **default('"a"')}),
    "literal_integer": (ONE_TWO, None),
    "literals": (AB, None),
    "literal_list": (array(ONE_TWO), None),
    "color": (RED, None),
    "color_default": ({**RED, "default": "red"},
                      {"type": ["string", "null"], "enum": ["red", "blue", None], **default('"red"')}),
    "level": (ONE_TWO, None),
    "mixed": ({"type": ["integer", "string"], "enum": [1, "two"]},
              any_of({"type": "integer", "enum": [1]}, {"type": "string", "enum": ["two"]})),
    "person": (person(ONE_TEXT_IN_PLACE, additionalProperties=False), person(ONE_TEXT, additionalProperties=False)),
    "loose": ({**NAMED, "additionalProperties": False}, STRICT_NAMED),
    "tree": ({"$ref": "#/$defs/Tree"}, None),
    "integers": (array(INTEGER), None),
    "nested": (array(array(INTEGER)), None),
    "people": (array({**NAMED, "additionalProperties": False}), array(STRICT_NAMED)),
    "bare_list": (array({}), None, "loose"),
    "old_list": (array({}), None, "loose"),
    "mapping": ({"type": "object", "additionalProperties": True}, "object", "loose"),
    "old_mapping": ({"type": "object", "additionalProperties": True}, "object", "loose"),
    "counts": ({"type": "object", "additionalProperties": INTEGER}, "object", "loose"),
    "one_tuple": (ONE_TEXT_IN_PLACE, ONE_TEXT),
    "pair": ({"type": "array", "prefixItems": [INTEGER, TEXT], "items": False, "minItems": 2, "maxItems": 2},
             "array", "loose"),
    "integers_tuple": (array(INTEGER), None),
    "either": (any_of({**NAMED, "additionalProperties": False}, RED), any_of(STRICT_NAMED, RED)),
    "anything": ({}, None, "loose"),
    "untyped": ({}, None, "loose"),
    "unique": ({**array(INTEGER), "uniqueItems": True}, None, "loose"),
    "described": ({**INTEGER, "description": "how many"}, None),
    "named": (INTEGER, None, "loose"),
    "positional": (INTEGER, None),
}


def for_gemini(declared: Any) -> Any:
    """In the words that Gemini documents: the default in the description, objects and arrays complete."""
    if isinstance(declared, list):
        return [for_gemini(one) for one in declared]
    if not isinstance(declared, dict):
        return declared
    shown = {key: for_gemini(one) for key, one in declared.items() if key not in ("default", "uniqueItems")}
    if "default" in declared:
        shown.update(default(json.dumps(declared["default"])))
    if shown.get("type") == "object":
        shown.setdefault("properties", {})
    if shown.get("items") is False:
        shown["items"] = {}
    return shown


def check(declared: Any, row: tuple[Any, ...], provider: ProviderFormat, local: str) -> None:
    part = declared.get("function", declared)
    dashed = f"shapes-{local}"
    if provider is ProviderFormat.ANTHROPIC:
        assert (list(declared), part["name"]) == (["name", "description", "input_schema"], dashed)
        parameters, want = part["input_schema"], row[0]
    elif provider is ProviderFormat.GOOGLE_GEMINI:
        assert (list(declared), part["name"]) == (["name", "description", "parametersJsonSchema"], f"shapes.{local}")
        parameters, want = part["parametersJsonSchema"], for_gemini(row[0])
    else:
        parameters, want = part["parameters"], row[0] if row[1] is None else row[1]
        assert (part["name"], part["strict"], declared["type"]) == (dashed, len(row) == 2, "function")
        assert list(declared) == (["type", "function"] if provider is ProviderFormat.OPENAI_CHAT else
                                  ["type", "name", "description", "parameters", "strict"])
    found = parameters["properties"]["bar"]
    if want in ("text", "array", "object"):
        want, found = {"text": "string"}.get(want, want), found["type"]
    assert found == want, (provider, local)
    optional = local.endswith(("_default", "_none"))
    strict = provider in (ProviderFormat.OPENAI_CHAT, ProviderFormat.OPENAI_RESPONSES) and len(row) == 2
    assert ("bar" in parameters.get("required", ())) is (strict or not optional)


@pytest.mark.parametrize("where", ["an index", "this process"])
@pytest.mark.parametrize("provider", list(ProviderFormat))
def test_declarations(shapes: Index, mesh: Mesh, provider: ProviderFormat, where: str) -> None:
    index = shapes if where == "an index" else Index(here(), mesh=mesh)
    declared = index.format_tools(provider.value)
    assert len(declared) == len(ROWS)
    for one, (local, row) in zip(declared, ROWS.items(), strict=True):  # in the order of the tools
        check(one, row, provider, local)
    first = declared[0].get("function", declared[0])
    assert first["description"] == "Gives back a text.\n\nIt has two paragraphs."
    assert declared[1].get("function", declared[1])["description"] == "No description available."


# What models give for the declarations, and what the tools then give.
@pytest.mark.parametrize(("name", "provider", "given", "result"), [
    ("shapes-text_default", "openai-chat-completions", {"bar": None}, "test"),
    ("shapes-literal_default", "openai-responses", {"bar": None}, "a"),
    ("shapes-color_default", "openai-chat-completions", {"bar": None}, "<Color.RED: 'red'>"),
    ("shapes-loose", "openai-chat-completions", {"bar": {"name": None}}, {}),
    ("shapes.literal_integer", "google-gemini", {"bar": "2"}, 2),
    ("shapes.literal_list", "google-gemini", {"bar": ["1", "2"]}, [1, 2]),
    ("shapes.counts", "google-gemini", {"bar": '{"a": 1}'}, {"a": 1}),
    ("shapes.either", "google-gemini", {"bar": "blue"}, "<Color.BLUE: 'blue'>"),
    ("shapes.pair", "google-gemini", {"bar": "[1, \"b\"]"}, "(1, 'b')"),
    ("shapes-text_default", "anthropic", {}, "test"),
    ("shapes-counts", "anthropic", {"bar": {"a": "1"}}, {"a": 1}),
])
def test_arguments_of_models(shapes: Index, mesh: Mesh, name: str, provider: str, given: Any, result: Any) -> None:
    for index in (shapes, Index(here(), mesh=mesh)):
        index.format_tools(provider)
        assert index.execute(name, given) == result
        assert asyncio.run(index.aexecute(name, given)) == result


@pytest.mark.parametrize(("name", "given", "result"), [
    ("text", "a", "a"), ("integer", 1.0, 1), ("number", 1, 1.0), ("truth", "false", False), ("text", 1, "1"),
    ("integers", [1.0, "2"], [1, 2]), ("one_tuple", ["a"], "('a',)"), ("pair", [1.0, 2], "(1, '2')"),
    ("optional_none", None, None), ("optional_default", None, None), ("text_default", None, "test"),
    ("bare_default", None, "test"), ("literal_integer", "1", 1), ("color", "red", "<Color.RED: 'red'>"),
    ("level", "2", "<Level.HIGH: 2>"), ("mixed", "1", "<Mixed.ONE: 1>"), ("unique", [1.0, "2"], "{1, 2}"),
    ("person", {"name": 1, "likes": "red", "hates": "blue", "kind": "a", "tags": ["x"]}, "<Color.RED: 'red'>"),
    ("tree", {"value": "1", "children": [{"value": 2, "children": []}]},
     {"value": 1, "children": [{"value": 2, "children": []}]}),
])
def test_casting(mesh: Mesh, name: str, given: Any, result: Any) -> None:
    for index in (Index([INDEXES / "shapes"], mesh=mesh), Index(here())):
        found = index.execute(f"shapes.{name}", {"bar": given})
        assert (found, type(found)) == (result, type(result))
        assert index.tools_dict[f"shapes.{name}"](bar=given) == result


@pytest.mark.parametrize(("name", "given", "place"), [
    ("color", "green", "/bar"), ("integer", "unhandled", "/bar"), ("integers", ["x"], "/bar/0"), ("text", None, "/bar"),
    ("person", {"name": "a", "likes": "green"}, "/bar/likes"), ("either", 3, "/bar"),
])
def test_misfitting_arguments_are_refused(mesh: Mesh, name: str, given: Any, place: str) -> None:
    for index in (Index([INDEXES / "shapes"], mesh=mesh), Index(here())):
        with pytest.raises(toolmesh.InvalidArguments) as raised:
            index.execute(f"shapes.{name}", {"bar": given})
        assert raised.value.details["errors"][0]["pointer"] == place


def test_tools_look_the_same_wherever_they_are(shapes: Index) -> None:
    for remote, local in zip(shapes.tools, Index(here()).tools, strict=True):
        assert remote.__name__ == local.__name__
        one, other = (inspect.signature(tool).parameters["bar"] for tool in (remote, local))
        assert one.default == other.default and remote.__doc__ == local.__doc__
    shown = inspect.signature(shapes.tools_dict["shapes.text_default"]).parameters["bar"]
    assert (shown.annotation, shown.default) == (str | None, None)
    assert shapes.tools_dict["shapes.text_default"]() == "test"
    assert shapes.tools_dict["shapes.text"].__doc__ == "Gives back a text.\n\nIt has two paragraphs."
    with pytest.raises(toolmesh.InvalidArguments, match="required|missing"):
        shapes.tools_dict["shapes.optional"]()


CALL = '```json\n{{"toolname": "faults.{}", "kwargs": {{"{}": 3}}}}\n```'


@pytest.mark.parametrize(("name", "parameter", "last", "all_of_them"), [
    ("later", "n", 3, 3), ("streams", "n", 2, [0, 1, 2]), ("floods", "size", 3, 3),
])
def test_every_kind_in_every_way(faults: Index, name: str, parameter: str, last: Any, all_of_them: Any) -> None:
    tool, given, message = f"faults.{name}", {parameter: 3}, CALL.format(name, parameter)
    chunks = all_of_them if isinstance(all_of_them, list) else [all_of_them]

    async def main() -> None:
        assert await faults.aexecute(tool, given) == last
        assert await faults.aexecute(tool, given, collect_results=True) == all_of_them
        assert [one async for one in faults.astream_execute(tool, given)] == chunks
        assert await faults.aparse_and_execute(message) == last
        assert [one async for one in faults.astream_parse_and_execute(message)] == chunks
        assert faults.execute(tool, given) == last

    asyncio.run(main())
    assert faults.execute(tool, given, collect_results=True) == all_of_them
    assert list(faults.stream_execute(tool, given)) == chunks
    assert faults.parse_and_execute(message, collect_results=True) == all_of_them
    assert list(faults.stream_parse_and_execute(message)) == chunks
    assert inspect.isgeneratorfunction(faults.tools_dict[tool]) is isinstance(all_of_them, list)


# The twelve defects of stores 0.1.7, in their order; 7 to 11 are in the tests above and below, too.


def test_1_a_tool_that_dies_is_an_error(faults: Index) -> None:
    with pytest.raises(toolmesh.WorkerCrashed):
        faults.execute("faults.killed")
    assert faults.execute("faults.shout", {"text": "a"}) == "A", "others go on, and what tools print is no answer"


def test_2_a_flood_on_stderr_blocks_nothing(faults: Index) -> None:
    assert faults.execute("faults.floods", {"size": 300_000}) == 300_000


@pytest.mark.parametrize(("how", "said"), [("sys", "SystemExit"), ("os", "4")])
def test_3_an_exit_is_reported(faults: Index, how: str, said: str) -> None:
    with pytest.raises(toolmesh.MeshError) as raised:
        faults.execute("faults.exits", {"how": how})
    assert said in str(raised.value) + json.dumps(raised.value.details)


def test_4_variables_are_added_to_what_a_tool_needs(mesh: Mesh, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch,
                                                    ) -> None:
    monkeypatch.setenv("STORES_HOST_ONLY", "not for tools")
    folder = index_of(tmp_path / "environment", {"faults.py": (INDEXES / "faults" / "faults.py").read_text()},
                      "faults.environment")
    without = Index([folder], mesh=mesh)
    assert without.execute("faults.environment", {"name": "STORES_HOST_ONLY"}) is None
    given = Index([folder], env_var={folder: {"STORES_TOKEN": "a b='c'\n"}}, mesh=mesh)
    seen = {name: given.execute("faults.environment", {"name": name})
            for name in ("STORES_TOKEN", "PATH", "HOME", "STORES_HOST_ONLY")}
    assert seen["STORES_TOKEN"] == "a b='c'\n" and seen["PATH"] and seen["HOME"] and seen["STORES_HOST_ONLY"] is None


def test_4_variables_choose_nothing_of_the_install(mesh: Mesh, tmp_path: pathlib.Path) -> None:
    """Those by which a command would find another mesh, other keys and other programs, or end."""
    folder = index_of(tmp_path / "chosen", {"faults.py": (INDEXES / "faults" / "faults.py").read_text()},
                      "faults.environment")
    theirs = {"XDG_STATE_HOME": "/nowhere", "XDG_DATA_HOME": "/nowhere", "MESH_NATS_URL": "nats://127.0.0.1:1",
              "MESH_NATS_NKEY": "/nowhere", "NATS_URL": "nats://127.0.0.1:1", "GOMEMLIMIT": "none",
              "GODEBUG": "nonsense", "GIT_DIR": "/nowhere", "SSL_CERT_FILE": "/nowhere"}
    given = Index([folder], env_var={folder: theirs}, mesh=mesh)
    assert {name: given.execute("faults.environment", {"name": name}) for name in theirs} == theirs
    for name in ("HOME", "PATH", "TMPDIR"):
        with pytest.raises(ValueError, match=f"{name} is given to every tool by its node"):
            Index([folder], env_var={folder: {name: "/nowhere"}}, mesh=mesh)


@pytest.mark.parametrize(("name", "count"), [("faults.meet", 2), ("faults.ameet", 4)])
def test_5_calls_run_at_once(faults: Index, name: str, count: int) -> None:
    """Each waits for all the others."""
    folder = pathlib.Path(f"/tmp/mesh-e2e-{uuid.uuid4().hex}")  # where tools can write, too
    folder.mkdir()
    folder.chmod(0o777)

    async def main() -> list[Any]:
        return await asyncio.gather(*[
            faults.aexecute(name, {"folder": str(folder), "name": str(one), "others": count}) for one in range(count)])

    try:
        assert asyncio.run(main()) == [count] * count
    finally:
        shutil.rmtree(folder)


def test_5_coroutines_are_called_inside_a_running_loop(faults: Index) -> None:
    async def main() -> Any:
        return faults.execute("faults.later", {"n": 1})

    assert asyncio.run(main()) == 1


def test_6_nothing_yielded_and_a_failure_in_the_middle(faults: Index) -> None:
    assert faults.execute("faults.nothing") is None and faults.execute("faults.nothing", collect_results=True) == []
    with pytest.raises(toolmesh.ToolExecutionError) as raised:
        faults.execute("faults.breaks", {"after": 2})
    assert raised.value.results == [0, 1]  # type: ignore[attr-defined]
    stream = faults.stream_execute("faults.breaks", {"after": 2})
    assert [next(stream), next(stream)] == [0, 1]


def test_7_null_is_null(shapes: Index) -> None:
    index = Index([INDEXES / "shapes"], mesh=shapes._mesh)
    assert index.execute("shapes.optional_default") == "test"
    assert index.execute("shapes.optional_default", {"bar": None}) is None


def test_8_defaults_without_json(shapes: Index) -> None:
    assert shapes.tools_dict["shapes.color_default"]() == "<Color.RED: 'red'>"


def test_9_types_that_repeat(shapes: Index) -> None:
    assert {"shapes.tree", "shapes.person"} <= set(shapes.tools_dict)


def test_10_members_of_an_enum(mesh: Mesh) -> None:
    index = Index([INDEXES / "shapes"], mesh=mesh)
    assert index.execute("shapes.color", {"bar": "blue"}) == "<Color.BLUE: 'blue'>"
    with pytest.raises(toolmesh.InvalidArguments, match='one of "red", "blue"'):
        index.execute("shapes.color", {"bar": "green"})


@pytest.mark.parametrize("name", ["faults.shou.", "[f]aults-shout", "faults.(", "faults.shout+", "shout", ""])
def test_11_names_are_no_patterns(faults: Index, name: str) -> None:
    with pytest.raises(ValueError, match="No tool matching"):
        faults.execute(name, {"text": "a"})
    assert faults.execute("faults-shout", {"text": "a"}) == "A"


def test_12_undeclared_functions_cannot_be_called(mesh: Mesh) -> None:
    folder = str(INDEXES / "faults")
    with pytest.raises(ValueError, match="serves no faults.hidden"):
        Index([folder], include={folder: ["faults.hidden"]}, mesh=mesh)


# Loading.


def index_of(folder: pathlib.Path, files: dict[str, str], *tools: str, more: str = "") -> str:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tools.toml").write_text(f"[index]\ntools = {json.dumps(tools)}\n{more}")
    for name, text in files.items():
        (folder / name).write_text(text)
    return str(folder)


def test_a_tool_that_cannot_be_loaded_takes_no_other_along(faults: Index, caplog: pytest.LogCaptureFixture) -> None:
    assert "missing.tool" not in faults.tools_dict and len(faults.tools) == 13
    Index([str(INDEXES / "faults")], mesh=faults._mesh)
    assert "missing.tool is not served" in caplog.text


def test_include_and_exclude(mesh: Mesh) -> None:
    folder = str(INDEXES / "faults")
    index = Index([folder], include={folder: ["faults.shout", "faults.later"]}, mesh=mesh)
    assert [tool.__name__ for tool in index.tools] == ["faults.shout", "faults.later"]
    index = LocalIndex(pathlib.Path(folder), create_venv=True, exclude=["faults.shout"], mesh=mesh)
    assert len(index.tools) == 12 and "faults.shout" not in index.tools_dict


def test_errors_say_where(faults: Index) -> None:
    with pytest.raises(toolmesh.ToolExecutionError) as raised:
        faults.execute("faults.divides", {"by": 0})
    assert raised.value.error_type == "ZeroDivisionError" and "faults.py" in raised.value.stacktrace
    assert faults.execute("faults.weird") == [3], "what stores could not send back"


@pytest.mark.parametrize("text", ["./nowhere", "/nowhere/at/all", "no-such-index"])
def test_missing_sources_are_refused(mesh: Mesh, text: str) -> None:
    with pytest.raises(ValueError, match="Unable to load index"):
        Index([text], mesh=mesh)


def test_folders_without_an_index(mesh: Mesh, tmp_path: pathlib.Path) -> None:
    (tmp_path / "bare").mkdir()
    other = index_of(tmp_path / "other", {})
    (pathlib.Path(other) / "tools.toml").write_text("[tools]\nname = 'of another program'\n")
    broken = index_of(tmp_path / "broken", {"a.py": "raise RuntimeError('at import')"}, "a.tool")
    for folder, said in ((str(tmp_path / "bare"), "tools.toml"), (other, "index"), (broken, "at import")):
        with pytest.raises(ValueError, match=said):
            Index([folder], mesh=mesh)


def test_a_variable_that_is_needed_at_import(mesh: Mesh, tmp_path: pathlib.Path) -> None:
    folder = index_of(
        tmp_path / "needs", {"a.py": "import os\nHERE = os.environ['PLACE']\n\ndef where() -> str:\n    return HERE\n"},
        "a.where", more="[[index.env]]\nname = 'PLACE'\nsecret = true\n")
    with pytest.raises(ValueError, match="PLACE"):
        Index([folder], mesh=mesh)
    for place in ("here", "there"):
        assert Index([folder], env_var={folder: {"PLACE": place}}, mesh=mesh).execute("a.where")
    assert Index([pathlib.Path(folder)], env_var={folder: {"PLACE": "x"}}, mesh=mesh).tools


WRITES = """import os
def where() -> str:
    return os.environ["PLACE"]
def write(text: str) -> int:
    with open(os.path.join(os.environ["PLACE"], "said"), "w") as file:
        return file.write(text)
"""


def test_folders_of_the_caller(mesh: Mesh, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch,
                               caplog: pytest.LogCaptureFixture) -> None:
    folder = index_of(tmp_path / "writes", {"a.py": WRITES}, "a.where", "a.write")
    (tmp_path / "data").mkdir()
    monkeypatch.chdir(tmp_path)
    index = Index([folder], env_var={folder: {"PLACE": "./data"}}, mesh=mesh)
    assert index.execute("a.where") == str(tmp_path / "data"), "relative to where the caller is"
    others = os.geteuid() == 0  # tools of an agent of root have users of their own
    assert ("PLACE names a folder that the tools cannot write" in caplog.text) is others
    assert not others or 'paths=["DIR:rw"]' in caplog.text
    caplog.clear()
    index = Index([folder], env_var={folder: {"PLACE": "./data"}}, paths={folder: ["data:rw"]}, mesh=mesh)
    assert "cannot write" not in caplog.text
    assert index.execute("a.write", {"text": "here"}) == 4 and (tmp_path / "data" / "said").read_text() == "here"
    with pytest.raises(ValueError, match="where it is installed"):
        Index(["served"], paths={"served": ["data"]}, mesh=mesh)


def test_a_mesh_installs_what_an_index_does(mesh: Mesh, tmp_path: pathlib.Path) -> None:
    (tmp_path / "data").mkdir()
    folder = index_of(tmp_path / "writes", {"a.py": WRITES}, "a.where", "a.write")
    tools = mesh.install(pathlib.Path(folder), name="written", env={"PLACE": str(tmp_path / "data")},
                         paths=[f"{tmp_path}/data:rw"])
    assert [one.id for one in tools] == ["written.a.where", "written.a.write"]
    assert tools[1]("here") == 4 and (tmp_path / "data" / "said").read_text() == "here"
    with pytest.raises(toolmesh.InvalidRequest):
        mesh.install(folder, name="not a name")
    with pytest.raises(toolmesh.MeshError):
        mesh.install(tmp_path / "nothing")


def test_folders_are_taken_as_they_are(mesh: Mesh, tmp_path: pathlib.Path) -> None:
    for number in range(12):
        text = f"def tool(a{number}: int = {number}) -> int:\n    \"\"\"The {number}.\"\"\"\n    return a{number}\n"
        folder = index_of(tmp_path / "changing", {"a.py": text}, "a.tool")
        index = Index([folder], mesh=mesh)
        assert index.tools[0].__doc__ == f"The {number}." and index.execute("a.tool", {f"a{number}": "7"}) == 7


@pytest.fixture
def repository(tmp_path: pathlib.Path) -> pathlib.Path:
    """One with two revisions, v1 and v2, and a branch that goes on."""
    folder = tmp_path / "pinned"
    for version in ("v1", "v2", "v3"):
        index_of(folder, {"a.py": f"def version() -> str:\n    return {version!r}\n"}, "a.version")
        git(folder, "init", "-q", "-b", "main")
        git(folder, "add", "-A")
        git(folder, "commit", "-qm", version)
        git(folder, "tag", version)
    return folder


def git(folder: pathlib.Path, *command: str) -> None:
    who = ("-c", "user.name=t", "-c", "user.email=t@example.com")
    subprocess.run(["git", "-C", str(folder), *who, *command], check=True)


def test_two_revisions_of_one_repository(mesh: Mesh, repository: pathlib.Path) -> None:
    url = f"file://{repository}"
    index = Index([f"{url}@v1", f"{url}@v2", named], mesh=mesh)
    names = [tool.__name__ for tool in index.tools]
    assert len(set(names)) == 3 and all(name.endswith(".a.version") for name in names[:2])
    assert [tool() for tool in index.tools] == ["v1", "v2", "here"]
    with pytest.raises(ValueError, match="matches multiple tools"):
        index.execute("a.version")
    declared = index.format_tools(ProviderFormat.ANTHROPIC)
    assert [index.execute(one["name"]) for one in declared] == ["v1", "v2", "here"]
    second = RemoteIndex(f"{url}@v2", mesh=mesh)
    assert second.execute("a-version") == "v2"
    # Tools of an Index are tools of others, which may call them otherwise.
    both = BaseIndex([*RemoteIndex(f"{url}@v1", mesh=mesh).tools, *second.tools])
    assert [both.execute(one["name"]) for one in both.format_tools("anthropic")] == ["v1", "v2"]
    assert [tool.__name__ for tool in second.tools] == ["a.version"] and second.execute("a.version") == "v2"


def named() -> str:
    return "here"


def test_an_installed_repository_stays(mesh: Mesh, repository: pathlib.Path) -> None:
    url = f"file://{repository}@main"
    assert Index([url], mesh=mesh).execute("a.version") == "v3"
    (repository / "a.py").write_text("def version() -> str:\n    return 'v4'\n")
    git(repository, "commit", "-qam", "v4")
    assert Index([url], mesh=mesh).execute("a.version") == "v3"
    assert Index([url], reset_cache=True, mesh=mesh).execute("a.version") == "v4"


def test_an_index_that_the_mesh_has(mesh: Mesh, faults: Index) -> None:
    installed = faults._tools[0].id.partition(".")[0]
    again = Index([installed], mesh=mesh)
    assert again.execute("faults.shout", {"text": "b"}) == "B" and len(again.tools) == 13


def test_one_tool_twice_with_a_function_of_its_name(mesh: Mesh) -> None:
    folder = str(INDEXES / "faults")

    def shout(text: str) -> str:
        return f"here: {text}"

    shout.__name__ = "faults.shout"
    index = Index([shout, folder], include={folder: ["faults.shout"]}, mesh=mesh)
    assert index.execute("faults.shout", {"text": "a"}) == "here: a"
    assert index.tools[1](text="a") == "A" and index.tools[1].__name__.endswith(".faults.shout")
    with pytest.raises(ValueError, match="Found duplicate"):
        Index([folder, folder], mesh=mesh)


def test_a_running_mesh_is_found(mesh: Mesh, monkeypatch: pytest.MonkeyPatch) -> None:
    from toolmesh.stores import _sources

    monkeypatch.setattr(_sources, "_running", [])
    monkeypatch.setenv("MESH_NATS_URL", typing.cast(str, mesh._links.settings["servers"]))
    try:
        assert Index([INDEXES / "faults"]).execute("faults.shout", {"text": "a"}) == "A"
    finally:
        for one in _sources._running:
            one.close()


def test_without_a_mesh_one_is_started(mesh: Mesh, monkeypatch: pytest.MonkeyPatch) -> None:
    from toolmesh.stores import _sources

    monkeypatch.setattr(_sources, "_running", [])
    monkeypatch.setenv("MESH_NATS_URL", "nats://127.0.0.1:1")
    monkeypatch.setattr(_sources, "local", lambda: mesh)
    assert Index([INDEXES / "faults"]).execute("faults.shout", {"text": "a"}) == "A"


def test_the_page(mesh: Mesh, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """docs/python/stores.md: files are written, programs run, one after the other."""
    from toolmesh.stores import _sources

    monkeypatch.setattr(_sources, "_running", [mesh])
    monkeypatch.chdir(tmp_path)
    page = (DOCS / "python" / "stores.md").read_text()
    names: dict[str, Any] = {}
    programs = 0
    for title, _, code in re.findall(r"(?:^`([\w/.]+)`:\n\n)?^```(\w+)\n(.*?)^```", page, re.MULTILINE | re.DOTALL):
        if title:
            (tmp_path / title).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / title).write_text(code)
        elif _ == "python":
            exec(compile(code, "stores.md", "exec"), names)
            programs += 1
    assert programs >= 4


def test_loading_does_not_ask_twice(mesh: Mesh, monkeypatch: pytest.MonkeyPatch) -> None:
    """An index that the mesh has needs no program."""
    installed = Index([INDEXES / "faults"], mesh=mesh)._tools[0].id.partition(".")[0]
    refuse: Callable[[], str] = lambda: pytest.fail("the binary was asked for")  # noqa: E731
    monkeypatch.setattr(binary, "find", refuse)
    assert Index([installed], mesh=mesh).tools
