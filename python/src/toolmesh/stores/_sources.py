"""Where an Index has its tools from, and how they get onto the mesh."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import platform
import re
import subprocess
import time
import typing

from .. import binary
from .._background import background as _background
from .._core import errors
from .._locks import lock
from ..client import Mesh
from ..remote import RemoteTool

if typing.TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

logger = logging.getLogger(__package__)

_REPOSITORY = re.compile(r"([\w.-]+/[\w.-]+)(?:[:@](.+))?", re.ASCII)
_PLAIN = re.compile(r"[^A-Za-z0-9_]+")
_LOGIN = re.compile(r"([^/]*://)(?:[^/]*@|[^/@]*:[^/@]*[^0-9/@][^/@]*/.*@)")  # a password may have slashes
_SETTINGS = {"servers": "MESH_NATS_URL", "context": "MESH_NATS_CONTEXT", "creds": "MESH_NATS_CREDS",
             "nkey": "MESH_NATS_NKEY"}
_FOLLOWED = 2.0  # seconds, as long as mesh install waits for the list
_READABLE = 48  # characters of a source that its index is called by

_lock = lock()
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
            self.install, self.index = "", self.text  # an index that the mesh has
            return
        readable = _PLAIN.sub("-", readable).strip("-_")[:_READABLE]
        # A folder is one of this machine: on another the same path is somebody else's.
        machine = platform.node() if self.folder else ""
        # Another token, or none, makes no other source; another user of ssh does.
        source = shown(self.install) if self.install.lower().startswith("http") else self.install
        unlike = hashlib.sha256(f"{machine}\0{source}\0{self.rev}".encode()).hexdigest()[:8]
        self.index = f"{readable or 'index'}-{unlike}"

    def tools(self, mesh: Mesh, variables: Mapping[str, str], again: bool) -> list[RemoteTool]:
        """Its tools, which the mesh serves from then on: those of a folder in the order of
        the manifest, others by their ids. What has been installed of a repository stays
        as it is, unless variables are given or again is true."""
        for name, value in variables.items():
            if not isinstance(value, str) or not isinstance(name, str):
                raise ValueError(f"{name!r} cannot be a variable of an index")
        if not self.install and variables:
            raise ValueError("variables are given to an index where it is installed")
        found = []
        if not self.install or not (self.folder or variables or again):
            found = mesh.tools(self.index + ".")
        if not found and not self.install:
            raise LookupError(f"the mesh has no index {self.index}; a folder is written ./{self.index}, "
                              "a repository owner/repo")
        if not found:
            found = self._installed(mesh, variables)
        return found if self.folder else sorted(found, key=lambda one: one.id)

    def _installed(self, mesh: Mesh, variables: Mapping[str, str]) -> list[RemoteTool]:
        command = [binary.find(), "install", f"--name={self.index}", "--json"]
        if self.rev:
            command.append(f"--rev={self.rev}")
        # All users of the machine can read a command line, and the variables are the index's, not the command's.
        said = json.dumps({"source": self.install, "env": dict(variables)}, ensure_ascii=False)
        done = subprocess.run([*command, "-"], env=_environment(mesh), input=said, capture_output=True,
                              encoding="utf-8", check=False)
        revision, tools, unavailable = "", [], []
        for line in done.stdout.splitlines():
            said = json.loads(line)
            if "error" in said:
                raise errors.rebuilt(said["error"], "")
            revision = said.get("revision", revision)
            tools += said.get("tools", ())
            unavailable += [f"{one['id']} is not served: {one['reason']}" for one in said.get("unavailable", ())]
            for text in said.get("warnings", ()):
                logger.warning("%s: %s", self.shown, text)
        if done.returncode != 0:
            raise errors.error("install_failed", done.stderr.strip()[-2000:], origin="caller")
        if unavailable and not tools:
            raise LookupError("\n".join(unavailable))
        for text in unavailable:
            logger.warning("%s: %s", self.shown, text)
        return [RemoteTool(mesh, _described(mesh, one, revision)) for one in tools]


def shown(text: str) -> str:
    """A source without the credentials of its URL."""
    return _LOGIN.sub(r"\1", text, count=1)


def _described(mesh: Mesh, tool: str, revision: str) -> dict[str, Any]:
    """What the registry says of a tool that has just been installed. Its members follow
    what nodes publish: one may know the revision before for a moment."""
    end = time.monotonic() + _FOLLOWED
    while True:
        try:
            told = ask(mesh, "describe", {"tool": tool})
            if told["index"]["revision"] == revision or time.monotonic() > end:
                return told
        except errors.ToolNotFound:
            if time.monotonic() > end:
                raise
        time.sleep(0.02)


def _environment(mesh: Mesh) -> dict[str, str]:
    """The environment in which mesh finds the mesh that is meant. Not its command line,
    which everybody on the machine reads: a URL may have a password."""
    said = {name: value for name, value in mesh._links._settings.items() if value is not None}
    replaced = ["MESH_SESSION"]
    if "servers" in said or "context" in said:
        replaced += ["MESH_NATS_URL", "MESH_NATS_CONTEXT", "NATS_URL", "NATS_CONTEXT"]
    found = {name: value for name, value in os.environ.items() if name not in replaced}
    for name, variable in _SETTINGS.items():
        if name in said:
            found[variable] = said[name] if isinstance(said[name], str) else ",".join(said[name])
    if mesh._session:
        found["MESH_SESSION"] = mesh._session
    return found
