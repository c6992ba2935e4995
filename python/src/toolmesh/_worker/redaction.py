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
    from collections.abc import Iterable
    from typing import Any

MARK = "***"  # what stands in the place of a secret; the Go side says the same
_PART = 8  # characters from which a line or a part of a secret is one itself
_WHOLE = 4  # characters from which a secret is replaced inside of words too

_known: set[str] = set()
_pattern: re.Pattern[str] | None = None


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
        found.update((base64.b64encode(data).decode().rstrip("="), base64.urlsafe_b64encode(data).decode().rstrip("=")))
    return found


def _leaves(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value.strip()]
    children = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [leaf for child in children for leaf in _leaves(child)]


def text(value: str) -> str:
    """value without secrets."""
    return value if _pattern is None else _pattern.sub(MARK, value)


def tree(value: Any) -> Any:
    """A JSON value without secrets, keys and numbers included."""
    if _pattern is None:
        return value
    kind = type(value)
    if kind is str:
        return _pattern.sub(MARK, value)
    if kind is dict:
        return {tree(key): tree(one) for key, one in value.items()}
    if kind is list or kind is tuple:
        return [tree(one) for one in value]
    if (kind is int or kind is float) and str(value) in _known:
        return MARK
    return value
