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

from toolmesh._worker import schema, static, zygote
from toolmesh._worker.shapes import Unread
from toolmesh._worker.source import Scope

HERE = pathlib.Path(__file__).parent
SAMPLES = ("samples.eager", "samples.lazy", "samples.deep", "samples.deep.models")
EXAMPLES = HERE.parent.parent / "examples" / "indexes"


def imported(name):
    """What the zygote says of a tool after its import."""
    home, _, attribute = name.rpartition(".")
    importlib.import_module(home)
    tool, reason, _ = zygote._load(name, home, attribute)
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


@pytest.mark.parametrize("module", SAMPLES)
def test_source_and_import_agree(module, catalogue):
    names = functions(module)
    assert names
    for name in names:
        assert catalogue.describe(name) == imported(name), name


def test_the_samples_are_all_compared():
    # What is decorated, aliased and imported must not fall out of the list.
    assert {"registered", "wrapped", "persistent", "cached", "overloaded", "newer", "alias", "generator"} <= {
        name.rpartition(".")[2] for name in functions("samples.eager")
    }
    assert "samples.deep.re_exported" in functions("samples.deep")


def table():
    """The annotations of test_schema's table, as they are written there."""
    tree = ast.parse((HERE / "test_schema.py").read_text())
    for one in tree.body:
        if isinstance(one, ast.Assign) and ast.unparse(one.targets[0]) == "CONFORMANCE":
            assert isinstance(one.value, ast.List)
            return [row.elts[0] for row in one.value.elts if isinstance(row, ast.Tuple)]
    raise AssertionError("test_schema has no table")


# Rows whose annotations hold what reading does not follow: an object of a class of the index's own.
NOT_READ = {"Annotated[int, Bounds(ge=1, lt=10, description='few')]", "Annotated[str, Bounds(min_length=1, pattern='^a')]",
            "Annotated[list[int], Bounds(max_length=3)]"}


def test_the_table_of_types_is_read_as_it_is_evaluated(catalogue):
    test_schema = importlib.import_module("test_schema")
    module = catalogue._library.module("test_schema")
    rows = table()
    assert len(rows) == len(test_schema.CONFORMANCE)
    for node, (annotation, _, _) in zip(rows, test_schema.CONFORMANCE, strict=True):
        text = ast.unparse(node)
        wanted = schema.Builder({})
        shape = wanted.shape(annotation, "x")
        builder = schema.Builder({})
        read = catalogue._reader.annotation(node, Scope(module))
        catalogue._reader.settle()
        found = builder.shape(read, "x")
        if text in NOT_READ:
            assert len(builder.warnings) == 1 and "not in the schema" in builder.warnings[0], text
            assert found.schema.items() <= shape.schema.items(), text
            continue
        assert builder.settled(found.schema) == wanted.settled(shape.schema), text
        assert builder.warnings == wanted.warnings, text


def test_the_examples_are_read_as_they_are_imported(monkeypatch):
    files = [path for path in EXAMPLES.glob("*/*.py") if "versions" not in path.name]
    assert files
    for path in files:
        monkeypatch.syspath_prepend(path.parent)
        found = static.Catalogue([str(path.parent)])
        tree = ast.parse(path.read_text())
        names = [one.name for one in tree.body if isinstance(one, (ast.FunctionDef, ast.AsyncFunctionDef))]
        for name in names:
            if not name.startswith("_"):
                assert found.describe(f"{path.stem}.{name}") == imported(f"{path.stem}.{name}"), path


def described(tmp_path, source, name="index_of_ours.tool", **files):
    for file, text in {"index_of_ours.py": source, **files}.items():
        path = tmp_path / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
    return static.Catalogue([str(tmp_path)]).describe(name)


