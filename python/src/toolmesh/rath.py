"""Tools of the mesh for OpenRath, and OpenRath's tools for the mesh.

    from toolmesh import Mesh
    from toolmesh.rath import serve, tools

    run_session_loop(user, agent, agent_provider=provider, tools=tools(Mesh(), "weather."))
    serve(MyFlowToolCall(), index="files")
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
import threading
from collections.abc import Mapping
from typing import Any

from rath.flow.tool import FlowToolCall
from rath.session import create_user_session

from ._adapters.common import named, names, run
from ._client.answers import outward
from ._options import Settings, Unpack
from .client import Mesh
from .host import Host
from .remote import RemoteTool

__all__ = ["MeshToolCall", "host", "serve", "tools"]

_FIELD = re.compile(r"\{([^{}]*)\}")
_UNKNOWN = "<unknown>"  # OpenRath's own value for a missing argument


@outward
def tools(mesh: Mesh, prefix: str = "") -> list[MeshToolCall]:
    """The tools of the session whose id begins with prefix. A streaming tool returns the list of its items."""
    return [MeshToolCall(*one) for one in named(mesh, prefix)]


class MeshToolCall(FlowToolCall):
    """A tool of the mesh in OpenRath's loop, with its declarations in the mesh. Failures are MeshErrors, which the loop
    shows to its model."""

    def __init__(self, tool: RemoteTool, name: str = "") -> None:
        self._tool = tool
        self._name = name or names([tool.id])[tool.id]
        self.parallel_safe: bool = bool(tool.annotations.get("parallel_safe"))

    @property
    def name(self) -> str:
        """Its id, as an identifier."""
        return self._name

    @property
    def description(self) -> str | None:
        """Its author's description."""
        return self._tool.description or None

    @property
    def parameters(self) -> dict[str, Any]:
        """Its input schema, unchanged."""
        return self._tool.input_schema

    def resource_key(self, arguments: Mapping[str, Any]) -> tuple[str, ...]:
        """The lane of a call: the key that the tool declares, with the arguments filled in. Without one, or if the host
        computes it, OpenRath's default."""
        declared = self._tool.annotations.get("resource_key")
        if not isinstance(declared, list):
            return tuple(super().resource_key(arguments))
        return tuple(_FIELD.sub(lambda found: str(arguments.get(found[1], _UNKNOWN)), one) for one in declared)

    def __call__(self, session: Any, arguments: Mapping[str, Any]) -> Any:
        """Calls the tool; OpenRath's session is not the mesh's and is ignored."""
        return run(self._tool, dict(arguments))


def host(*flow_tools: FlowToolCall, rath_session: Any = None, **settings: Unpack[Settings]) -> Host:
    """A Host with those settings that serves OpenRath's tools under their names and declarations. They run in
    rath_session, a new one if None. A tool without parallel_safe runs one call at a time."""
    made = Host(**settings)
    where = rath_session if rath_session is not None else create_user_session("")
    for one in flow_tools:
        _add(made, one, where)
    return made


def serve(*flow_tools: FlowToolCall, rath_session: Any = None, **settings: Unpack[Settings]) -> None:
    """Serves OpenRath's tools until SIGINT or SIGTERM; see host."""
    host(*flow_tools, rath_session=rath_session, **settings).serve()


def _add(made: Host, flow_tool: FlowToolCall, session: Any) -> None:
    alone = contextlib.nullcontext() if flow_tool.parallel_safe else threading.Lock()

    def call(**arguments: Any) -> Any:
        with alone:
            value = flow_tool(session, arguments)
        return dataclasses.asdict(value) if dataclasses.is_dataclass(value) and not isinstance(value, type) else value

    computed = type(flow_tool).resource_key is not FlowToolCall.resource_key  # here, by code
    key = "dynamic" if computed else ["safe", flow_tool.name] if flow_tool.parallel_safe else None  # OpenRath's default
    made.tool(call, name=flow_tool.name, description=flow_tool.description or "",
              parallel_safe=bool(flow_tool.parallel_safe), resource_key=key)
    made._tools[flow_tool.name].spec["input_schema"] = dict(flow_tool.parameters)
