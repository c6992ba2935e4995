"""Where the mesh is: the arguments, the environment, a saved NATS context, or the mesh that mesh up left running.

Only this module reads the environment, in the order of the mesh's own commands.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pathlib
import re
import ssl
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

DEFAULT = "nats://127.0.0.1:4222"
_SEED = re.compile(r"^S[UA][A-Z2-7]{50,}$", re.MULTILINE)
_NEXT = re.compile(r",(?=\w+://)")
_LOGIN = re.compile(r"(\w+://)?.*@", re.DOTALL)
_VARIABLES = {"servers": "MESH_NATS_URL", "context": "MESH_NATS_CONTEXT", "creds": "MESH_NATS_CREDS",
              "nkey": "MESH_NATS_NKEY"}
_TLS = ("ca", "cert", "key", "tls_first")


@dataclasses.dataclass
class Found:
    """How to connect. nkey is the seed itself. With tls the connection never works without TLS, with tls_first not even
    for the server's first line."""

    servers: list[str]
    creds: str | None = None
    nkey: str | None = dataclasses.field(default=None, repr=False)
    user: str | None = None
    password: str | None = dataclasses.field(default=None, repr=False)
    token: str | None = dataclasses.field(default=None, repr=False)
    tls: ssl.SSLContext | None = None
    tls_first: bool = False


def find(
    servers: str | Sequence[str] | None = None, context: str | None = None, creds: str | None = None,
    nkey: str | None = None,
) -> Found:
    """How to connect: by the arguments, else by MESH_NATS_URL, MESH_NATS_CONTEXT, MESH_NATS_CREDS and MESH_NATS_NKEY,
    else by NATS_URL, NATS_CONTEXT, NATS_CREDS and NATS_NKEY, else to the running mesh up of this user, else to NATS's
    port of this machine. nkey and creds are files. Raises FileNotFoundError for missing files, PermissionError for
    files that others may read, ValueError for invalid settings."""
    if isinstance(servers, str):
        servers = servers.split(",")
    where = [one.strip() for one in servers or () if one.strip()]
    if not where and not context:
        if os.environ.get("MESH_NATS_URL") or not os.environ.get("MESH_NATS_CONTEXT"):
            where = [one.strip() for one in _variable("NATS_URL").split(",") if one.strip()]
        context = "" if where else _variable("NATS_CONTEXT")
    creds = creds or _variable("NATS_CREDS")
    nkey = nkey or _variable("NATS_NKEY")
    found = Found(where)
    if not where and context:
        found = _saved(context)
    records = running()
    if not found.servers:
        found.servers = [records[0]["url"]] if records else [DEFAULT]
    if creds:
        found.creds = creds
    if nkey:
        found.nkey = seed(nkey)
    elif not (found.creds or found.nkey or found.user or found.token or context) and _signs():
        # Commands of the same user have all rights; without a library for signing this program is a caller.
        for one in records:
            # All servers: another one could pass the challenge on and log in with the answer.
            if one.get("keys") and all(_same(one["url"], server) for server in found.servers):
                path = os.path.join(one["data_dir"], "keys", "admin.nk")
                if os.access(path, os.R_OK):
                    found.nkey = seed(path)
                break
    if found.creds:
        found.creds = credentials(found.creds)
    for server in found.servers:
        parts = urlsplit(server if "://" in server else "nats://" + server)
        if parts.scheme not in ("nats", "tls", "ws", "wss") or not parts.hostname:
            raise ValueError(f"{shown(found.servers)!r} is not the address of a NATS server: write nats://HOST:PORT")
        if parts.scheme == "ws" and found.tls is not None:
            raise ValueError(f"{shown(found.servers)!r} is in the clear, and the NATS context is not: write wss://HOST:PORT")
        if parts.scheme == "tls" and found.tls is None:
            found.tls = ssl.create_default_context()
    return found


def _variable(name: str) -> str:
    """That of the mesh; an empty one switches the other off."""
    return os.environ.get(f"MESH_{name}", os.environ.get(name, ""))


def environment(settings: Mapping[str, str | Sequence[str] | None]) -> dict[str, str]:
    """The environment in which the command mesh finds the mesh of these arguments of find. All users of the machine can
    read a command line, and a URL may have a password."""
    found = dict(os.environ)
    if settings["servers"] or settings["context"]:
        for name in ("MESH_NATS_URL", "MESH_NATS_CONTEXT", "NATS_URL", "NATS_CONTEXT"):
            found.pop(name, None)
    for name, value in settings.items():
        if value:
            found[_VARIABLES[name]] = value if isinstance(value, str) else ",".join(value)
    return found


def shown(servers: Sequence[str]) -> str:
    """The addresses of servers without credentials. A password with a comma spans two of them."""
    whole = _NEXT.split(",".join(servers))
    return ", ".join(_LOGIN.sub(r"\1", one, count=1) for one in whole)


def seed(path: str) -> str:
    """The seed in a key's file, which only its owner may read."""
    text = _readable(path, private=True)
    line = _SEED.search(text)
    if line is None:
        raise ValueError(f"{path} holds no seed of an nkey, a line that begins with SU")
    if not _signs():
        raise ValueError(f"the key {path} needs a library that signs: pip install 'toolmesh[keys]'")
    return line.group()


