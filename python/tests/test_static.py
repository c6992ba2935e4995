"""What is read from source is what the import says, or is open and says so."""

import ast
import importlib
import inspect
import json
import pathlib
import subprocess
import sys
import textwrap

import pytest

from toolmesh._worker.describing import static
from toolmesh._worker.starting import loading

HERE = pathlib.Path(__file__).parent
SAMPLES = ("samples.eager", "samples.lazy", "samples.deep", "samples.deep.models")
EXAMPLES = HERE.parent.parent / "examples" / "indexes"


def imported(name):
    """What the zygote says of a tool after its import."""
    home, _, attribute = name.rpartition(".")
    importlib.import_module(home)
    tool, reason, _ = loading.load_tool(name, home, attribute)
    assert tool is not None, reason
    made = tool.described
    return {
        "name": name, "description": made.description, "input_schema": made.input_schema,
        "output_schema": made.output_schema, "kind": tool.kind,
        "positional": [p.name for p in made.parameters if p.kind in ("positional", "normal")],
        "varargs": any(p.kind == "varargs" for p in made.parameters), "warnings": made.warnings,
    }


def functions(module):
    """The names that a module's own file gives to functions."""
    found = importlib.import_module(module)
    return sorted(
        f"{module}.{name}" for name, one in vars(found).items()
        if not name.startswith("_") and inspect.isroutine(one) and one.__module__.startswith("samples")
        and name not in ("register", "logged", "retried")
    )


@pytest.fixture(scope="module", autouse=True)
def samples():
    sys.path.insert(0, str(HERE))
    yield
    sys.path.remove(str(HERE))


@pytest.fixture(scope="module")
def catalogue():
    return static.Catalogue([str(HERE)])


def looser(static, real):
    """Whether a schema refuses nothing that another takes, as far as reading makes it so: by being open."""
    if static in ({}, True) or static == real:
        return True
    if isinstance(static, dict) and isinstance(real, dict):
        members = real.get("anyOf", [{key: one for key, one in real.items() if key != "default"}])
        if all(one in static.get("anyOf", []) for one in members):
            return True  # a default that is not known may be None
        return all(
            key in real and looser(one, real[key]) for key, one in static.items() if key != "properties"
        ) and all(looser(one, real["properties"][key]) for key, one in static.get("properties", {}).items())
    return False


@pytest.mark.parametrize("module", SAMPLES)
def test_source_says_what_the_import_says_or_is_open_and_warns(module, catalogue):
    names = functions(module)
    assert names
    for name in names:
        read, real = catalogue.describe(name), imported(name)
        assert read is not None, name
        if read["warnings"]:
            assert looser(read["input_schema"], real["input_schema"]), name
        else:
            assert read == real, name


def test_the_examples_are_described(monkeypatch):
    files = [path for path in EXAMPLES.glob("*/*.py") if "versions" not in path.name]
    assert files
    for path in files:
        monkeypatch.syspath_prepend(path.parent)
        found = static.Catalogue([str(path.parent)])
        tree = ast.parse(path.read_text())
        names = [one.name for one in tree.body if isinstance(one, (ast.FunctionDef, ast.AsyncFunctionDef))]
        for name in names:
            if not name.startswith("_"):
                read, real = found.describe(f"{path.stem}.{name}"), imported(f"{path.stem}.{name}")
                assert read is not None
                assert read["description"] == real["description"], path
                assert read["warnings"] or read == real, path


def described(tmp_path, source, name="index_of_ours.tool", **files):
    for file, text in {"index_of_ours.py": source, **files}.items():
        path = tmp_path / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
    return static.Catalogue([str(tmp_path)]).describe(name)


