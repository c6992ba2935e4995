"""What is told of a tool's exception."""

import json
import sys

import pytest

from toolmesh._worker.calls import errors, failures

pytestmark = pytest.mark.skipif(sys.version_info < (3, 11), reason="there are no exception groups")


def test_nested_groups_are_reported_and_bounded() -> None:
    group = getattr(__import__("builtins"), "ExceptionGroup")  # noqa: B009 - older interpreters have none
    inner = group("inner", [ValueError("deep")])
    found = json.loads(failures.raised(group("outer", [inner, KeyError("k")]), "t"))["details"]["exceptions"]
    assert [one["type"] for one in found] == ["ExceptionGroup", "KeyError"]
    assert [one["message"] for one in found[0]["exceptions"]] == ["deep"]
    for _ in range(100):
        inner = group("more", [inner] * 5)
    assert len(failures.raised(inner, "t")) < 200_000


def test_an_error_of_a_tool_may_have_other_bases_that_look_at_their_subclasses() -> None:
    class Coded:
        number = 0

        def __init_subclass__(cls, number: int = 1, **more: object) -> None:
            super().__init_subclass__(**more)
            cls.number = number

    class Mine(errors.Busy, Coded, number=7):
        pass

    assert Mine.number == 7 and errors.CLASSES["busy"] is errors.Busy
