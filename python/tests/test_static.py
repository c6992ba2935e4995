"""Of tools that cannot be imported the source says what they are for, and nothing runs."""

import textwrap

import pytest

from toolmesh._worker.schemas import static


def documentation(tmp_path, source, name="index_of_ours.tool"):
    (tmp_path / "index_of_ours.py").write_text(textwrap.dedent(source))
    static._module.cache_clear()
    return static.documentation([str(tmp_path), str(tmp_path / "src")], name)


@pytest.mark.parametrize("source", [
    "import gone\ndef tool(x: int) -> str:\n    '''Does it.\n\n    Args:\n        x: a number\n    '''",
    "import framework\n@framework.tool\nasync def tool(x: gone.Type = gone.VALUE):\n    'Does it.'",
    "try:\n    import gone\nfinally:\n    def tool():\n        'Does it.'",
    "def tool():\n    'Not this.'\nif gone:\n    pass\nelse:\n    def tool():\n        'Does it.'",
])
def test_the_documentation_is_read(tmp_path, source):
    assert documentation(tmp_path, source) == "Does it."


@pytest.mark.parametrize("source", [
    "def other(): ...", "def tool(:", "", "class", "x = '\\0'\ndef to\0ol(): ...",
    "from framework import tool", "tool = 1",
    "def other():\n    def tool(): 'Inner.'", "#" * (3 << 20) + "\ndef tool(): 'Does it.'",
    f"def tool():\n    {'x' * (1 << 19)!r}",
])
def test_missing_functions_have_no_documentation(tmp_path, source):
    assert documentation(tmp_path, source) == ""


def test_a_too_deep_file_affects_no_other(tmp_path):
    assert documentation(tmp_path, "x = " + "-" * 5000 + "1\ndef tool(): 'Does it.'") in ("", "Does it.")


def test_packages_and_src_are_read(tmp_path):
    for file in ("pkg/__init__.py", "src/far.py"):
        (tmp_path / file).parent.mkdir()
        (tmp_path / file).write_text("import gone\ndef tool(): 'Does it.'")
    for name in ("pkg.tool", "far.tool"):
        assert documentation(tmp_path, "", name) == "Does it."


def test_no_link_leads_out_of_the_index(tmp_path):
    inside, outside = tmp_path / "index", tmp_path / "secret.py"
    inside.mkdir()
    outside.write_text("def tool(): 'A secret.'")
    (inside / "out.py").symlink_to(outside)
    (inside / "src").symlink_to(tmp_path)
    for name in ("out.tool", "secret.tool"):
        assert documentation(inside, "", name) == ""


def test_no_code_runs(tmp_path):
    mark = tmp_path / "ran"
    boom = f"open({str(mark)!r}, 'w').close()"
    assert documentation(tmp_path, f"""
        {boom}
        def tool(a: {boom}, b: "{boom}" = {boom}):
            'Does it.'
            {boom}
    """) == "Does it."
    assert not mark.exists()
