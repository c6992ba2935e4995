"""toolmesh.stores, as far as it needs no mesh: texts of models, casting, names, functions of this process."""

import asyncio
import enum
import inspect
import json
import os
import pathlib
import re
import stat
import threading
import typing
from collections.abc import AsyncIterator, Iterator
from typing import Any, List, Literal, Optional, Tuple, TypedDict, Union

import pytest

import toolmesh
from toolmesh import Mesh, binary
from toolmesh._client import models
from toolmesh.stores import Index, ProviderFormat, _sources, llm_parse_json
from toolmesh.stores._fitting import fitted
from toolmesh.stores._sources import Source
from toolmesh.stores.indexes import BaseIndex, LocalIndex, RemoteIndex

NOTHING = object()


@pytest.mark.parametrize(("text", "keys", "found"), [
    (json.dumps({"a": [1, {"b": None}]}), (), {"a": [1, {"b": None}]}),
    (json.dumps([1, "x", {}]), (), [1, "x", {}]),
    ("{}", (), {}), ("[]", (), []),
    ("Sure:\n```json\n{\"a\": 1}\n```\nand not {\"b\": [1, 2, 3, 4, 5]}", (), {"a": 1}),
    ('of [1,2] and {"a": [1,2,3,4]}', (), {"a": [1, 2, 3, 4]}),  # the larger one
    ('of {"a": 1} and [1, 2, 3, 4, 5]', (), [1, 2, 3, 4, 5]),
    ("[the manual] says {\"a\": 1}", (), {"a": 1}),
    ("{'a': 'b', 'c': [None, True, False]}", (), {"a": "b", "c": [None, True, False]}),
    ("{\"a\": \"None of it\", 'b': None}", (), {"a": "None of it", "b": None}),
    ('{"a": 1,}', (), {"a": 1}),
    ('{"a": "she said "hi" to me", "b": 1}', (), {"a": 'she said "hi" to me', "b": 1}),
    ("{'a': 'it's'", (), NOTHING), ('{"a": "```json [1] ```"}', (), {"a": "```json [1] ```"}),
    ("```json\nnothing\n``` {\"a\": 1}", (), {"a": 1}), ('{"toolname": "a.b", "kwargs": {"x": 1}', (), {
        "toolname": "a.b", "kwargs": {"x": 1}}),
    ("{'a': (1, 2), 'b': \"it's\", 'c': 'say \"x\"'}", (), {"a": [1, 2], "b": "it's", "c": 'say "x"'}),
    ('{"hell": "world"}', ["hello"], {"hello": "world"}),
    ('{"tool_name": "x", "args": {}}', ["toolname", "kwargs"], {"toolname": "x", "kwargs": {}}),
    ('{"toolname": "x", "name": "y"}', ["toolname"], {"toolname": "x", "name": "y"}),
    ('[{"hell": 1}]', ["hello"], [{"hell": 1}]),
    ("[invalid]", (), ValueError), ("[...]", (), ValueError),
    ("{invalid}", (), ValueError), ("no JSON", (), ValueError), ("", (), ValueError),
    ("[" * 50_000, (), ValueError), ("x" * 100_001, (), ValueError),
])
def test_json_of_models_is_repaired(text: str, keys: list[str], found: Any) -> None:
    pytest.importorskip("json_repair")
    if found is ValueError:
        with pytest.raises(ValueError, match="Failed to parse JSON"):
            llm_parse_json(text, keys)
    elif found is NOTHING:
        assert isinstance(llm_parse_json(text, keys), dict)  # something may be made of it
    else:
        assert llm_parse_json(text, keys=keys) == found


def test_repair_is_bounded() -> None:
    """What takes stores years: each stray quote doubles what it tries."""
    pytest.importorskip("json_repair")
    found = llm_parse_json('{"a": "' + 'say "hi" ' * 2_000 + '", "b": 1}', ["a", "b"])
    assert found["b"] == 1
    with pytest.raises(ValueError, match="Failed to parse"):
        llm_parse_json('{"a"\n' * 16_000)  # a minute and a half, if it were repaired
    with pytest.raises(toolmesh.InvalidArguments, match="too long to be repaired"):
        models.parsed('{"a"\n' * 16_000, "a.tool")
    with pytest.raises(ValueError, match="Failed to parse"):
        llm_parse_json('{"a": "she said "hi" to me"}', autoescape=False)


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Person(TypedDict):
    name: str
    age: int