def credentials(path: str) -> str:
    """The absolute path of a file of NATS credentials."""
    path = os.path.expanduser(path)
    text = _readable(path)
    if not all(f"BEGIN {part}" in text for part in ("NATS USER JWT", "USER NKEY SEED")):
        raise ValueError(f"{path} holds no NATS credentials, a JWT and a seed: a seed alone is a key (MESH_NATS_NKEY)")
    return path


def _signs() -> bool:
    import importlib.util

    return importlib.util.find_spec("nkeys") is not None


def _readable(path: str, private: bool = False) -> str:
    file = pathlib.Path(path).expanduser()
    try:
        found = file.stat()
        text = file.read_text()
    except FileNotFoundError:
        raise FileNotFoundError(f"there is no file {path}") from None
    except OSError as failure:
        raise PermissionError(f"{path} cannot be read: {failure.strerror}") from None
    # A group may read root's file: files given to this process are like that, such as those of a Kubernetes Secret.
    others = 0o037 if os.name == "posix" and found.st_uid == 0 != os.geteuid() else 0o077
    if private and os.name == "posix" and found.st_mode & others:
        raise PermissionError(f"the key {path} cannot be used: others may read it; chmod 600 {path}")
    return text


def _saved(name: str) -> Found:
    """A context as the nats command line saves it."""
    home = os.environ.get("XDG_CONFIG_HOME") or os.path.join(os.path.expanduser("~"), ".config")
    path = pathlib.Path(home) / "nats" / "context" / f"{name}.json"
    if os.sep in name or not path.exists():
        raise FileNotFoundError(f"there is no NATS context {name!r}: nats context ls shows those that are saved")
    try:
        said: dict[str, Any] = json.loads(path.read_text())
    except ValueError as failure:
        raise ValueError(f"the NATS context {name!r} cannot be read: {failure}") from None
    return Found(
        [one.strip() for one in str(said.get("url") or DEFAULT).split(",")], said.get("creds") or None,
        seed(said["nkey"]) if said.get("nkey") else None, said.get("user") or None, said.get("password") or None,
        said.get("token") or None, _tls(name, said), bool(said.get("tls_first")))


def _tls(name: str, said: dict[str, Any]) -> ssl.SSLContext | None:
    """The TLS settings of a context; None without any. Without a CA the system's authorities are trusted."""
    if not any(said.get(key) for key in _TLS):
        return None
    files = {}
    for key in ("ca", "cert", "key"):
        if said.get(key):
            files[key] = os.path.expanduser(str(said[key]))
            _readable(files[key])
    if ("cert" in files) != ("key" in files):
        raise ValueError(f"the NATS context {name!r} has one of cert and key: they belong together")
    try:
        made = ssl.create_default_context(cafile=files.get("ca"))
    except ssl.SSLError as failure:
        raise ValueError(f"{files['ca']} holds no certificates: {failure}") from None
    if "cert" in files:
        try:
            made.load_cert_chain(files["cert"], files["key"], password=_no_password)  # else it asks the terminal
        except ssl.SSLError as failure:
            raise ValueError(f"{files['cert']} is not the certificate of {files['key']}: {failure}") from None
    return made


def _no_password() -> str:
    raise ValueError("the key of a NATS context has a password: the client takes keys without one")


def _state() -> pathlib.Path:
    state = os.environ.get("XDG_STATE_HOME", "")
    if not os.path.isabs(state):
        state = os.path.join(os.path.expanduser("~"), ".local", "state")
    return pathlib.Path(state, "toolmesh")


@contextlib.contextmanager
def starting() -> Iterator[None]:
    """A lock: one program of this user at a time starts a mesh."""
    folder = _state()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with (folder / "starting.lock").open("a") as file:
        if os.name == "posix":
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX)  # until the file is closed
        yield


def running() -> list[dict[str, Any]]:
    """Records of this user's running mesh up processes, the latest first."""
    found = []
    for path in _state().glob("*.mesh.json"):
        try:
            record = json.loads(path.read_text())
            if _lives(record["pid"], record["process"]):
                found.append(record)
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return sorted(found, key=lambda one: str(one.get("started", "")), reverse=True)


def _lives(pid: int, process: str) -> bool:
    """Whether a process is alive: process distinguishes it from a later one with the same number."""
    try:
        boot = pathlib.Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        began = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        if os.path.exists("/proc/self/stat"):
            return False
        try:
            os.kill(pid, 0)
        except OSError:
            return False
        return True
    return process == f"{boot}/{began}"


def _same(one: str, other: str) -> bool:
    """Whether two addresses are the same server of this machine."""
    ports = []
    for address in (one, other):
        parts = urlsplit(address if "://" in address else "nats://" + address)
        host = parts.hostname or ""
        if parts.username or host != "localhost" and not host.startswith("127.") and host != "::1":
            return one == other
        ports.append(parts.port or 4222)
    return ports[0] == ports[1]