@pytest.mark.parametrize("source,wanted,warning", [
    # What is not in the source.
    ("import numpy as np\ndef tool(x: np.ndarray): ...", {}, "numpy.ndarray"),
    ("from numpy.typing import NDArray\ndef tool(x: 'NDArray'): ...", {}, "numpy.typing.NDArray"),
    ("from elsewhere import *\ndef tool(x: Thing): ...", {}, "Thing"),
    ("import numpy as np\ndef tool(x: list[np.ndarray]): ...", {}, "numpy"),
    ("import numpy as np\ndef tool(x: int | np.ndarray): ...", {}, "numpy"),
    ("import typing\nif typing.TYPE_CHECKING:\n    from collections.abc import Sequence\ndef tool(x: 'Sequence'): ...", {}, "Sequence"),
    # What is the index's own, or made by code.
    ("from enum import Enum\nclass E(Enum):\n    A = 1\ndef tool(x: E): ...", {}, "E"),
    ("X = int\ndef tool(x: X): ...", {}, "X"),
    ("int = str\ndef tool(x: int): ...", {}, "int"),
    ("def tool(x: 'int if 1 else str'): ...", {}, "if"),
    ("def tool(x: 'int['): ...", {}, "int["),
    # Defaults that only an import knows may be None.
    ("import os\ndef tool(x: str = os.environ.get('A')): ...", {"anyOf": [{"type": "string"}, {"type": "null"}]}, "default"),
    ("def tool(x: int = compute()): ...", {"anyOf": [{"type": "integer"}, {"type": "null"}]}, "compute()"),
    ("def tool(x=compute()): ...", {}, "compute()"),
])
def test_what_reading_cannot_know_is_open_and_warned_of(tmp_path, source, wanted, warning):
    found = described(tmp_path, source)
    assert found is not None
    assert found["input_schema"]["properties"]["x"] == wanted
    assert len(found["warnings"]) == 1
    assert warning in found["warnings"][0]


@pytest.mark.parametrize("source", [
    "import framework\n@framework.tool\ndef tool(x: int):\n    'Does it.'",
    "def d(f):\n    def inner(*a): return f(*a)\n    return inner\n@d\ndef tool(x: int):\n    'Does it.'",
])
def test_a_decorator_leaves_nothing_but_the_documentation(tmp_path, source):
    found = described(tmp_path, source)
    assert (found["description"], found["input_schema"], found["positional"]) == ("Does it.", {"type": "object"}, [])
    assert len(found["warnings"]) == 1 and "nothing is known of its arguments" in found["warnings"][0]


@pytest.mark.parametrize("source", [
    "from framework import tool",
    "import functools\ndef f(x): ...\ntool = functools.partial(f, 1)",
    "import sys\nif sys.platform in seldom:\n    def tool(a): ...\nelse:\n    def tool(b): ...",
])
def test_a_name_that_no_def_explains_takes_anything(tmp_path, source):
    found = described(tmp_path, source)
    assert found["input_schema"] == {"type": "object"} and len(found["warnings"]) == 1


@pytest.mark.parametrize("source", ["def other(): ...", "def tool(:", "", "class", "x = '\\0'\ndef to\0ol(): ..."])
def test_what_is_not_there_has_no_description(tmp_path, source):
    assert described(tmp_path, source) is None


def test_a_file_that_is_too_deep_or_too_large_is_left_out(tmp_path):
    deep = "x = " + "-" * 5000 + "1\ndef tool(): ..."
    assert described(tmp_path, deep) is None or described(tmp_path, deep)["name"]
    assert described(tmp_path, "#" * (3 << 20) + "\ndef tool(): ...") is None


def test_packages_with_relative_imports(tmp_path):
    found = described(tmp_path, "", "pkg.tools.tool", **{
        "pkg/__init__.py": "from .types import Size\nfrom . import types as t",
        "pkg/tools.py": "from . import Size, t\nfrom ..beyond import X\nfrom .types import inner\n"
                        "def tool(a: Size, b: t.Size, c: inner.Deep, d: X): ...",
        "pkg/types/__init__.py": "import enum\nfrom . import inner\nclass Size(enum.Enum):\n    S = 's'\n",
        "pkg/types/inner.py": "import dataclasses\n@dataclasses.dataclass\nclass Deep:\n    n: int\n",
    })
    assert found["input_schema"]["properties"] == {"a": {}, "b": {}, "c": {}, "d": {}}
    assert [one.partition(" is")[0] for one in found["warnings"]] == [
        "a: pkg.Size", "b: pkg.t.Size", "c: pkg.types.inner.Deep", "d: beyond.X"]


