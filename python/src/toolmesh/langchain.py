"""Tools of the mesh for LangChain and LangGraph.

    from toolmesh import Mesh
    from toolmesh.langchain import tools

    agent = create_agent(model, tools(Mesh(), "weather."))

A failure is a ToolException that the tool handles: the model reads it, and the run continues. The content of a result
is text, its artifact the value.
"""

from __future__ import annotations

from typing import Any

from langchain_core.tools import StructuredTool, ToolException

from ._adapters.common import arun, brief, named, run, text
from ._client.answers import outward
from ._core import errors
from .client import Mesh

__all__ = ["tools"]


class _Tool(StructuredTool):
    # StructuredTool's own parameters reserve the names config and run_manager.
    def _run(self, /, **arguments: Any) -> Any:
        return self.func(**arguments)

    async def _arun(self, /, **arguments: Any) -> Any:
        return await self.coroutine(**arguments)


@outward
def tools(mesh: Mesh, prefix: str = "") -> list[StructuredTool]:
    """The tools of the session whose id begins with prefix. A streaming tool returns the list of its items."""
    return [_made(*one) for one in named(mesh, prefix)]


def _made(tool: Any, name: str) -> StructuredTool:
    def call(**arguments: Any) -> tuple[str, Any]:
        try:
            value = run(tool, arguments)
        except errors.MeshError as failure:
            raise ToolException(str(brief(failure))) from None
        return text(value), value

    async def acall(**arguments: Any) -> tuple[str, Any]:
        try:
            value = await arun(tool, arguments)
        except errors.MeshError as failure:
            raise ToolException(str(brief(failure))) from None
        return text(value), value

    return _Tool(name=name, description=tool.description, args_schema=tool.input_schema, func=call, coroutine=acall,
                 response_format="content_and_artifact", handle_tool_error=True, metadata={"tool_id": tool.id})
