"""Of tools that cannot be imported the source says what they are for, and nothing runs."""

import json
import pathlib
import subprocess
import sys
import textwrap

import pytest

from toolmesh._worker.describing import static


def described(tmp_path, source, name="index_of_ours.tool", **files):
    for file, text in {"index_of_ours.py": source, **files}.items():
        path = tmp_path / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
    return static.describe(str(tmp_path), name)


@pytest.mark.parametrize("source", [
    "import gone\ndef tool(x: int) -> str:\n    '''Does it.\n\n    Args:\n        x: a number\n    '''",
    "import framework\n@framework.tool\nasync def tool(x: gone.Type = gone.VALUE):\n    'Does it.'",
    "try:\n    import gone\nfinally:\n    def tool():\n        'Does it.'",
    "def tool():\n    'Not this.'\nif gone:\n    pass\nelse:\n    def tool():\n        'Does it.'",
])
def test_the_documentation_is_read(tmp_path, source):
    found = described(tmp_path, source)
    assert (found["name"], found["description"]) == ("index_of_ours.tool", "Does it.")
    assert found["input_schema"] == {"type": "object"}
    assert len(found["warnings"]) == 1 and "unknown" in found["warnings"][0]


@pytest.mark.parametrize("source", [
    "def other(): ...", "def tool(:", "", "class", "x = '\\0'\ndef to\0ol(): ...",
    "from framework import tool", "tool = 1",
    "def other():\n    def tool(): ...", "#" * (3 << 20) + "\ndef tool(): ...", f"def tool():\n    {'x' * (1 << 19)!r}",
])
def test_what_is_not_there_has_no_description(tmp_path, source):
    assert described(tmp_path, source) is None


def test_a_file_that_is_too_deep_is_left_out(tmp_path):
    deep = "x = " + "-" * 5000 + "1\ndef tool(): ..."
    assert described(tmp_path, deep) is None or described(tmp_path, deep)["name"]


def test_no_code_runs(tmp_path):
    mark = tmp_path / "ran"
    boom = f"open({str(mark)!r}, 'w').close()"
    found = described(tmp_path, f"""
        {boom}
        def tool(a: {boom}, b: "{boom}" = {boom}):
            'Does it.'
            {boom}
    """)
    assert found["description"] == "Does it."
    assert not mark.exists()


def test_the_program_writes_what_it_finds(tmp_path):
    (tmp_path / "src").mkdir()
    (tmp_path / "a.py").write_text("raise SystemExit\ndef f(x: 'int') -> str:\n    'Does it, in \\u00f6.'\n")
    (tmp_path / "src" / "b.py").write_text("import gone\nasync def g(*rest: int):\n    yield 1\n")
    worker = pathlib.Path(static.__file__).parent.parent
    code = ("import sys; sys.path.insert(0, sys.argv[1]); "
            "from _worker import entry; entry.static(sys.argv[2], sys.argv[3:])")
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code, str(worker.parent), str(tmp_path), "a.f", "a.no", "no.f", "b.g", "f"],
        capture_output=True, timeout=60, check=True, cwd=tmp_path,
    )
    assert done.stderr == b""
    found = json.loads(done.stdout)["tools"]
    assert [(one["name"], one["description"]) for one in found] == [("a.f", "Does it, in \u00f6."), ("b.g", "")]
