"""Installs indexes with the command mesh install, which asks an agent."""

from __future__ import annotations

import json
import logging
import os
import re
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from .. import binary
from .._core import errors
from . import finding

_log = logging.getLogger("toolmesh")
_LOGIN = re.compile(r"([^/]*://)(?:[^/]*@|[^/@]*:[^/@]*[^0-9/@][^/@]*/.*@)")  # a password may have slashes
_REPOSITORY = re.compile(r"[A-Za-z0-9-]+/[\w.-]+(@.*)?", re.ASCII)  # of GitHub, never a folder: that is ./OWNER/REPO
_FOLLOWED = 2.0  # max seconds to wait for the list, as in mesh install


def install(
    source: str | os.PathLike[str], name: str, rev: str, env: Mapping[str, str] | None,
    paths: Iterable[str | os.PathLike[str]], settings: Mapping[str, Any], session: str,
    describe: Callable[[str], dict[str, Any]],
) -> list[dict[str, Any]]:
    """Mesh.install on the mesh of these settings; returns the descriptions of the tools."""
    if isinstance(paths, (str, os.PathLike)):
        paths = [paths]
    text = os.fspath(source)
    if os.path.exists(text) and not (isinstance(source, str) and _REPOSITORY.fullmatch(text)):
        text = os.path.abspath(text)
    command = [binary.find(), "install", "--json", *(f"--path={_folder(os.fspath(one))}" for one in paths)]
    if name:
        command.append(f"--name={name}")
    if rev:
        command.append(f"--rev={rev}")
    # All users of the machine can read a command line. Environment variables would reach the command, not the index.
    said = json.dumps({"source": text, "env": dict(env or {})}, ensure_ascii=False)
    done = subprocess.run([*command, "-"], env=_environment(settings, session), input=said, capture_output=True,
                          encoding="utf-8", check=False)
    revision, tools, unavailable = "", [], []
    for line in done.stdout.splitlines():
        said = json.loads(line)
        if "error" in said:
            raise errors.rebuilt(said["error"], "")
        revision = said.get("revision", revision)
        tools += said.get("tools", ())
        unavailable += [f"{one['id']} is not served: {one['reason']}" for one in said.get("unavailable", ())]
        for warning in said.get("warnings", ()):
            _log.warning("%s: %s", shown(text), warning)
    if done.returncode != 0:
        raise errors.error("install_failed", done.stderr.strip()[-2000:], origin="caller")
    if unavailable and not tools:
        raise LookupError("\n".join(unavailable))
    for reason in unavailable:
        _log.warning("%s: %s", shown(text), reason)
    return [_described(describe, one, revision) for one in tools]


def shown(text: str) -> str:
    """A source without the credentials of its URL."""
    return _LOGIN.sub(r"\1", text, count=1)


def _folder(text: str) -> str:
    """DIR or DIR:rw as an absolute path; ~/ is the tools' own home."""
    folder, mode = (text[:-3], ":rw") if text.endswith(":rw") else (text, "")
    return (folder if folder.startswith("~/") else os.path.abspath(folder)) + mode


def _described(describe: Callable[[str], dict[str, Any]], tool: str, revision: str) -> dict[str, Any]:
    """The registry's description of a new tool. The registry follows the nodes and may have the earlier revision for a
    moment."""
    end = time.monotonic() + _FOLLOWED
    while True:
        try:
            told = describe(tool)
            if told["index"]["revision"] == revision or time.monotonic() > end:
                return told
        except errors.ToolNotFound:
            if time.monotonic() > end:
                raise
        time.sleep(0.02)


def _environment(settings: Mapping[str, Any], session: str) -> dict[str, str]:
    found = finding.environment(settings)
    found.pop("MESH_SESSION", None)
    return found if session == "default" else {**found, "MESH_SESSION": session}