def test_a_function_that_is_imported_from_another_module_of_the_index(tmp_path):
    found = described(tmp_path, "from pkg import made as tool", **{
        "pkg/__init__.py": "from .inner.deep import made",
        "pkg/inner/__init__.py": "",
        "pkg/inner/deep.py": "def made(n: 'int', *, who: str = 'me'):\n    'Makes it.'\n",
    })
    assert found["name"] == "index_of_ours.tool" and found["description"] == "Makes it." and found["warnings"] == []
    assert found["input_schema"]["properties"] == {"n": {"type": "integer"}, "who": {"type": "string", "default": "me"}}


def test_what_is_nested_too_deep_costs_only_itself(tmp_path):
    found = described(tmp_path, "def tool(n: int = " + "-" * 3000 + "1): ...\ndef other(x: int): ...")
    assert found is None or found["name"]
    deep = "list[" * 90 + "int" + "]" * 90
    assert described(tmp_path, f"def tool(x: {deep}): ...")["input_schema"]["properties"]["x"]["type"] == "array"


def test_no_code_runs(tmp_path):
    # Everything that an import, an evaluation or an instance would run leaves a file.
    mark = tmp_path / "ran"
    boom = f"open({str(mark)!r}, 'w').close()"
    source = f"""
        import enum, sys, typing
        from dataclasses import dataclass, field
        {boom}
        def run(*a):
            {boom}
            return a[0] if a else None
        class Meta(type):
            def __new__(*a): {boom}
        class Base:
            def __init_subclass__(cls): {boom}
            def __class_getitem__(cls, item): {boom}
        class Kind(enum.Enum):
            A = 1
            def _missing_(self, value): {boom}
            def __set_name__(self, *a): {boom}
        @dataclass
        class Data(Base):
            x: int = run()
            y: list = field(default_factory=run)
            def __post_init__(self): {boom}
        @dataclass
        class More:
            x: "typing.Literal[run()]" = run()
            y: list = field(default_factory=run)
            z: "(lambda: run())()" = 1
        @run
        def tool(a: run(), b: "run()" = run(), c: Base[int] = None, d: Data = Data(), e: More = None, f: Kind = Kind(1),
                 g: typing.Annotated[int, run()] = 1, h: "[run() for _ in (1,)]" = f"{{run()}}", i: sys.modules["os"] = 1): ...
        def plain(a: run(), b: "run()" = run(), c: Base[int] = None, d: Data = Data(), e: More = None, f: Kind = Kind(1),
                  g: typing.Annotated[int, run()] = 1, h: "[run() for _ in (1,)]" = f"{{run()}}", i: sys.modules["os"] = 1):
            {boom}
    """
    (tmp_path / "enum.py").write_text(boom)
    (tmp_path / "dataclasses.py").write_text(boom)
    found = described(tmp_path, source, "index_of_ours.plain")
    assert described(tmp_path, source, "index_of_ours.tool")["warnings"]
    assert set(found["input_schema"]["properties"]) == set("abcdefghi")
    assert not mark.exists()


def test_the_program_writes_what_it_finds(tmp_path):
    (tmp_path / "src").mkdir()
    (tmp_path / "a.py").write_text("raise SystemExit\ndef f(x: 'int') -> str:\n    'Does it, in \\u00f6.'\n")
    (tmp_path / "src" / "b.py").write_text("import gone\nasync def g(*rest: int):\n    yield 1\n")
    worker = pathlib.Path(static.__file__).parent.parent
    code = "import sys; sys.path.insert(0, sys.argv[1]); from _worker import entry; entry.static(sys.argv[2], sys.argv[3:])"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code, str(worker.parent), str(tmp_path), "a.f", "a.no", "no.f", "b.g", "f"],
        capture_output=True, timeout=60, check=True, cwd=tmp_path,
    )
    assert done.stderr == b""
    found = json.loads(done.stdout)["tools"]
    assert [(one["name"], one["kind"], one["description"]) for one in found] == [
        ("a.f", "sync", "Does it, in \u00f6."), ("b.g", "async_generator", ""),
    ]
    assert found[1]["varargs"] is True and found[1]["input_schema"]["properties"]["rest"]["items"] == {"type": "integer"}
