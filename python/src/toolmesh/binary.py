"""Where the mesh binary is, and a mesh on this machine."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import pathlib
import shutil
import subprocess

import toolmesh

from . import _finding
from ._core import errors

_STARTING = 120  # seconds that a first start may take: it makes environments of what is installed


def find() -> str:
    """The path of the mesh binary: TOOLMESH_BINARY, the one that the wheel carries,
    or mesh on the PATH. FileNotFoundError says how to get one."""
    found = os.environ.get("TOOLMESH_BINARY") or _carried() or shutil.which("mesh")
    if not found:
        raise FileNotFoundError(
            "there is no mesh binary: install the wheel of toolmesh for this platform (linux and macOS, x86_64 and "
            "arm64), or build one (go build ./cmd/mesh) and put it on the PATH or name it in TOOLMESH_BINARY")
    return found


def _carried() -> str:
    """The command that the wheel of this platform has brought along; "" if it was another."""
    places = [pathlib.Path(__file__).parent.parent / "bin" / "mesh"]  # of pip install --target, whose record is wrong
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        told = importlib.metadata.files("toolmesh") or ()
        places += [pathlib.Path(str(one.locate())).resolve() for one in told if one.name == "mesh"]
    return next((str(one) for one in places if os.access(one, os.X_OK)), "")


def local(*, idle: float = 300.0) -> toolmesh.Mesh:
    """A Mesh of this machine, which all programs of this user share: the one that mesh
    up left running, else one that is started and ends when nobody has been
    connected for idle seconds. Raises Unavailable where none can be started."""
    from .client import Mesh

    for record in _finding.running():
        mesh = Mesh(record["url"])
        try:
            mesh.tools("no tool has such a name")
            return mesh
        except errors.MeshError:
            mesh.close()
    try:
        with _finding.starting():
            # Another program may have started one meanwhile.
            for record in _finding.running():
                return Mesh(record["url"])
            return Mesh(_started(find(), idle))
    except OSError as failure:
        raise errors.error("unavailable", str(failure), started=False, origin="caller") from None


def _started(program: str, idle: float) -> str:
    try:
        done = subprocess.run([program, "up", "--detach", "--nats-listen=127.0.0.1:0", f"--idle={idle}s"],
                              stdin=subprocess.DEVNULL, capture_output=True, encoding="utf-8", timeout=_STARTING,
                              check=False)
    except subprocess.TimeoutExpired:
        raise OSError(f"no mesh is ready within {_STARTING} s of its start") from None
    url = done.stdout.strip().removeprefix("ready nats=")
    if done.returncode != 0 or not url:
        raise OSError(f"no mesh can be started: {done.stderr.strip()[-2000:]}")
    return url
