"""Removes secrets of the index from every text for people.

The agent sends the forms of each secret (executor/internal/output/redact.go): plain, in a repr, in JSON, in a URL and
in base64. They are removed here before a worker's text is cut to its size. Results and items are the caller's data and
are never changed.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..wire.frames import JSON

MARK = "***"  # replaces a secret; the same as on the Go side

_known: set[str] = set()
_pattern: re.Pattern[str] | None = None
_edges: dict[str, tuple[int, int]] = {}  # for base64 forms: neighbouring characters that hold a part of the secret
_BASE64 = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/-_")


def use(forms: dict[str, JSON] | None) -> None:
    """Sets the texts to remove from now on, output.Forms of the agent."""
    global _pattern
    if not forms:
        return
    for one in forms["coded"] or ():
        known = _edges.get(one["core"], (0, 0))
        _edges[one["core"]] = max(one["ahead"], known[0]), max(one["behind"], known[1])
    texts, words = forms["texts"] or (), forms["words"] or ()
    _known.update(texts, words)
    parts = [re.escape(one) for one in sorted({*texts, *_edges}, key=len, reverse=True)]
    _pattern = re.compile("|".join([*parts, *(rf"(?<!\w){re.escape(one)}(?!\w)" for one in words)]))


def text(value: str) -> str:
    """value without secrets."""
    return value if _pattern is None else _cut(_pattern, value)


def _cut(pattern: re.Pattern[str], value: str) -> str:
    parts: list[str] = []
    at = 0
    for match in pattern.finditer(value):
        start, end = match.span()
        # Not in the pattern: a pattern of plain texts alone is fast.
        ahead, behind = _edges.get(match.group(), (0, 0))
        if ahead and start > at and value[start - 1] in _BASE64:
            start -= 1
        if behind and value[end : end + 1] in _BASE64:
            end += 1
        parts += (value[at:start], MARK)
        at = end
    return "".join((*parts, value[at:])) if parts else value


def tree(value: Any) -> Any:
    """A JSON value without secrets, also in keys and numbers."""
    if _pattern is None:
        return value
    kind = type(value)
    if kind is str:
        return _cut(_pattern, value)
    if kind is dict:
        return {tree(key): tree(one) for key, one in value.items()}
    if kind is list or kind is tuple:
        return [tree(one) for one in value]
    if (kind is int or kind is float) and str(value) in _known:
        return MARK
    return value
