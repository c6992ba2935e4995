"""Where the mesh binary is."""

from __future__ import annotations

import os
import shutil
import typing

from ._core import errors

if typing.TYPE_CHECKING:
    from .client import Mesh


def find() -> str:
    """The path of the mesh binary; FileNotFoundError says how to get one."""
    path = os.environ.get("TOOLMESH_BINARY") or shutil.which("mesh")
    if not path:
        raise FileNotFoundError("there is no mesh binary: set TOOLMESH_BINARY to one, or put it on the PATH")
    return path


def local() -> Mesh:
    """stub until the wheels helper's lands"""
    raise errors.error("unavailable", "no mesh runs: start one with mesh up", started=False, origin="caller")