class Pair(TypedDict):
    first: Color
    second: Color


class Tree(TypedDict):
    value: int
    children: "list[Tree]"


def of(annotation: Any, default: Any = inspect.Parameter.empty) -> Index:
    """An Index of one function, whose argument bar has the type, and which gives it back."""

    def tool(bar=default):
        return bar

    tool.__annotations__ = {} if annotation is None else {"bar": annotation}
    if default is inspect.Parameter.empty:
        tool.__defaults__ = None
    return Index([tool])


@pytest.mark.parametrize(("annotation", "given", "arrives"), [
    (int, 1.0, 1), (float, 1, 1.0), (str, 1, "1"), (bool, 1, True), (bool, 0, False), (bool, "false", False),
    (bool, "True", True), (int, "7", 7), (float, "2.5", 2.5), (str, 1.5, "1.5"),
    (List[int], [1.0], [1]), (list[int], ["1", 2], [1, 2]), (Tuple[int], [1.0], (1,)),
    (tuple[int, str], [1, 2], (1, "2")),
    (Person, {"name": 1, "age": "3"}, {"name": "1", "age": 3}),
    (Optional[int], 1.0, 1), (Optional[int], None, None), (Union[str, int], 1, 1), (Union[str, int], "1", "1"),
    (Union[int, str], 1.0, 1), (Literal[1, 2], "2", 2), (Literal[True, "a"], "true", True),
    (list[Literal[1, 2]], ["1"], [1]),
    (Optional[Literal[1, 2]], "1", 1), (Union[Literal["a"], Literal["b"]], "a", "a"),
    (Color, "red", Color.RED), (Optional[Color], "blue", Color.BLUE), (Color, Color.RED, Color.RED),
    (Pair, {"first": "red", "second": "blue"}, {"first": Color.RED, "second": Color.BLUE}),
    (Tree, {"value": "1", "children": [{"value": 2.0, "children": []}]},
     {"value": 1, "children": [{"value": 2, "children": []}]}),
    (dict[str, int], {"a": "1"}, {"a": 1}), (dict, {"a": "1"}, {"a": "1"}), (list, ["1"], ["1"]), (Any, "1", "1"),
    (None, "1", "1"), (List, [1], [1]),
])
def test_casting(annotation: Any, given: Any, arrives: Any) -> None:
    found = of(annotation).execute("tool", {"bar": given})
    assert (found, type(found)) == (arrives, type(arrives))
    assert repr(found) == repr(arrives)


@pytest.mark.parametrize(("annotation", "given", "place"), [
    (int, "unhandled", "/bar"), (int, 1.5, "/bar"), (int, None, "/bar"), (bool, "yes", "/bar"), (bool, 2, "/bar"),
    (str, ["a"], "/bar"), (str, None, "/bar"), (float, "nan", "/bar"), (list[int], [1, "x"], "/bar/1"),
    (list[str], "ab", "/bar"), (Person, {"name": "a", "age": "old"}, "/bar/age"), (Person, {"name": "a"}, "/bar/age"),
    (Person, {"name": "a", "age": 1, "x": 1}, "/bar/x"), (Color, "green", "/bar"), (Literal[1, 2], "3", "/bar"),
    (Optional[int], "x", "/bar"), (Union[int, bool], "x", "/bar"), (tuple[int, str], [1], ""), (int, "9" * 400, "/bar"),
])
def test_a_failed_cast_is_refused_with_its_place(annotation: Any, given: Any, place: str) -> None:
    with pytest.raises(toolmesh.InvalidArguments) as raised:
        of(annotation).execute("tool", {"bar": given})
    assert raised.value.started is False and isinstance(raised.value, ValueError)
    if place:
        assert raised.value.details["errors"][0]["pointer"] == place


