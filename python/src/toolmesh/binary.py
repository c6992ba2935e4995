"""Where the mesh binary is."""

from __future__ import annotations

import os
import shutil


def find() -> str:
    """The path of the mesh binary; FileNotFoundError says how to get one."""
    path = os.environ.get("TOOLMESH_BINARY") or shutil.which("mesh")
    if not path:
        raise FileNotFoundError("there is no mesh binary: set TOOLMESH_BINARY to one, or put it on the PATH")
    return path
