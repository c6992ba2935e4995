"""The worker's modules for values, schemas and errors, for the client and the host.

Inside a worker the agent has loaded these files under a private name. The package then uses those, so that an error
class or a channel exists once per process, whatever version is installed.
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

scope: contextvars.ContextVar[tuple[str | None, float | None]] = contextvars.ContextVar("scope", default=(None, None))
"""The session and the deadline, by time.monotonic, of calls that name none."""

__all__ = [
    "batches", "binding", "channel", "errors", "failures", "files", "guard", "schema", "scope", "tasks",
    "terminals", "tool_side", "values",
]
