"""Secrets of the index, kept out of every text that is made for people.

A value is replaced wherever it stands, also as it looks in a repr, in JSON, in
a URL and in base64, and each longer line of one that has several. Of a value
that is a JSON list or object, each longer text in it is one too. A value of
two or three characters is replaced only where it stands alone, as a word; one
of a single character is not: it says nothing, and it is everywhere. Results
and items are the caller's data and are never touched.
"""

from __future__ import annotations

TYPE_CHECKING = False  # as typing has it, without importing typing
if TYPE_CHECKING:
    import re
    from collections.abc import Callable, Iterable, Iterator
    from typing import Any

MARK = "***"  # what stands in the place of a secret; the Go side says the same
_PART = 8  # characters from which a line or a part of a secret is one itself
_WHOLE = 4  # characters from which a secret is replaced inside of words too

_known: set[str] = set()
_pattern: re.Pattern[str] | None = None
_edges: dict[str, tuple[int, int]] = {}  # of what is known in base64: characters beside it that hold a part
_BASE64 = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/-_")


def add(values: Iterable[str]) -> None:
    """Takes values that no text may show from here on."""
    global _pattern
    import re

    for value in values:
        if isinstance(value, str):
            _known.update(_forms(value))
    longer = sorted((one for one in _known if len(one) >= _WHOLE), key=len, reverse=True)
    short = sorted((one for one in _known if len(one) < _WHOLE), key=len, reverse=True)
    parts = [re.escape(one) for one in longer] + [rf"(?<!\w){re.escape(one)}(?!\w)" for one in short]
    _pattern = re.compile("|".join(parts)) if parts else None


def _forms(value: str) -> set[str]:
    import base64
    import json
    from urllib.parse import quote, quote_plus

    value = value.strip()
    if len(value) < 2:
        return set()
    if len(value) < _WHOLE:
        return {value}
    bases = {value}
    lines = [line.strip() for line in value.splitlines()]
    if len(lines) > 1:
        bases.update(line for line in lines if len(line) >= _PART)
    if value[0] in "[{":
        try:
            bases.update(one for one in _leaves(json.loads(value)) if len(one) >= _PART)
        except (ValueError, RecursionError):
            pass
    found = set(bases)
    for one in bases:
        looks = {one}
        for _ in range(2):  # the repr of several arguments holds the reprs of each
            for text in tuple(looks):
                looks.update((repr(text)[1:-1], repr(text + "'\"")[1:-4], json.dumps(text)[1:-1],
                              json.dumps(text, ensure_ascii=False)[1:-1]))
        found.update(looks)
        try:
            data = one.encode()
        except UnicodeEncodeError:
            continue
        found.update((quote(one, safe=""), quote(one), quote_plus(one)))
        for encode in (base64.b64encode, base64.urlsafe_b64encode):
            for core, ahead, behind in _cores(data, encode):
                known = _edges.get(core, (0, 0))
                _edges[core] = max(ahead, known[0]), max(behind, known[1])
                found.add(core)
    return found


def _cores(data: bytes, encode: Callable[[bytes], bytes]) -> Iterator[tuple[str, int, int]]:
    """What base64 makes of data wherever it stands in a longer text: what depends on
    nothing else, and how many characters ahead of that and behind it do in part."""
    for shift in range(3):
        first = -(-shift * 8 // 6)
        end = (shift + len(data)) * 8 // 6
        core = encode(bytes(shift) + data).decode()[first:end]
        if len(core) >= _WHOLE:
            yield core, int(shift > 0), int((shift + len(data)) % 3 > 0)


def _leaves(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value.strip()]
    children = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [leaf for child in children for leaf in _leaves(child)]


def text(value: str) -> str:
    """value without secrets."""
    return value if _pattern is None else _cut(_pattern, value)


def _cut(pattern: re.Pattern[str], value: str) -> str:
    parts: list[str] = []
    at = 0
    for match in pattern.finditer(value):
        start, end = match.span()
        # Not in the pattern: it is quick as long as it is made of plain texts.
        ahead, behind = _edges.get(match.group(), (0, 0))
        if ahead and start > at and value[start - 1] in _BASE64:
            start -= 1
        if behind and value[end : end + 1] in _BASE64:
            end += 1
        parts += (value[at:start], MARK)
        at = end
    return "".join((*parts, value[at:])) if parts else value


def tree(value: Any) -> Any:
    """A JSON value without secrets, keys and numbers included."""
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
