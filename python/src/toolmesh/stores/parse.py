"""JSON in the text of a model."""

from __future__ import annotations

import difflib
import importlib
import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

from .._client.answers import outward

_LONGEST = 100_000  # max characters to search
_REPAIRED = 20_000  # max characters to repair: the cost may grow with the square, to a few seconds for this many
_STARTS = 100  # brackets at which JSON may begin
_FENCE = re.compile(r"```json\s*(.*?)```", re.DOTALL | re.IGNORECASE)
_BRACKET = re.compile(r"[\[{]")
_SIMILAR = 0.8


@outward
def llm_parse_json(text: str, keys: Sequence[str] | None = None, autoescape: bool = True) -> Any:
    """The object or list in a text of a model: the whole text, else a block ```json, else the largest one.

    Broken JSON, or Python's literals, are repaired if json_repair is installed (pip install toolmesh[models]) and
    autoescape is true. Keys of an object that resemble one of keys become it. Raises ValueError if nothing is found.
    """
    if len(text) > _LONGEST:
        raise ValueError(f"Failed to parse JSON from text of {len(text)} characters: {_LONGEST} at most are searched")
    fenced = _FENCE.findall(text) if text.strip()[:1] not in ("{", "[") else []
    for part in (*fenced, text):
        whole = list(_complete(part))
        found = max(whole, key=lambda one: one[2], default=(None, 0, 0))[0]
        for span in sorted((_span(part, "[]"), _span(part, "{}")), key=lambda one: one[1] - one[0]):
            # JSON that starts inside a complete value is not broken; otherwise the complete value may be a part of
            # it.
            if span[0] < span[1] and not any(start <= span[0] < start + length for _, start, length in whole):
                repaired = _repaired(part[slice(*span)]) if autoescape else None
                found = repaired if repaired is not None else found
        if found is not None:
            return _matched(found, keys or ())
    raise ValueError(f"Failed to parse JSON from text {text}")


def _complete(text: str) -> Iterator[tuple[Any, int, int]]:
    """The complete JSON objects and lists with their positions and lengths."""
    decoder, position = json.JSONDecoder(), 0
    for _ in range(_STARTS):
        start = _BRACKET.search(text, position)
        if start is None:
            return
        try:
            value, position = decoder.raw_decode(text, start.start())
        except (ValueError, RecursionError):
            position = start.end()
        else:
            yield value, start.start(), position - start.start()


def _span(text: str, ends: str) -> tuple[int, int]:
    """From the first opening bracket to the last closing one, or to the end."""
    start, end = text.find(ends[0]), text.rfind(ends[1])
    if start < 0:
        return 0, 0
    return start, end + 1 if end > start else len(text)


def _repaired(text: str) -> Any:
    if len(text) > _REPAIRED or not re.search(r"[\"'\u201c:0-9]", text):
        return None  # words in brackets are prose
    try:
        found = importlib.import_module("json_repair").loads(text, skip_json_loads=True)
    except (ImportError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict if text.startswith("{") else list) else None


def _matched(found: Any, keys: Sequence[str]) -> Any:
    """An object with its keys spelt as expected. An expected key is not used for another one."""
    if not isinstance(found, dict):
        return found
    missing = [key for key in keys if key not in found]
    spelt = {}
    for name in found:
        scores = [(_alike(str(name), key), key) for key in missing] if name not in keys else []
        score, key = max(scores, default=(0.0, ""))
        if score >= _SIMILAR:
            missing.remove(key)
            spelt[name] = key
    return {spelt.get(name, name): value for name, value in found.items()}


def _alike(name: str, key: str) -> float:
    one, other = (re.sub(r"[\W_]", "", text).casefold() for text in (name, key))
    if min(len(one), len(other)) >= 3 and (one in other or other in one):
        return 0.9
    return difflib.SequenceMatcher(None, one, other).ratio() if max(len(one), len(other)) < 100 else 0.0
