"""The sources of an Index's tools, and their installation on the mesh."""

from __future__ import annotations

import hashlib
import os
import platform
import re
from collections.abc import Mapping, Sequence

from .._client.installing import shown
from .._core import errors
from .._local import ask, local
from .._locks import lock
from ..client import Mesh
from ..remote import RemoteTool

_REPOSITORY = re.compile(r"([\w.-]+/[\w.-]+)(?:[:@](.+))?", re.ASCII)
_PLAIN = re.compile(r"[^A-Za-z0-9_]+")
_RELATIVE = re.compile(r"\.\.?/[^:\s]*\Z")
_READABLE = 48  # max characters of a source in the name of its index

_lock = lock()
_running: list[Mesh] = []  # the mesh of all Index objects without one


def mesh_here() -> Mesh:
    """The running mesh, else a new one."""
    with _lock:
        if not _running:
            mesh = Mesh(name="stores")
            try:
                ask(mesh)
            except errors.Unavailable:
                mesh.close()
                mesh = local()
            _running.append(mesh)
        return _running[0]


class Source:
    """An entry of Index(tools), and the name of its index on the mesh. Two revisions of a repository are two
    indexes."""

    def __init__(self, text: str | os.PathLike[str]) -> None:
        self.text = os.fspath(text)
        self.shown = shown(self.text)
        self.folder = os.path.exists(self.text)
        if not self.folder and not isinstance(text, str):
            raise FileNotFoundError(f"{self.shown} does not exist")
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
            readable = self.shown.rpartition("/")[2]
        else:
            self.install, self.index = "", self.text  # an index of the mesh
            return
        readable = _PLAIN.sub("-", readable).strip("-_")[:_READABLE]
        # A folder of this machine: on another one the same path is another folder.
        machine = platform.node() if self.folder else ""
        # Another token, or none, makes no other source; another user of ssh does.
        source = shown(self.install) if self.install.lower().startswith("http") else self.install
        unlike = hashlib.sha256(f"{machine}\0{source}\0{self.rev}".encode()).hexdigest()[:8]
        self.index = f"{readable or 'index'}-{unlike}"

    def tools(
        self, mesh: Mesh, variables: Mapping[str, str], paths: Sequence[str | os.PathLike[str]], again: bool
    ) -> list[RemoteTool]:
        """Installs it and returns its tools: those of a folder in the order of the manifest, others by their ids. An
        installed repository is installed again only with variables, with paths or if again is true."""
        for name, value in variables.items():
            if not isinstance(value, str) or not isinstance(name, str):
                raise ValueError(f"{name!r} cannot be a variable of an index")
        if not self.install and (variables or paths):
            raise ValueError("variables and paths are given to an index where it is installed")
        found = []
        if not self.install or not (self.folder or variables or paths or again):
            found = mesh.tools(self.index + ".")
        if not found and not self.install:
            raise LookupError(f"the mesh has no index {self.index}; a folder is written ./{self.index}, "
                              "a repository owner/repo")
        if not found:
            # As in stores, ./data is the caller's folder.
            env = {name: os.path.abspath(one) if _RELATIVE.match(one) else one for name, one in variables.items()}
            found = mesh.install(self.install, name=self.index, rev=self.rev, env=env, paths=paths)
        return found if self.folder else sorted(found, key=lambda one: one.id)
