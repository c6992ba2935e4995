"""Where the mesh binary is."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import pathlib
import shutil


def find() -> str:
    """The path of the mesh binary: TOOLMESH_BINARY, that of the wheel, or mesh on the PATH. FileNotFoundError says how
    to get one."""
    found = os.environ.get("TOOLMESH_BINARY") or _carried() or shutil.which("mesh")
    if not found:
        raise FileNotFoundError(
            "there is no mesh binary: install the wheel of toolmesh for this platform (linux and macOS, x86_64 and "
            "arm64), or build one (go build ./cmd/mesh) and put it on the PATH or name it in TOOLMESH_BINARY")
    return found


def _carried() -> str:
    """The command in the wheel of this platform; "" without one."""
    places = [pathlib.Path(__file__).parent.parent / "bin" / "mesh"]  # pip install --target writes a wrong record
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        told = importlib.metadata.files("toolmesh") or ()
        places += [pathlib.Path(str(one.locate())).resolve() for one in told if one.name == "mesh"]
    return next((str(one) for one in places if os.access(one, os.X_OK)), "")
