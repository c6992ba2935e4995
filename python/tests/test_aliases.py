"""Parameters with aliases, held against what their functions get: whatever callers send, a function sees
no value that its parameter's own annotation refuses, and none under a name that callers must not use."""

import random
from typing import Annotated, Any

import pydantic
import pytest

from toolmesh._worker.schemas import schema, values
from toolmesh._worker.schemas.binding import Tool

NAMES = ["a", "b", "c", "self", "args", "kwargs", "_d", "class_", "é"]
ALIASES = [*NAMES, "user-id", "__class__", "$ref", "", " ", "a.b", "a/b", "~0", "\u0000"]
SENT = [0, 7, 11, -1, "x", None, True, [1], {"a": 1}, 2**70]
Small = Annotated[int, pydantic.Field(ge=0, le=10)]


def function(draw: random.Random) -> tuple[Any, list[str]]:
    """A function of up to four parameters from 0 to 10, some with aliases, that gives back what it got."""
    names = draw.sample(NAMES, draw.randint(1, 4))
    required, star = draw.randint(0, len(names)), draw.randint(0, 2 * len(names))
    parts = []
    for i, name in enumerate(names):
        if i == star:
            parts.append(draw.choice(["*", "*more: Small"]))
        alias = f", alias={draw.choice(ALIASES)!r}" if draw.random() < 0.7 else ""
        parts.append(f"{name}: Annotated[int, Field(ge=0, le=10{alias})]" + (" = 5" if i >= required else ""))
    if draw.random() < 0.5:
        parts.append(draw.choice(["**rest: Small", "**rest: Any", "**rest"]))
    space = {"Annotated": Annotated, "Any": Any, "Field": pydantic.Field, "Small": Small}
    exec(f"def f({', '.join(parts)}): return dict(locals())", space)
    return space["f"], names


@pytest.mark.parametrize("seed", range(300))
def test_no_caller_gets_past_a_parameter(seed: int) -> None:
    draw = random.Random(seed)
    made, names = function(draw)
    described = schema.signature(made)
    shown = described.input_schema["properties"]
    tool = Tool("t", made, "sync", described)
    for _ in range(40):
        given = {key: draw.choice(SENT) for key in draw.sample([*NAMES, *ALIASES], draw.randint(0, 5))}
        if draw.random() < 0.7:  # mostly what is asked for
            given.update({key: draw.randint(0, 10) for key in described.input_schema.get("required", ())})
        sent = dict(given)
        extra = [draw.choice(SENT) for _ in range(draw.randint(0, 2))] if draw.random() < 0.3 else None
        try:
            positional, keyword = tool.bind(given, extra)
        except values.Mismatch:
            continue
        try:
            got = made(*positional, **keyword)
        except TypeError:  # what a function without notes refuses itself is told by its names
            assert tool.problems(sent), sent
            continue
        for name in names:
            assert type(got[name]) is int and 0 <= got[name] <= 10, (sent, got)
        for name in set(sent) & set(names) - set(shown):
            assert got.get("rest", {}).get(name) is None, f"{name} is no name for callers: {sent} came as {got}"