def test_arguments_that_are_missing_or_unknown() -> None:
    for given in ({}, {"bar": 1, "baz": 2}, None):
        with pytest.raises(toolmesh.InvalidArguments):
            of(int).execute("tool", given)
    with pytest.raises(toolmesh.InvalidArguments):
        of(int).tools[0](1, 2)


def test_the_callers_arguments_stay_as_they_are() -> None:
    given = {"bar": {"name": 1, "age": "3"}}
    of(Person).execute("tool", given)
    assert given == {"bar": {"name": 1, "age": "3"}}


@pytest.mark.parametrize(("annotation", "default", "shown", "shown_default"), [
    (str, "test", Optional[str], None), (None, "test", Optional[str], None), (Optional[str], None, Optional[str], None),
    (Color, Color.RED, Optional[Color], None), (bool, True, Optional[bool], None),
    (Optional[str], "test", Optional[str], "test"),  # stores shows None, and makes "test" of a None that is given
])
def test_defaults(annotation: Any, default: Any, shown: Any, shown_default: Any) -> None:
    index = of(annotation, default)
    parameter = inspect.signature(index.tools[0]).parameters["bar"]
    assert (parameter.annotation, parameter.default) == (shown, shown_default)
    assert typing.get_type_hints(index.tools[0])["bar"] == shown
    for called in (lambda: index.execute("tool"), index.tools[0], lambda: index.tools[0](bar=parameter.default)):
        assert called() == default
    # Null is a value where it is one.
    assert index.execute("tool", {"bar": None}) == (None if shown_default == "test" else default)


def test_optional_without_a_default_is_required() -> None:
    index = of(Optional[str])
    assert inspect.signature(index.tools[0]).parameters["bar"].default is inspect.Parameter.empty
    with pytest.raises(toolmesh.InvalidArguments, match="required"):
        index.execute("tool")


def plain(n: int) -> int:
    """Plain."""
    return n


async def later(n: int) -> int:
    await asyncio.sleep(0)
    return n


def items(n: int) -> Iterator[int]:
    yield from range(n)
    if n > 3:
        raise KeyError(n)


async def later_items(n: int) -> AsyncIterator[int]:
    for one in items(n):
        yield one


EVERY = Index([plain, later, items, later_items])
CALL = 'I call {{"toolname": "{}", "kwargs": {{"n": 3}}}}'


async def listed(stream: AsyncIterator[Any]) -> list[Any]:
    return [one async for one in stream]


@pytest.mark.parametrize("running", [False, True])
@pytest.mark.parametrize(("name", "last", "all_of_them"), [
    ("plain", 3, 3), ("later", 3, 3), ("items", 2, [0, 1, 2]), ("later_items", 2, [0, 1, 2]),
])
def test_every_kind_in_every_way(name: str, last: Any, all_of_them: Any, running: bool) -> None:
    chunks = all_of_them if isinstance(all_of_them, list) else [all_of_them]

    def plainly() -> None:
        assert EVERY.execute(name, {"n": 3}) == last
        assert EVERY.execute(name, {"n": 3}, collect_results=True) == all_of_them
        assert list(EVERY.stream_execute(name, {"n": 3})) == chunks
        assert EVERY.parse_and_execute(CALL.format(name)) == last
        assert EVERY.parse_and_execute(CALL.format(name), collect_results=True) == all_of_them
        assert list(EVERY.stream_parse_and_execute(CALL.format(name))) == chunks

    async def main() -> None:
        assert await EVERY.aexecute(name, {"n": 3}) == last
        assert await EVERY.aexecute(name, {"n": 3}, collect_results=True) == all_of_them
        assert await listed(EVERY.astream_execute(name, {"n": 3})) == chunks
        assert await EVERY.aparse_and_execute(CALL.format(name)) == last
        assert await EVERY.aparse_and_execute(CALL.format(name), collect_results=True) == all_of_them
        assert await listed(EVERY.astream_parse_and_execute(CALL.format(name))) == chunks
        if running:
            plainly()

    if not running:
        plainly()
    asyncio.run(main())


