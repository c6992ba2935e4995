"""Tools of the mesh for pydantic-ai.

    from toolmesh import Mesh
    from toolmesh.pydantic_ai import tools

    agent = Agent(model, tools=tools(Mesh(), "weather."))

The model is asked to try again if its arguments do not fit, and told of other failures; the run continues. Tools that
are not declared parallel_safe run one at a time.
"""

from __future__ import annotations

from typing import Any

from pydantic_ai import ModelRetry, Tool
from pydantic_ai.exceptions import ToolFailed

from ._adapters.common import arun, brief, named
from ._client.answers import outward
from ._core import errors
from .client import Mesh

__all__ = ["tools"]


@outward
def tools(mesh: Mesh, prefix: str = "") -> list[Tool[Any]]:
    """The tools of the session whose id begins with prefix. A streaming tool returns the list of its items."""
    return [_made(*one) for one in named(mesh, prefix)]


def _made(tool: Any, name: str) -> Tool[Any]:
    async def call(**arguments: Any) -> Any:
        try:
            return await arun(tool, arguments)
        except errors.InvalidArguments as failure:
            raise ModelRetry(str(brief(failure))) from None
        except errors.MeshError as failure:
            raise ToolFailed(str(brief(failure))) from None

    return Tool.from_schema(call, name=name, description=tool.description, json_schema=tool.input_schema,
                            sequential=not tool.annotations.get("parallel_safe"))
