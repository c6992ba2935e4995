"""A mesh on this machine."""

from __future__ import annotations

import subprocess

from . import binary
from ._client import finding
from ._client.answers import outward, refused
from ._client.background import background
from ._core import errors
from .client import Mesh

_STARTING = 120  # max seconds of a first start, which makes the environments of installed indexes


@outward
def local(*, idle: float = 300.0) -> Mesh:
    """A Mesh of this machine, shared by all programs of this user: the running mesh up, else a new one, which ends when
    no program has been connected for idle seconds. Raises Unavailable if none can be started."""
    for record in finding.running():
        mesh = Mesh(record["url"])
        try:
            ask(mesh)
            return mesh
        except errors.MeshError:
            mesh.close()
    try:
        with finding.starting():
            # Another program may have started one meanwhile.
            for record in finding.running():
                return Mesh(record["url"])
            return Mesh(_started(binary.find(), idle))
    except OSError as failure:
        raise refused("unavailable", str(failure)) from None


def ask(mesh: Mesh) -> None:
    """Raises the error of a mesh that does not answer."""
    background.run(lambda: mesh._asked("list", {"limit": 1}))


def _started(program: str, idle: float) -> str:
    try:
        done = subprocess.run([program, "up", "--detach", "--nats-listen=127.0.0.1:0", f"--idle={idle}s"],
                              stdin=subprocess.DEVNULL, capture_output=True, encoding="utf-8", timeout=_STARTING,
                              check=False)
    except subprocess.TimeoutExpired:
        raise OSError(f"no mesh is ready within {_STARTING} s of its start") from None
    url = done.stdout.strip().removeprefix("ready nats=").partition(" ")[0]
    if done.returncode != 0 or not url:
        raise OSError(f"no mesh can be started: {done.stderr.strip()[-2000:]}")
    return url