def test_a_stream_that_is_cancelled_while_its_function_runs() -> None:
    began, go_on, ended = threading.Event(), threading.Event(), threading.Event()

    def slow() -> Iterator[int]:
        try:
            began.set()
            go_on.wait(10)
            yield 1
        finally:
            ended.set()

    async def main() -> None:
        reading = asyncio.ensure_future(listed(Index([slow]).astream_execute("slow")))
        assert await asyncio.to_thread(began.wait, 10)
        reading.cancel()
        await asyncio.wait([reading])
        go_on.set()
        assert reading.cancelled(), reading.exception()
        assert await asyncio.to_thread(ended.wait, 10)

    asyncio.run(main())


def test_kinds_are_kept() -> None:
    tools = EVERY.tools_dict
    assert inspect.iscoroutinefunction(tools["later"]) and inspect.isgeneratorfunction(tools["items"])
    assert inspect.isasyncgenfunction(tools["later_items"]) and not inspect.iscoroutinefunction(tools["plain"])
    assert (tools["plain"].__name__, tools["plain"].__doc__, tools["plain"](2)) == ("plain", "Plain.", 2)
    assert BaseIndex(EVERY.tools).execute("plain", {"n": 1}) == 1, "an index's tools are tools"
    assert asyncio.run(tools["later"](4)) == 4 and list(tools["items"](n="2")) == [0, 1]


@pytest.mark.parametrize("name", ["items", "later_items"])
def test_nothing_yielded_and_a_failure_in_the_middle(name: str) -> None:
    assert EVERY.execute(name, {"n": 0}) is None and EVERY.execute(name, {"n": 0}, True) == []
    assert asyncio.run(EVERY.aexecute(name, {"n": 0})) is None
    for call in (lambda: EVERY.execute(name, {"n": 4}), lambda: asyncio.run(EVERY.aexecute(name, {"n": 4}, True))):
        with pytest.raises(KeyError) as raised:
            call()
        assert raised.value.results == [0, 1, 2, 3]  # type: ignore[attr-defined]
    stream = EVERY.stream_execute(name, {"n": 4})
    assert [next(stream) for _ in range(4)] == [0, 1, 2, 3]
    with pytest.raises(KeyError):
        next(stream)


def test_a_stream_that_is_left_is_closed() -> None:
    closed = []

    async def endless() -> AsyncIterator[int]:
        try:
            while True:
                yield 1
        finally:
            closed.append(True)

    for _ in Index([endless]).stream_execute("endless"):
        break
    assert closed == [True]


def test_plain_functions_do_not_hold_up_the_event_loop() -> None:
    """Each waits for all the others."""
    together = threading.Barrier(4, timeout=15)

    def meet() -> int:
        return together.wait()

    index = Index([meet])

    async def main() -> list[Any]:
        return await asyncio.gather(*[index.aexecute("meet") for _ in range(4)])

    assert sorted(asyncio.run(main())) == [0, 1, 2, 3]


def test_awaiting_a_plain_function_is_another_error() -> None:
    def stops() -> None:
        raise StopIteration

    async def halts() -> None:
        raise StopIteration

    for one in (stops, halts):
        with pytest.raises(RuntimeError, match="StopIteration"):
            asyncio.run(Index([one]).aexecute(one.__name__))


def named(name: str) -> Any:
    def tool() -> str:
        return name

    tool.__name__ = name
    return tool


NAMES = Index([named(name) for name in ("u.aok", "u.b-c", "u.b.c", "foo.bar", "a(b", "x-y")])


@pytest.mark.parametrize(("asked", "found"), [
    ("foo.bar", "foo.bar"), ("foo-bar", "foo.bar"), ("u.aok", "u.aok"), ("u-aok", "u.aok"), ("u.b-c", "u.b-c"),
    ("u.b.c", "u.b.c"), ("a(b", "a(b"), ("x.y", "x-y"),
    ("u-b-c", "matches multiple"), ("u.aok+", "No tool matching"), ("[u]-aok", "No tool matching"),
    ("u.(", "No tool matching"), ("", "No tool matching"), ("aok", "No tool matching"),
    ("FOO.BAR", "No tool matching"),
])
def test_names_are_names(asked: str, found: str) -> None:
    if " " in found:
        with pytest.raises(ValueError, match=found):
            NAMES.execute(asked)
    else:
        assert NAMES.execute(asked) == found


