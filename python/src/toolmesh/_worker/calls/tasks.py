"""Durable tasks: requests about them, and their handles."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from datetime import datetime
from typing import Any

from .errors import MeshError, error, rebuilt

_ENDED = ("succeeded", "failed", "cancelled")
_WAIT = 10.0  # seconds that one request waits for a task's end
_REST = 0.25  # seconds between two requests without an answer


def submission(
    tool: str, body: bytes, *, id: str | None = None, timeout: float | None = None, attempts: int | None = None,
    priority: int = 0, ttl: float | None = None, idempotency_key: str | None = None, at: datetime | None = None,
    delay: float | None = None, every: float | None = None, cron: str | None = None, catch_up: str | None = None,
    ref: tuple[str, str] | None = None,
) -> bytes:
    """The request of a submission. body is the arguments object, or ref has its name and digest in the store."""
    fields: dict[str, Any] = {"tool": tool}
    for name, seconds in (("timeout_ms", timeout), ("ttl_ms", ttl), ("in_ms", delay), ("every_ms", every)):
        if seconds is not None:
            if not seconds > 0:
                raise ValueError(f"{name.removesuffix('_ms')} is {seconds}: it is a number of seconds above 0")
            fields[name] = max(1, round(seconds * 1000))
    if at is not None:
        fields["at"] = at.astimezone().isoformat()
    named = {"id": id, "attempts": attempts, "key": idempotency_key, "cron": cron, "catch_up": catch_up}
    fields.update({name: value for name, value in named.items() if value is not None})
    if priority:
        fields["priority"] = priority
    if ref is not None:
        fields["ref"], fields["digest"] = ref
        return json.dumps(fields).encode()
    return json.dumps(fields)[:-1].encode() + b',"args":' + (body or b"{}") + b"}"


def about(task: str, **fields: Any) -> bytes:
    """A request about one task."""
    return json.dumps({"id": task, **fields}).encode()


def outcome(task: dict[str, Any]) -> Any:
    """The result of an ended task; raises its failure."""
    if task.get("error") is not None:
        raise rebuilt(task["error"], str(task.get("tool", "")))
    return task.get("result")


def _left(until: float | None, task: str) -> float:
    """The seconds that one request may wait; raises if none are left."""
    if until is None:
        return _WAIT
    left = until - time.monotonic()
    if left <= 0:
        raise error("deadline_exceeded", f"the task {task} has not ended in that time, and goes on", tool="",
                    started=None, origin="caller")
    return min(left, _WAIT)


class _Handle:
    """The common part of both handles."""

    def __init__(self, id: str, ask: Callable[[str, bytes], Any]) -> None:
        self.id = id
        self._ask = ask

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id}>"

    def __reduce__(self) -> Any:
        raise TypeError(f"a Task cannot be pickled: send its id, {self.id!r}, and make it anew with mesh.task(id)")


class Task(_Handle):
    """A durable task. It runs independently of this object and of its process."""

    __module__ = "toolmesh"

    def show(self) -> dict[str, Any]:
        """Its record, as mesh task show --json prints it."""
        found: dict[str, Any] = self._ask("show", about(self.id))
        return found

    def state(self) -> str:
        """scheduled, queued, running, succeeded, failed or cancelled."""
        return str(self.show()["state"])

    def wait(self, timeout: float | None = None) -> Any:
        """Its result, once it has ended; raises its failure. timeout is in seconds. After it wait raises ToolTimeout,
        and the task continues."""
        until = None if timeout is None else time.monotonic() + timeout
        while True:
            left = _left(until, self.id)
            try:
                task = self._ask("wait", about(self.id, wait_ms=max(1, int(left * 1000)), accept_ref=True))
            except MeshError as failure:
                if failure.code not in ("unavailable", "busy"):
                    raise
                time.sleep(min(_REST, left))
                continue
            if task["state"] in _ENDED:
                return outcome(task)

    result = wait

    def cancel(self) -> str:
        """Cancels it, or its schedule, and returns its new state. An ended task keeps its state."""
        return str(self._ask("cancel", about(self.id))["state"])

    def retry(self) -> None:
        """Runs it again if it failed or was cancelled."""
        self._ask("retry", about(self.id))


class AsyncTask(_Handle):
    """Task, for coroutines."""

    __module__ = "toolmesh"

    async def show(self) -> dict[str, Any]:
        """Its record, as mesh task show --json prints it."""
        found: dict[str, Any] = await self._ask("show", about(self.id))
        return found

    async def state(self) -> str:
        """scheduled, queued, running, succeeded, failed or cancelled."""
        return str((await self.show())["state"])

    async def wait(self, timeout: float | None = None) -> Any:
        """Task.wait."""
        import asyncio

        until = None if timeout is None else time.monotonic() + timeout
        while True:
            left = _left(until, self.id)
            try:
                task = await self._ask("wait", about(self.id, wait_ms=max(1, int(left * 1000)), accept_ref=True))
            except MeshError as failure:
                if failure.code not in ("unavailable", "busy"):
                    raise
                await asyncio.sleep(min(_REST, left))
                continue
            if task["state"] in _ENDED:
                return outcome(task)

    result = wait

    async def cancel(self) -> str:
        """Task.cancel."""
        return str((await self._ask("cancel", about(self.id)))["state"])

    async def retry(self) -> None:
        """Runs it again if it failed or was cancelled."""
        await self._ask("retry", about(self.id))
