"""Removes secrets of the index from every text for people.

The agent sends the forms of each secret (executor/internal/output/redact.go): plain, in a repr, in JSON, in a URL and
in base64. They are removed here before a worker's text is cut to its size. Results and items are the caller's data and
are never changed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from ..wire.frames import JSON

MARK = "***"  # replaces a secret; the same as on the Go side

_pattern: re.Pattern[str] | None = None  # the agent's
_parts: re.Pattern[str] | None = None  # the texts in its matches, at their beginning or behind one character
longest = 0
"""Characters of the longest text that is removed."""


def use(forms: dict[str, JSON] | None) -> None:
    """Sets the texts to remove from now on, output.Forms of the agent."""
    global _pattern, _parts, longest
    if forms:
        longest = max(map(len, forms["texts"])) + 2  # a character on either side
        _pattern = re.compile(forms["pattern"], re.ASCII)
        _parts = re.compile("|".join(map(re.escape, forms["texts"])))


def _found(value: str) -> Iterator[re.Match[str]]:
    """The secrets in value, in order: _pattern.finditer, which alone takes ten times as long for each character."""
    if _pattern is None or _parts is None:
        return
    done = at = 0
    while near := _parts.search(value, at):
        at = near.start()
        found = _pattern.match(value, max(at - 1, done)) or _pattern.match(value, at)
        if found is None:
            at += 1  # the text is a part of a longer word
            continue
        yield found
        done = at = found.end()


def text(value: str) -> str:
    """value without secrets."""
    kept: list[str] = []
    done = 0
    for found in _found(value):
        kept += (value[done : found.start()], MARK)
        done = found.end()
    return "".join((*kept, value[done:])) if kept else value


def apart(value: str, at: int) -> int:
    """The first place from at on where value may be cut: through a secret, both halves would be shown."""
    for found in _found(value):
        if found.start() < at:
            at = max(at, found.end())
    return at


def tree(value: Any) -> Any:
    """A JSON value without secrets, also in keys and numbers."""
    if _pattern is None:
        return value
    kind = type(value)
    if kind is str:
        return text(value)
    if kind is dict:
        return {tree(key): tree(one) for key, one in value.items()}
    if kind is list or kind is tuple:
        return [tree(one) for one in value]
    if (kind is int or kind is float) and _pattern.fullmatch(str(value)):
        return MARK
    return value
