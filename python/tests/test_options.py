"""The keywords of _options.py are those of the functions that take them, with the same types."""

import asyncio
import inspect
import typing

import pytest

from toolmesh import AsyncMesh, Host, Mesh, _options
from toolmesh._core import tasks

BESIDE = {"self", "tool", "args", "returns", "function"}


def keywords(function: typing.Callable[..., typing.Any]) -> dict[str, typing.Any]:
    """The keywords of a function by their types; what it takes by **options is not unpacked."""
    hints = typing.get_type_hints(function)
    return {name: hints[name] for name, one in inspect.signature(function).parameters.items()
            if name not in BESIDE and one.kind is not one.VAR_KEYWORD}


@pytest.mark.parametrize(("options", "functions"), [
    (_options.OfCall, [Mesh.call, Mesh.acall, AsyncMesh.call]),
    (_options.OfStream, [Mesh.stream, Mesh.astream, AsyncMesh.stream]),
    (_options.Settings, [Host.__init__]),
])
def test_options_match_the_parameters_of_functions(options: typing.Any, functions: list[typing.Any]) -> None:
    told = typing.get_type_hints(options)
    for function in functions:
        assert keywords(function) == told, function
    assert not any("returns" in one for one in (_options.OfCall.__annotations__, _options.OfStream.__annotations__))


def test_options_of_a_tool_are_the_decorators() -> None:
    told = typing.get_type_hints(_options.Options)
    told = {name: one for name, one in told.items() if name not in typing.get_type_hints(_options.Annotations)}
    assert {name: typing.Optional[one] for name, one in keywords(Host.tool).items()} == {  # noqa: UP045
        name: typing.Optional[one] for name, one in told.items()}  # noqa: UP045


def test_a_list_takes_what_a_stream_takes() -> None:
    of_list, of_stream = typing.get_type_hints(_options.OfCollect), typing.get_type_hints(_options.OfStream)
    assert of_list.keys() - of_stream.keys() == {"returns"}


def test_a_tools_own_functions_take_no_other_keywords() -> None:
    """Inside a tool, too, a submission takes what there is outside."""
    taken = set(inspect.signature(tasks.submission).parameters) - {"tool", "body", "ref"}
    assert taken == typing.get_type_hints(_options.Submission).keys()


def test_a_misspelt_option_of_a_task_is_refused_before_anything_is_sent() -> None:
    for mesh_ in (AsyncMesh("nats://127.0.0.1:1"), Mesh("nats://127.0.0.1:1")):
        submit: typing.Any = mesh_.submit if isinstance(mesh_, AsyncMesh) else mesh_.asubmit
        with pytest.raises(TypeError, match="priorty"):
            asyncio.run(submit("a.b", priorty=3))
