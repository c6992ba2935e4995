"""Tools of the mesh for the OpenAI Agents SDK.

    from toolmesh import Mesh
    from toolmesh.openai_agents import tools

    agent = Agent(name="assistant", tools=tools(Mesh(), "weather."))

Declarations and arguments are the mesh's, for this provider. A failure is text for the model; the run continues.
"""

from __future__ import annotations

from typing import Any

from agents import FunctionTool

from ._adapters.common import arun, brief, meaning, text
from ._client.answers import outward
from ._core import errors
from .client import Mesh

__all__ = ["tools"]


@outward
def tools(mesh: Mesh, prefix: str = "") -> list[FunctionTool]:
    """The tools of the session whose id begins with prefix. A streaming tool returns the list of its items."""
    found = mesh.tools(prefix)
    return [_made(mesh, *one) for one in zip(found, mesh.format("openai-responses", found), strict=True)]


def _made(mesh: Mesh, tool: Any, declared: dict[str, Any]) -> FunctionTool:
    async def invoke(_context: Any, arguments: str) -> str:
        try:
            given = await meaning(mesh, {"name": declared["name"], "arguments": arguments})
            return text(await arun(tool, given, exact=True))
        except errors.MeshError as failure:
            return f"error: {brief(failure)}"

    # Strict if the mesh could write a strict schema, which it maps back: the SDK's own conversion would lose optional
    # arguments.
    return FunctionTool(name=declared["name"], description=declared.get("description", ""), on_invoke_tool=invoke,
                        params_json_schema=declared["parameters"], strict_json_schema=declared.get("strict") is True)
