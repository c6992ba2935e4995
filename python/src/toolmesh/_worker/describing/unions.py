"""The Shape of a value that has one of several, and which of them it has."""

from __future__ import annotations

from .shapes import FLOAT, KEEPS, KEPT, LISTED, MADE, MAKES, Shape
from .values import Mismatch, describe

TYPE_CHECKING = False  # as typing has it, without importing typing
if TYPE_CHECKING:
    from typing import Any

    from ..wire.frames import JSON
    from .shapes import Dump, Schema


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
    ordered = _ordered(shapes)
    # A number keeps the type it came with where both are taken.
    of_float = sorted(ordered, key=lambda shape: shape.order != FLOAT)

    def load(value: JSON) -> Any:
        deepest: Mismatch | None = None  # the words of the member that came furthest
        for shape in of_float if type(value) is float else ordered:
            try:
                return shape.load(value)
            except Mismatch as failure:
                if deepest is None or len(failure.pointer) > len(deepest.pointer):
                    deepest = failure
        if deepest is not None and deepest.pointer:
            raise deepest
        raise Mismatch(expected, describe(value))

    dump: Dump | None = None
    dumps = [shape.dump for shape in shapes if shape.dump is not None]
    if dumps:

        def dump(value: Any) -> Any:
            for one in dumps:
                value = one(value)
            return value

    texts = 0
    for shape in shapes:
        texts |= shape.texts
    if texts & KEPT:
        texts &= ~MADE
    return Shape(schema, expected, load, dump, same=all(shape.same for shape in shapes),
                 order=min(shape.order for shape in shapes), texts=texts)


def _ordered(shapes: list[Shape]) -> list[Shape]:
    """The members in the order in which they may have a value. A text is the
    str that was sent wherever one of them is a str: nothing that could be made
    of it goes first, and a closed set only if its author wrote it first."""
    kept = any(shape.texts & KEEPS for shape in shapes)
    first = next((at for at, shape in enumerate(shapes) if shape.texts & KEPT), len(shapes))

    def rank(at: int) -> tuple[bool, int]:
        shape = shapes[at]
        return bool(kept and shape.texts & MAKES or at > first and shape.texts & LISTED), shape.order

    return [shapes[at] for at in sorted(range(len(shapes)), key=rank)]