def test_duplicates() -> None:
    with pytest.raises(ValueError, match=r"Found duplicate\(s\): \['plain'\]"):
        Index([plain, plain])


@pytest.mark.parametrize("message", [
    '{"kwargs": {}}', '{"toolname": 3}', '{"toolname": "plain", "kwargs": [1]}', "[1]", "x",
])
def test_texts_without_a_call(message: str) -> None:
    with pytest.raises(ValueError, match="Failed to parse JSON"):
        EVERY.parse_and_execute(message)


def optional(n: int = 7) -> int:
    return n


@pytest.mark.parametrize("key", ["kwargs", "arguments", "parameters", "input", "args"])
def test_arguments_in_a_text_are_taken_by_any_name(key: str) -> None:
    index = Index([optional])
    assert index.parse_and_execute(f'{{"toolname": "optional", "{key}": {{"n": 3}}}}') == 3
    assert index.parse_and_execute(json.dumps({"toolname": "optional", key: '{"n": 3}'})) == 3


@pytest.mark.parametrize("rest", [
    {"n": 3}, {"payload": {"n": 3}}, {"kwargs": {}, "arguments": {"n": 3}}, {"input": {"n": 2}, "parameters": {"n": 3}},
    {"id": 3}, {"params": {"name": "plain"}}, {"kwargs": {"n": 3}, "params": {"name": "plain"}},
    {"kwargs": {}, "function": {"name": "plain"}},
])
def test_arguments_in_a_text_are_not_dropped(rest: Any) -> None:
    """The tool ran without them."""
    with pytest.raises(ValueError, match="arguments"):
        Index([optional]).parse_and_execute(json.dumps({"toolname": "optional", **rest}))


def every(first: int, *values: int) -> int:
    return first + sum(values)


def test_further_values_by_position_and_by_name() -> None:
    index = Index([every])
    assert index.tools[0](1, 2, 3) == index.tools[0](1, values=[2, 3]) == 6


@pytest.mark.parametrize("annotation", [int, float, Literal[1, 2], Union[int, list[int]]])
def test_true_is_no_number(annotation: Any) -> None:
    with pytest.raises(toolmesh.InvalidArguments):
        of(annotation).execute("tool", {"bar": True})


def test_other_objects_are_refused_as_tools() -> None:
    with pytest.raises(TypeError, match="not int"):
        Index([3])  # type: ignore[list-item]
    assert Index().tools == [] and Index([]).tools_dict == {} and Index().format_tools("anthropic") == []
    with pytest.raises(ValueError, match="provider"):
        EVERY.format_tools("provider")
    assert [one.value for one in ProviderFormat] == [
        "anthropic", "google-gemini", "openai-chat-completions", "openai-responses"]


def test_null_in_an_object_that_may_lack_it() -> None:
    declared = {"type": "object", "properties": {
        "a": {"type": "string"}, "b": {"type": ["string", "null"]}, "c": {"$ref": "#/$defs/C"}}, "required": ["b"],
        "$defs": {"C": {"type": "object", "properties": {"d": {"type": "integer"}}}}}
    assert fitted({"a": None, "b": None, "c": {"d": None}}, declared, "t") == {"b": None, "c": {}}


@pytest.mark.parametrize(("text", "install", "rev", "index"), [
    ("owner/repo", "owner/repo", "", "owner-repo-9e1436d9"),
    ("owner/repo:v1.2", "owner/repo", "v1.2", None), ("owner/repo@v1.2", "owner/repo", "v1.2", None),
    ("owner/repo:feature/x", "owner/repo", "feature/x", None),
    ("https://example.com/a/tools.git@v2", "https://example.com/a/tools.git@v2", "", None),
    ("weather", "", "", "weather"),
])
def test_sources(text: str, install: str, rev: str, index: str | None) -> None:
    found = Source(text)
    assert (found.install, found.rev) == (install, rev)
    assert index in (None, found.index)


