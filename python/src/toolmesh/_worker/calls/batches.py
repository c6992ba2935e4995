"""Several calls in one request: its body and its results."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

from .errors import rebuilt


def members(calls: Iterable[Any]) -> list[tuple[str, Any, float | None]]:
    """The tool, the arguments and the time of each call: an id alone, (id, arguments), or (id, arguments, timeout)."""
    found = []
    for place, call in enumerate(calls):
        parts = (call,) if isinstance(call, str) or hasattr(call, "_named") else call
        if not isinstance(parts, (tuple, list)) or not 1 <= len(parts) <= 3:
            raise TypeError(f"call {place} of the batch is {call!r:.100}: it is (tool, arguments), or a tool's id")
        tool, args, timeout = (*parts, None, None)[:3]
        tool = getattr(tool, "_named", tool)  # an object of the client has its id
        if not isinstance(tool, str):
            kind = type(tool).__name__
            raise TypeError(f"call {place} of the batch: a tool is called by its id, a text, not by {kind}")
        if timeout is not None and not float(timeout) > 0:
            raise ValueError(f"call {place} of the batch: the timeout is {timeout}: it is a number of seconds above 0")
        found.append((tool, args, None if timeout is None else float(timeout)))
    return found


def requests(calls: list[tuple[str, Any, float | None]], encoded: Callable[[str, Any], bytes]) -> bytes:
    """The list of a batch's requests, as JSON."""
    parts = []
    for tool, args, timeout in calls:
        time = f',"timeout_ms":{max(1, int(timeout * 1000))}' if timeout is not None and timeout < 1e9 else ""
        parts.append(f'{{"tool_id":{json.dumps(tool)}{time},"kwargs":'.encode() + (encoded(tool, args) or b"{}") + b"}")
    return b"[" + b",".join(parts) + b"]"


def ends(
    calls: list[tuple[str, Any, float | None]], results: list[dict[str, Any]], return_exceptions: bool
) -> list[Any]:
    """The results of the calls, in their order. Raises the first error, or with return_exceptions returns each in place
    of its call's result."""
    found: list[Any] = []
    for (tool, _, _), end in zip(calls, results, strict=True):
        if end.get("status") == "ok":
            found.append(end.get("result"))
            continue
        failure = rebuilt(end.get("error") or {}, tool)
        if not return_exceptions:
            raise failure
        found.append(failure)
    return found

