"""The page for authors of tools says what the worker does."""

import json
import pathlib
import re
import typing

import pytest

from toolmesh._worker.schemas import schema
from toolmesh._worker.schemas.binding import Tool

PAGE = (pathlib.Path(__file__).resolve().parents[2] / "docs" / "tools.md").read_text(encoding="utf-8")


def rows():
    table = PAGE.split("| annotation | schema | JSON | the function gets |", 1)[1].split("\n\n", 1)[0]
    for line in table.splitlines()[2:]:
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        yield [cell.strip("`").replace("\\|", "|") for cell in cells]


@pytest.fixture(scope="module")
def example():
    source = re.search(r"```python\n(.*?)```", PAGE, re.S)
    assert source is not None
    namespace = {"__name__": "example"}
    if hasattr(typing, "NotRequired"):
        namespace["NotRequired"] = typing.NotRequired
    exec(compile(source[1], "tools.md", "exec"), namespace)
    return namespace


ROWS = list(rows())


def test_the_table_is_found():
    assert len(ROWS) >= 35


@pytest.mark.parametrize("annotation,described,sent,got", ROWS, ids=[row[0] for row in ROWS])
def test_row(example, annotation, described, sent, got):
    if "NotRequired" not in example and annotation == "Movie":
        pytest.skip("NotRequired is new in 3.11")
    if annotation.startswith("none at all"):
        text = "def function(x): return x"
    else:
        text = f"def function(x: {annotation}): return x"
    exec(text, example)
    function = example["function"]
    tool = Tool("function", function, "sync", schema.signature(function))
    assert tool.described.warnings == []
    assert tool.described.input_schema["properties"]["x"] == json.loads(described)
    positional, keyword = tool.bind({"x": json.loads(sent)})
    made = function(*positional, **keyword)
    wanted = eval(got, example)
    assert made == wanted and type(made) is type(wanted)