def test_indexes_have_names_of_their_own(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a/tools", "b/tools", "Ünsinn !"):
        (tmp_path / name).mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    texts = ["a-b/c", "a/b-c", "a/b:c", "a/b", "a/b:c-d", "a/tools", "b/tools", "Ünsinn !", "x/" + "y" * 200]
    names = {Source(text).index for text in texts}
    assert len(names) == len(texts)
    assert all(re.fullmatch("[A-Za-z0-9_-]{1,64}", name) for name in names)
    here = Source("a/tools").index
    assert here == Source(tmp_path / "a" / "tools").index == Source("./a/../a/tools").index
    repository = Source("a/b").index
    monkeypatch.setattr("platform.node", lambda: "another-machine")
    assert Source("a/tools").index != here and Source("a/b").index == repository


@pytest.fixture
def nowhere() -> Iterator[Mesh]:
    """A mesh that cannot be reached."""
    with Mesh("nats://127.0.0.1:1") as mesh:
        yield mesh


@pytest.fixture
def told(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """Where a program that stands in for mesh writes what it was called with."""
    program = tmp_path / "mesh"
    program.write_text(f"""#!/bin/sh
printf '%s\\n' "$@" > {tmp_path}/argv
env > {tmp_path}/env
cat > {tmp_path}/stdin
echo '{{"index":"x","tools":[]}}'
""")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(binary, "find", lambda: str(program))
    return tmp_path


def test_values_of_variables_are_not_on_the_command_line(told: pathlib.Path) -> None:
    (told / "index").mkdir()
    with Mesh(["nats://u:hidden@127.0.0.1:1", "nats://127.0.0.1:2"], nkey="/some/key", session="bob") as mesh:
        LocalIndex(told / "index", env_var={"TOKEN": "hidden-value"}, mesh=mesh)
    argv = (told / "argv").read_text().splitlines()
    assert argv[0] == "install" and argv[-1] == "-" and "--json" in argv
    assert "hidden" not in "".join(argv)
    seen = (told / "env").read_text().splitlines()
    assert {"MESH_NATS_URL=nats://u:hidden@127.0.0.1:1,nats://127.0.0.1:2", "MESH_SESSION=bob",
            "MESH_NATS_NKEY=/some/key"} <= set(seen)
    assert json.loads((told / "stdin").read_text()) == {
        "source": str(told / "index"), "env": {"TOKEN": "hidden-value"}}
    assert "TOKEN" not in os.environ and not any("TOKEN" in line for line in seen)


def test_variables_of_an_index_are_not_those_of_the_command(told: pathlib.Path, nowhere: Mesh) -> None:
    """They would choose its mesh, its keys and its programs, or end it."""
    theirs = {name: f"of the index: {name}" for name in (
        "HOME", "PATH", "XDG_STATE_HOME", "XDG_DATA_HOME", "MESH_NATS_URL", "MESH_NATS_NKEY", "NATS_URL", "GOMEMLIMIT",
        "LD_PRELOAD", "GIT_SSH_COMMAND", "SSL_CERT_FILE", "HTTPS_PROXY", "TMPDIR", "A=B")}
    RemoteIndex("owner/repo", theirs, mesh=nowhere)
    assert json.loads((told / "stdin").read_text())["env"] == theirs
    assert "of the index" not in (told / "env").read_text() + (told / "argv").read_text()


@pytest.mark.parametrize("source", ["https://user:hidden@host.example/o/x.git", "http://hidden@host.example/x",
                                    "HTTPS://user:hid@den@host.example"], ids=["password", "token", "odd"])
def test_a_token_in_a_source_is_in_no_command_line_name_or_error(
    told: pathlib.Path, nowhere: Mesh, caplog: pytest.LogCaptureFixture, source: str
) -> None:
    program = told / "mesh"
    answer = program.read_text()
    program.write_text(answer.replace('"tools":[]', '"tools":[],"warnings":["careful"]'))
    index = RemoteIndex(source, {"A": "b"}, mesh=nowhere)
    assert json.loads((told / "stdin").read_text())["source"] == source
    seen = (told / "argv").read_text() + (told / "env").read_text() + caplog.text + repr(index)
    assert "hid" not in seen and "careful" in caplog.text
    names = {_sources.Source(source.replace("hid", other)).index for other in ("hid", "another")}
    assert len(names) == 1, "a new token makes no new index"
    assert len({_sources.Source(f"ssh://{one}@host/x").index for one in "ab"}) == 2
    program.write_text("#!/bin/sh\necho broken >&2\nexit 3\n")
    with pytest.raises(ValueError, match="Unable to load index") as raised:
        RemoteIndex(source, {"A": "b"}, mesh=nowhere)
    assert "hid" not in str(raised.value) and "host.example" in str(raised.value)


def test_the_given_mesh_is_used(told: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MESH_NATS_CONTEXT", "another")
    monkeypatch.setenv("MESH_SESSION", "another")
    monkeypatch.setenv("NATS_URL", "another")
    monkeypatch.setenv("MESH_NATS_CREDS", "/my/creds")  # theirs count for any server, as for the client
    with Mesh("nats://127.0.0.1:1") as mesh:
        RemoteIndex("owner/repo", reset_cache=True, mesh=mesh)
    seen = (told / "env").read_text()
    assert "another" not in seen and "MESH_NATS_URL=nats://127.0.0.1:1\n" in seen
    assert "MESH_NATS_CREDS=/my/creds\n" in seen


def test_a_new_index_is_described_at_once(
    told: pathlib.Path, nowhere: Mesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A member of the mesh may be a moment late."""
    known = iter([None, "old", "new"])

    def describe(tool: str) -> dict[str, Any]:
        revision = next(known)
        if revision is None:
            raise toolmesh.ToolNotFound("tool_not_found", "not yet")
        return {"id": tool, "description": revision, "index": {"name": "x", "revision": revision}}

    monkeypatch.setattr(nowhere, "describe", describe)
    program = told / "mesh"
    program.write_text(program.read_text().replace('"tools":[]', '"revision":"new","tools":["x.a.b"]'))
    index = LocalIndex(told, mesh=nowhere)
    assert [(tool.__name__, tool.__doc__) for tool in index.tools] == [("a.b", "new")]


def test_a_pin_is_the_revision(told: pathlib.Path, nowhere: Mesh) -> None:
    RemoteIndex("owner/repo:v1", {"K": "v"}, mesh=nowhere)
    assert "--rev=v1" in (told / "argv").read_text().splitlines()
    assert json.loads((told / "stdin").read_text())["source"] == "owner/repo"


def test_sources_that_cannot_be_loaded(told: pathlib.Path, nowhere: Mesh) -> None:
    mesh = nowhere
    for wrong in (lambda: Index([told / "none"], mesh=mesh), lambda: LocalIndex(told / "none", mesh=mesh),
                  lambda: Index([str(told)], include={str(told): ["a.b"]}, mesh=mesh),
                  lambda: Index(["name"], mesh=mesh), lambda: Index(["name"], {"name": {"A": "b"}}, mesh=mesh),
                  lambda: RemoteIndex("owner/repo", {"A": 3}, mesh=mesh)):  # type: ignore[dict-item]
        with pytest.raises(ValueError, match="Unable to load index"):
            wrong()


def test_options_without_effect_are_reported() -> None:
    with pytest.warns(UserWarning, match="cache_dir has no effect"):
        Index([plain], cache_dir="x")
    with pytest.warns(UserWarning, match="sys_executable has no effect"):
        Index([plain], sys_executable="python3.12")


def test_an_alias_names_the_parameter_for_any_value() -> None:
    import pydantic

    def ask(most: typing.Annotated[Any, pydantic.Field(alias="max")] = 5) -> Any:
        return most

    index, own = Index([ask]), object()
    assert index.execute("ask", {"max": 3}) == index.execute("ask", {"most": 3}) == 3
    assert index.execute("ask", {"max": own}) is index.execute("ask", {"most": own}) is own
    for value in (3, own):
        with pytest.raises(toolmesh.InvalidArguments, match="max and most are the same argument"):
            index.execute("ask", {"max": 3, "most": value})
