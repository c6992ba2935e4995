"""The Shape of a value that has one of several, and which of them it has."""

from __future__ import annotations

from .shapes import Shape, load_float, load_int
from .values import Mismatch, describe

TYPE_CHECKING = False  # as typing has it, without importing typing
if TYPE_CHECKING:
    from typing import Any

    from .shapes import Dump, Load, Schema
    from .values import JSON


def either(shapes: list[Shape]) -> Shape:
    """The Shape of a value that has one of several."""
    if len(shapes) == 1:
        return shapes[0]
    members: list[Schema] = []
    for shape in shapes:
        for member in shape.schema["anyOf"] if set(shape.schema) == {"anyOf"} else [shape.schema]:
            if member not in members:
                members.append(member)
    schema: Schema = {} if {} in members else {"anyOf": members}
    expected = " or ".join(dict.fromkeys(shape.expected for shape in shapes))
    ordered = sorted(shapes, key=lambda shape: shape.order)

    def fits(value: JSON) -> bool:
        return any(shape.fits(value) for shape in ordered)

    load: Load | None = None
    if any(shape.load for shape in shapes):
        # A number keeps the type it came with when both are allowed.
        exact = {
            type_: True
            for type_, number in ((int, load_int), (float, load_float))
            if any(shape.load is number for shape in shapes)
        }

        def load(value: JSON, at: str) -> Any:
            if type(value) in exact:
                return value
            deepest: Mismatch | None = None
            doubt = False
            # Of what fits the first; of what does not, the words of who came furthest.
            for sure in (True, False):
                for shape in ordered:
                    if shape.fits(value) is not sure or shape.load is None and not sure:
                        continue
                    if shape.load is None:
                        return value
                    try:
                        return shape.load(value, at)
                    except Mismatch as failure:
                        doubt = doubt or failure.doubt
                        if deepest is None or len(failure.pointer) > len(deepest.pointer):
                            deepest = failure
            if deepest is not None and deepest.pointer != at:
                deepest.doubt = doubt
                raise deepest
            raise Mismatch(at, expected, describe(value), doubt=doubt)

    dump: Dump | None = None
    if any(shape.dump for shape in shapes):

        def dump(value: Any, path: str) -> Any:
            for shape in shapes:
                if shape.dump is not None:
                    value = shape.dump(value, path)
            return value

    return Shape(schema, expected, fits, load, dump, order=min(shape.order for shape in shapes))