@pytest.mark.parametrize("source,wanted,warning", [
    # What is not in the source.
    ("import numpy as np\ndef tool(x: np.ndarray): ...", {}, "numpy"),
    ("from numpy.typing import NDArray\ndef tool(x: 'NDArray'): ...", {}, "numpy.typing"),
    ("from pydantic import BaseModel\nclass M(BaseModel):\n    n: int\ndef tool(x: M): ...", {}, "pydantic"),
    ("from elsewhere import *\ndef tool(x: Thing): ...", {}, "Thing"),
    ("import numpy as np\ndef tool(x: list[np.ndarray]): ...", {"type": "array", "items": {}}, "numpy"),
    ("import numpy as np\ndef tool(x: int | np.ndarray): ...", {}, "numpy"),
    # What code decides.
    ("import random\nif random.random() > .5:\n    X = int\nelse:\n    X = str\ndef tool(x: X): ...", {}, "decided by its import"),
    ("X = int\nX = str\ndef tool(x: X): ...", {}, "more than one meaning"),
    ("X = make()\ndef tool(x: X): ...", {}, "make()"),
    ("for X in (int, str): pass\ndef tool(x: X): ...", {}, "code"),
    ("class M(type): ...\nclass A(metaclass=M): ...\ndef tool(x: A): ...", {}, "by code"),
    ("from enum import Enum\nclass E(Enum):\n    A = make()\ndef tool(x: E): ...", {}, "make()"),
    ("from enum import Enum\nclass E(Enum):\n    A = 1\n    def __init__(self, n): self._value_ = n * 2\ndef tool(x: E): ...", {}, "by code"),
    ("import attr\n@attr.s\nclass A:\n    n: int\ndef tool(x: A): ...", {}, "attr"),
    ("from typing import Generic, TypeVar\nT = TypeVar('T')\nclass B(Generic[T]): ...\ndef tool(x: B[int]): ...", {}, "generic"),
    ("class A:\n    @classmethod\n    def __get_pydantic_core_schema__(cls, a, b): ...\ndef tool(x: A): ...", {}, "by code"),
    ("X = X\ndef tool(x: X): ...", {}, "itself"),
    # Defaults that only an import knows may be None.
    ("import os\ndef tool(x: str = os.environ.get('A')): ...", {"anyOf": [{"type": "string"}, {"type": "null"}]}, "default"),
    ("def tool(x: int = compute()): ...", {"anyOf": [{"type": "integer"}, {"type": "null"}]}, "compute()"),
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
    "def d(f):\n    f = other(f)\n    return f\n@d\ndef tool(x: int):\n    'Does it.'",
    "def d(f, n=1):\n    if n: return f\n@d\ndef tool(x: int):\n    'Does it.'",
])
def test_an_unknown_decorator_leaves_nothing_but_the_documentation(tmp_path, source):
    found = described(tmp_path, source)
    assert (found["description"], found["input_schema"], found["positional"]) == ("Does it.", {"type": "object"}, [])
    assert len(found["warnings"]) == 1 and "nothing is known of its arguments" in found["warnings"][0]


