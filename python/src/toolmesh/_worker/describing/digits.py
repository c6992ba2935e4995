"""Numbers as they were sent. A double holds about 16 digits; what needs more of
a number, or needs to know that there were no more, reads the arguments with
decode and asks here for the text of each float.

The floats themselves are plain ones, so whatever takes them as they are knows
nothing of this. Reading so costs a call per float; only those pay that need it.
"""

from __future__ import annotations

import json

from . import values

TYPE_CHECKING = False  # as typing has it, without importing typing
if TYPE_CHECKING:
    from ..wire.frames import JSON

# id of a float of the arguments that are being bound -> itself, which keeps
# the id its own, and its text.
_texts: dict[int, tuple[float, str]] = {}


def _keep(text: str) -> float:
    number = float(text)
    _texts[id(number)] = number, text
    return number


_read = values.reader(json.JSONDecoder(parse_float=_keep, parse_constant=values.no_constant))


def decode(body: bytes) -> JSON:
    """values.decode, after which sent knows the numbers until forget."""
    try:
        return _read(body)
    except BaseException:
        _texts.clear()
        raise


def sent(number: float) -> str | None:
    """The text of a float of the arguments; None when it was not kept."""
    return _texts[id(number)][1] if id(number) in _texts else None


def forget() -> None:
    """Forgets the texts, once the arguments are bound."""
    _texts.clear()
