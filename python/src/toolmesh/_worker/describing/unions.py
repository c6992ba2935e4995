"""The Shape of a value that has one of several, and which of them it has."""

from __future__ import annotations

from .shapes import KEEPS, KEPT, LISTED, MADE, MAKES, Shape, load_float, load_int
from .values import Mismatch, describe

TYPE_CHECKING = False  # as typing has it, without importing typing
if TYPE_CHECKING:
    from typing import Any

    from ..wire.frames import JSON
    from .shapes import Dump, Load, Schema


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
            # Of what fits the first; of what does not, the words of the member that came furthest.
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

    texts = 0
    for shape in shapes:
        texts |= shape.texts
    if texts & KEPT:
        texts &= ~MADE
    return Shape(schema, expected, fits, load, dump, order=min(shape.order for shape in shapes), texts=texts)


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