@pytest.mark.parametrize("source", [
    "from framework import tool",
    "import functools\ndef f(x): ...\ntool = functools.partial(f, 1)",
    "import sys\nif sys.platform in seldom:\n    def tool(a): ...\nelse:\n    def tool(b): ...",
    "def f(x: int): ...\ndef tool(x: int): ...\ntool.__signature__ = f",
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


def test_pydantic_fields_and_annotated_types(tmp_path):
    found = described(tmp_path, """
        from typing import Annotated
        from annotated_types import Ge, Len, MinLen
        from pydantic import Field

        def tool(
            a: Annotated[int, Ge(1), Field(lt=10, description="few")], b: int = Field(3, ge=1),
            c: str = Field(min_length=2), d: Annotated[str, Len(1, 5)] = "x", e: list[int] = Field(default_factory=list),
            f: Annotated[bytes, MinLen(3)] = b"abc",
        ): ...
    """)
    assert found["warnings"] == []
    assert found["input_schema"]["required"] == ["a", "c"]
    assert found["input_schema"]["properties"] == {
        "a": {"type": "integer", "minimum": 1, "exclusiveMaximum": 10, "description": "few"},
        "b": {"type": "integer", "minimum": 1, "default": 3},
        "c": {"type": "string", "minLength": 2},
        "d": {"type": "string", "minLength": 1, "maxLength": 5, "default": "x"},
        "e": {"type": "array", "items": {"type": "integer"}, "default": []},
        "f": {"type": "string", "contentEncoding": "base64", "minLength": 4, "default": "YWJj"},
    }


def test_words_of_typing_extensions(tmp_path):
    found = described(tmp_path, """
        from typing_extensions import Annotated, NotRequired, Required, TypedDict

        class Movie(TypedDict, total=False):
            title: Required[str]
            year: "NotRequired[int]"
            genre: Annotated[str, "one word"]

        def tool(x: Movie): ...
    """)
    assert found["input_schema"]["properties"]["x"] == {
        "type": "object",
        "properties": {"title": {"type": "string"}, "year": {"type": "integer"},
                       "genre": {"type": "string", "description": "one word"}},
        "required": ["title"], "additionalProperties": False,
    }


def test_packages_with_relative_imports(tmp_path):
    found = described(tmp_path, "", "pkg.tools.tool", **{
        "pkg/__init__.py": "from .types import Size\nfrom . import types as t",
        "pkg/tools.py": "from . import Size, t\nfrom ..beyond import X\nfrom .types import inner\n"
                        "def tool(a: Size, b: t.Size, c: inner.Deep, d: X): ...",
        "pkg/types/__init__.py": "import enum\nfrom . import inner\nclass Size(enum.Enum):\n    S = 's'\n",
        "pkg/types/inner.py": "import dataclasses\n@dataclasses.dataclass\nclass Deep:\n    n: int\n",
    })
    properties = found["input_schema"]["properties"]
    assert properties["a"] == properties["b"] == {"type": "string", "enum": ["s"]}
    assert properties["c"]["properties"] == {"n": {"type": "integer"}}
    assert properties["d"] == {} and len(found["warnings"]) == 1


@pytest.mark.skipif(sys.version_info < (3, 12), reason="the syntax is of Python 3.12")
def test_syntax_of_3_12(tmp_path):
    found = described(tmp_path, """
        type Names = list[str]
        type Nested = list[Nested]

        def tool[T: int, U](a: Names, b: T, c: U, d: Nested): ...
    """)
    assert found["input_schema"]["properties"] == {
        "a": {"type": "array", "items": {"type": "string"}}, "b": {"type": "integer"}, "c": {},
        "d": {"type": "array", "items": {}},
    }


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
    worker = pathlib.Path(static.__file__).parent
    code = "import sys; sys.path.insert(0, sys.argv[1]); from _worker import static; static.main(sys.argv[2], sys.argv[3:])"
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


def test_what_never_ends_costs_only_itself(tmp_path):
    # Each alias doubles the one before: a schema of 2^60 members.
    doubled = "A0 = tuple[int, int]\n" + "".join(f"A{n + 1} = tuple[A{n}, A{n}]\n" for n in range(60))
    (tmp_path / "a.py").write_text(doubled + "def f(x: A60): ...\ndef g(x: A0): ...\n")
    (tmp_path / "b.py").write_text("x = " + "(" * 100000 + "\ndef f(): ...\n")
    (tmp_path / "c.py").write_text("x = " + "-" * 100000 + "1\ndef f(): ...\ndef g(n: int = " + "-" * 2000 + "1): ...\n")
    (tmp_path / "d.py").write_text("def f(x: " + "list[" * 90 + "int" + "]" * 90 + "): ...\n")
    worker = pathlib.Path(static.__file__).parent
    code = "import sys; sys.path.insert(0, sys.argv[1]); from _worker import static; static.main(sys.argv[2], sys.argv[3:])"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code, str(worker.parent), str(tmp_path), "a.f", "a.g", "b.f", "c.f", "c.g", "d.f"],
        capture_output=True, timeout=18, check=True,
    )
    assert [one["name"] for one in json.loads(done.stdout)["tools"]] == ["a.g", "d.f"]


def test_what_is_unread_has_no_text_that_could_be_evaluated(catalogue):
    module = catalogue._library.module("samples.eager")
    for text in ("'run()'", "list['Missing']", "\"'int'\"", "Optional['no such(']"):
        found = catalogue._reader.annotation(ast.parse(text, mode="eval").body, Scope(module))
        assert not isinstance(found, str)
        for part in getattr(found, "__args__", ()):
            assert isinstance(part, (Unread, type))
