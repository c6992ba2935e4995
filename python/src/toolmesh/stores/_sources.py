"""Where an Index has its tools from, and how they get onto the mesh."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import subprocess
import threading
import typing

from .. import binary
from .._core import errors
from ..client import Mesh, _background

if typing.TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

logger = logging.getLogger(__package__)

_REPOSITORY = re.compile(r"([\w.-]+/[\w.-]+)(?:[:@](.+))?", re.ASCII)
_PLAIN = re.compile(r"[^A-Za-z0-9_]+")
_READABLE = 48  # characters of a source that its index is called by

_lock = threading.Lock()
_running: list[Mesh] = []  # the mesh of all Index objects that are given none


def mesh_here() -> Mesh:
    """The mesh that runs, else one that is started."""
    with _lock:
        if not _running:
            mesh = Mesh(name="stores")
            try:
                ask(mesh, "list", {"limit": 1})
            except errors.Unavailable:
                mesh.close()
                mesh = binary.local()
            _running.append(mesh)
        return _running[0]


def ask(mesh: Mesh, verb: str, question: dict[str, Any]) -> dict[str, Any]:
    """What the registry answers."""
    return _background.run(lambda: mesh._links.here().registry(mesh.session_name, verb, question))


class Source:
    """One entry of Index(tools): what mesh install takes, and the name of the index
    there. Two revisions of a repository are two indexes."""

    def __init__(self, text: str | os.PathLike[str]) -> None:
        self.text = os.fspath(text)
        self.folder = os.path.exists(self.text)
        if not self.folder and not isinstance(text, str):
            raise FileNotFoundError(f"{self.text} does not exist")
        self.rev = ""
        self.install = self.text
        repository = _REPOSITORY.fullmatch(self.text)
        if self.folder:
            self.install = os.path.realpath(self.text)
            readable = os.path.basename(self.install).removesuffix(".py")
        elif repository is not None:
            self.install, self.rev = repository[1], repository[2] or ""
            readable = f"{self.install}-{self.rev}"
        elif "/" in self.text or os.sep in self.text:
            readable = self.text.rpartition("/")[2]
        else:
            self.install, self.index = "", self.text  # an index that the mesh has
            return
        readable = _PLAIN.sub("-", readable).strip("-_")[:_READABLE]
        unlike = hashlib.sha256(f"{self.install}\0{self.rev}".encode()).hexdigest()[:8]
        self.index = f"{readable or 'index'}-{unlike}"

    def ids(self, mesh: Mesh, variables: Mapping[str, str], again: bool) -> list[str]:
        """The full ids of its tools, which the mesh serves from then on. What has been
        installed of a repository stays as it is, unless variables are given or again
        is true."""
        if not self.install or not (self.folder or variables or again):
            found = _served(mesh, self.index)
            if found or not self.install:
                if not found:
                    raise LookupError(f"the mesh has no index {self.index}; a folder is written ./{self.index}, "
                                      "a repository owner/repo")
                return found
        return self._installed(mesh, variables)

    def _installed(self, mesh: Mesh, variables: Mapping[str, str]) -> list[str]:
        command = [binary.find(), "install", self.install, "--name", self.index, "--json"]
        if self.rev:
            command.append(f"--rev={self.rev}")
        # The values are in the command's environment: everybody on the machine reads command lines.
        command += [f"--env={_variable(name)}" for name in variables]
        for setting, value in mesh._links._settings.items():
            if value is not None:
                flag = "server" if setting == "servers" else setting
                command.append(f"--{flag}={value if isinstance(value, str) else ','.join(value)}")
        if mesh._session:
            command.append(f"--session={mesh._session}")
        done = subprocess.run(command, env={**os.environ, **variables}, stdin=subprocess.DEVNULL, capture_output=True,
                              text=True, check=False)
        tools: list[str] = []
        unavailable: list[str] = []
        for line in done.stdout.splitlines():
            said = json.loads(line)
            if "error" in said:
                raise errors.rebuilt(said["error"], "")
            tools += said.get("tools", ())
            unavailable += [f"{one['id']} is not served: {one['reason']}" for one in said.get("unavailable", ())]
            for text in said.get("warnings", ()):
                logger.warning("%s: %s", self.text, text)
        if done.returncode != 0:
            raise errors.error("install_failed", done.stderr.strip()[-2000:], origin="caller")
        if unavailable and not tools:
            raise LookupError("\n".join(unavailable))
        for text in unavailable:
            logger.warning("%s: %s", self.text, text)
        return tools


def _variable(name: str) -> str:
    # They are the command's environment, too, which must not mean another mesh by them.
    if not isinstance(name, str) or "=" in name or name.startswith(("MESH_", "NATS_")):
        raise ValueError(f"{name!r} cannot be a variable of an index")
    return name


def _served(mesh: Mesh, index: str) -> list[str]:
    return [tool.id for tool in mesh.tools(index + ".")]
