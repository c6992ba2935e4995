"""The worker's files about values, schemas and errors, for the client and the host.

Inside a worker the package runs beside the worker's own files, which the agent has loaded under a private name: those
are taken there, so that an error or a channel is one thing in a process, whichever version is installed.
"""

from __future__ import annotations

import contextvars
import sys
import typing

if typing.TYPE_CHECKING:
    from ._worker import mesh as tool_side
    from ._worker.calls import batches, channel, errors, failures, guard, tasks, terminals
    from ._worker.schemas import binding, files, schema, values
else:
    from importlib import import_module

    WORKER = "_toolmesh_worker"  # the name in python/embed.go

    tool_side = import_module(f"{WORKER}.mesh" if WORKER in sys.modules else "toolmesh._worker.mesh")
    for _room, _names in (("schemas", ("values", "schema", "files", "binding")),
                          ("calls", ("batches", "tasks", "errors", "failures", "guard", "channel", "terminals"))):
        for _name in _names:
            globals()[_name] = import_module(f"{tool_side.__package__}.{_room}.{_name}")

    for _one in (errors, files, tasks, tool_side):  # what the API shows of them has annotations
        vars(_one).setdefault("JSON", typing.Any)

scope: contextvars.ContextVar[tuple[str | None, float | None]] = contextvars.ContextVar("scope", default=(None, None))
"""The session and the deadline, by time.monotonic, of calls that name none."""

__all__ = [
    "batches", "binding", "channel", "errors", "failures", "files", "guard", "schema", "scope", "tasks",
    "terminals", "tool_side", "values",
]
