"""Tools of the mesh for the tool runner of Anthropic's SDK.

    from toolmesh import Mesh
    from toolmesh.anthropic import tools

    runner = Anthropic().beta.messages.tool_runner(tools=tools(Mesh(), "weather."), ...)

Declarations and arguments are the mesh's, for this provider. A failure is a result with is_error for the model.
"""

from __future__ import annotations

from typing import Any

from anthropic.lib.tools import BetaAsyncBuiltinFunctionTool, BetaBuiltinFunctionTool, ToolError

from ._adapters.common import arun, brief, meaning, run, text
from ._client.answers import outward
from ._client.background import background
from ._core import errors
from .client import Mesh

__all__ = ["async_tools", "tools"]


class _Declared:
    def __init__(self, mesh: Mesh, tool: Any, declared: Any) -> None:
        self._mesh, self._tool, self._declared = mesh, tool, declared

    def to_dict(self) -> Any:
        return self._declared


class _AsyncTool(_Declared, BetaAsyncBuiltinFunctionTool):
    async def call(self, given: object) -> str:
        try:
            arguments = await meaning(self._mesh, {"name": self.name, "input": given})
            return text(await arun(self._tool, arguments, exact=True))
        except errors.MeshError as failure:
            raise ToolError(str(brief(failure))) from None


class _Tool(_Declared, BetaBuiltinFunctionTool):
    def call(self, given: object) -> str:
        try:
            _, arguments = background.run(lambda: self._mesh._meaning({"name": self.name, "input": given}))
            return text(run(self._tool, arguments, exact=True))
        except errors.MeshError as failure:
            raise ToolError(str(brief(failure))) from None


@outward
def tools(mesh: Mesh, prefix: str = "") -> list[BetaBuiltinFunctionTool]:
    """The tools of the session whose id begins with prefix. A streaming tool returns the list of its items."""
    found = mesh.tools(prefix)
    return [_Tool(mesh, *one) for one in zip(found, mesh.format("anthropic", found), strict=True)]


@outward
def async_tools(mesh: Mesh, prefix: str = "") -> list[BetaAsyncBuiltinFunctionTool]:
    """tools, for AsyncAnthropic."""
    found = mesh.tools(prefix)
    return [_AsyncTool(mesh, *one) for one in zip(found, mesh.format("anthropic", found), strict=True)]
