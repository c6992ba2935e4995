"""The process that indexes of one interpreter begin as copies of.

It has imported what most tools and every worker import, knows no secret, and
never runs code of an index. For each start the agent sends the descriptors that
an interpreter of its own would have been started with; the copy gets namespaces
of its own, becomes the agent's child, not ours, and goes on as the root process
of an index. So it outlives us, and the agent learns of its end as of any other's.

adopt makes of the copy's interpreter the one of an environment, as far as that
can be told apart from one that was started there.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # as typing has it, without importing typing
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any, NoReturn

    from .values import JSON

CONTROL = 3  # socket to the agent: a message for each start, a message back
UNFIT = 72  # exit status of a copy that cannot be what the index needs

# What tools import. Left out is what starts threads, reads the environment, asks
# where the environment's folder is (sysconfig), or is large and rarely wanted.
PRELOADED = (
    "argparse",
    "asyncio",
    "base64",
    "concurrent.futures.thread",
    "contextlib",
    "copy",
    "csv",
    "ctypes",
    "dataclasses",
    "datetime",
    "decimal",
    "email.message",
    "encodings.ascii",
    "enum",
    "functools",
    "glob",
    "hashlib",
    "heapq",
    "hmac",
    "http.client",
    "inspect",
    "json",
    "logging",
    "mmap",
    "pathlib",
    "queue",
    "random",
    "resource",
    "secrets",
    "shutil",
    "sqlite3",
    "ssl",
    "string",
    "subprocess",
    "tempfile",
    "textwrap",
    "threading",
    "traceback",
    "typing",
    "urllib.request",
    "uuid",
    "xml.dom.minidom",
    "xml.etree.ElementTree",
)

_CLONE_PARENT = 0x8000
_SIGCHLD = 17
_CLONE = {"x86_64": 56, "aarch64": 220}
_SET_PDEATHSIG = 1


def main() -> NoReturn:
    """Serves until the agent is gone."""
    import gc

    _preload()
    machine = os.uname().machine
    if sys.platform != "linux" or machine not in _CLONE:
        raise SystemExit(f"no process can be copied on {sys.platform} {machine}")
    from . import forking

    if forking.threads() != 1:
        raise SystemExit(f"{forking.threads()} threads run after the imports")
    import _socket
    import json

    socket = _socket.socket(fileno=CONTROL)
    socket.settimeout(None)
    _title(["toolmesh base", "python" + sys.version.split()[0]])
    gc.collect()
    gc.freeze()
    socket.send(json.dumps({"modules": len(sys.modules)}).encode())
    room = _socket.CMSG_SPACE(16 * 4)
    while True:
        data, ancillary, _, _ = socket.recvmsg(1 << 17, room, _socket.MSG_CMSG_CLOEXEC)
        if not data:
            os._exit(0)
        fds: list[int] = []
        for level, what, packed in ancillary:
            if level == _socket.SOL_SOCKET and what == _socket.SCM_RIGHTS:
                size = len(packed) - len(packed) % 4
                fds += (int.from_bytes(packed[at : at + 4], sys.byteorder) for at in range(0, size, 4))
        request: dict[str, JSON] = json.loads(data)
        pid = _copy(request["flags"] | _CLONE_PARENT | _SIGCHLD, _CLONE[machine])
        if pid == 0:
            _begin(request, fds)
        for fd in fds:
            os.close(fd)
        socket.send(b'{"pid": %d}' % pid if pid > 0 else b'{"errno": %d}' % -pid)


# Modules that we have loaded and an interpreter of its own would not have, when it
# begins to import an index. The others an index cannot replace in either.
_added: set[str] = set()


def _preload() -> None:
    global _added
    from . import forking

    forking.tame()
    import faulthandler  # noqa: F401
    import importlib
    import inspect  # noqa: F401
    import json  # noqa: F401
    import logging  # noqa: F401
    import typing  # noqa: F401

    from . import binding, failures, loop, mesh, output, redaction, schema, values, zygote  # noqa: F401

    usual = _loaded()
    from . import aloop, channel, confine, limits, strays  # noqa: F401

    for name in PRELOADED:
        try:
            importlib.import_module(name)
        except ImportError:
            pass  # this interpreter was built without it
    # What a module among them wanted for a moment, and what knows of folders.
    for name in [one for one in sys.modules if one == "sysconfig" or one.startswith("_sysconfigdata")]:
        del sys.modules[name]
    _added = _loaded() - usual
    rehearse()


def _title(argv: list[str]) -> None:
    """Says what this process is to whoever lists processes: its command line. There
    is as much room as the first one took."""
    import ctypes

    try:
        with open("/proc/self/stat", "rb") as file:
            start, end = (int(one) for one in file.read().rpartition(b")")[2].split()[45:47])
    except (OSError, ValueError):
        return
    room = end - start
    if start > 0 and room > 1:
        text = b"".join(os.fsencode(one) + b"\0" for one in argv)[: room - 1]
        ctypes.memmove(start, text.ljust(room, b"\0"), room)


def rehearse() -> None:
    """Does what every start of an index does and leaves no trace, so that what is
    made at its first use is there."""
    import importlib
    import site

    from . import binding, confine, schema

    def example(text: str, count: int = 1, rate: float | None = None, names: tuple[str, ...] = ()) -> dict[str, int]:
        """An example.

        Args:
            text: a text
        """
        return {}

    binding.Tool("example", example, schema.kind_of(example), schema.signature(example))
    confine.rehearse()
    site.main()
    importlib.import_module("colorsys")  # small, and of no use to any of us
    del sys.modules["colorsys"]


def _copy(flags: int, number: int) -> int:
    """A process id in us, 0 in the copy, or minus the error.

    The C library has no part in it, and need not: the copy is the only thread, and
    forks in the usual way before it runs anything.
    """
    import ctypes

    # One that keeps the interpreter's lock: it is the copy's too.
    libc = ctypes.PyDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    pid: int = libc.syscall(ctypes.c_long(number), ctypes.c_ulong(flags), None, None, None, None)
    return pid if pid >= 0 else -ctypes.get_errno()


def _begin(request: dict[str, JSON], fds: list[int]) -> NoReturn:
    """What the copy is from here on: the root process of an index."""
    try:
        from . import confine

        if request["death"]:
            confine._prctl(_SET_PDEATHSIG, 9)
        os.setpgid(0, 0)
        if request["mapped"]:
            _map(request["mapped"])
        if request["capabilities"] is not None:
            confine.reduce_capabilities(request["capabilities"])
        import fcntl

        high = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 16) for fd in fds]
        for at, fd in enumerate(high):
            os.dup2(fd, at + 1)  # standard output and error, control, lifeline
        os.closerange(len(high) + 1, 256)  # far more than we ever had open
        os.chdir("/")
        from . import zygote

        zygote.main(request["mode"], request["sandbox"])
    except BaseException as failure:  # noqa: B036 - the last words of this process
        try:
            os.write(2, f"the copy of the base process could not begin: {failure!r}\n".encode())
        except OSError:
            pass
    finally:
        os._exit(70)


def _map(ids: list[int]) -> None:
    """Our user namespace knows ourselves and nobody else."""
    uid, gid = ids
    for name, text in (
        ("uid_map", f"{uid} {uid} 1\n"),
        ("setgroups", "deny\n"),
        ("gid_map", f"{gid} {gid} 1\n"),
    ):
        fd = os.open(f"/proc/self/{name}", os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(fd, text.encode())
        finally:
            os.close(fd)


# In the zygote that the copy forks.


class Unfit(Exception):
    """This process cannot be what an interpreter that is started there would be."""


def adopt(environment: dict[str, JSON], paths: list[str]) -> None:
    """Makes this interpreter that of an environment; runs what the environment has
    run at an interpreter's start. paths are the index's own. Raises Unfit."""
    import site
    import time

    _check(paths, _added)
    executable: str = environment["executable"]
    bare = sys.prefix  # the base's own environment, which has nothing
    sys.path[:] = [path for path in sys.path if not path.startswith(bare + os.sep)]
    for path in [path for path in sys.path_importer_cache if path.startswith(bare + os.sep)]:
        del sys.path_importer_cache[path]
    sys.executable = executable
    sys.orig_argv[:] = environment["argv"]
    _title(environment["argv"])
    before, finders = list(sys.path), list(sys.meta_path)
    sys.prefix = sys.exec_prefix = os.path.dirname(os.path.dirname(executable))
    site.PREFIXES[:] = [sys.base_prefix, sys.base_exec_prefix]
    site.ENABLE_USER_SITE = None
    if getattr(sys, "_base_executable", "").startswith(bare + os.sep):  # it is that of the environment before 3.11
        sys._base_executable = executable  # type: ignore[attr-defined]
    logging = sys.modules.get("logging")
    if logging is not None:
        now = time.time_ns() if isinstance(logging._startTime, int) else time.time()
        logging._startTime = now  # type: ignore[attr-defined]
    site.main()
    if sys.path[: len(before)] != before:
        _check([path for path in sys.path if path not in before], _loaded())
    _check_finders(finders)


def encode_environ(environ: Mapping[bytes, bytes]) -> str:
    """These variables as set_environ takes them."""
    import base64

    return base64.b64encode(b"\0".join(name + b"=" + value for name, value in environ.items())).decode()


def set_environ(encoded: str) -> None:
    """Replaces all environment variables, and what was made of them at the start."""
    import base64
    import time

    os.environ.clear()
    for line in base64.b64decode(encoded).split(b"\0"):
        name, found, value = line.partition(b"=")
        if found and name:
            os.environb[name] = value
    if hasattr(time, "tzset"):
        time.tzset()
    _set_locale()


def _set_locale() -> None:
    """As an interpreter does at its start: the characters of the C locale are UTF-8,
    unless somebody insists."""
    import locale

    try:
        found = locale.setlocale(locale.LC_CTYPE, "")
    except locale.Error:
        found = locale.setlocale(locale.LC_CTYPE, "C")
    if found != "C" or os.environ.get("LC_ALL"):
        return
    for name in ("C.UTF-8", "C.utf8", "UTF-8"):
        try:
            locale.setlocale(locale.LC_CTYPE, name)
        except locale.Error:
            continue
        os.environ["LC_CTYPE"] = name
        return


def _check(folders: list[str], modules: set[str]) -> None:
    """Raises Unfit where one of these modules would be another one, because these
    folders come before the standard library's."""
    for folder in folders:
        try:
            names = os.listdir(folder)
        except OSError:
            continue
        for name in names:
            stem = name.partition(".")[0]
            if stem in modules and _importable(folder, name, stem):
                raise Unfit(f"{os.path.join(folder, name)} stands for a module that is loaded already")


def _check_finders(before: list[Any]) -> None:
    """The same for finders that come before those of the interpreter."""
    for finder in sys.meta_path:
        if finder in before:
            return
        for name in _loaded().difference(sys.builtin_module_names):
            try:
                found = finder.find_spec(name, None) is not None
            except Exception:
                found = True
            if found:
                raise Unfit(f"{finder!r} stands for the module {name}, which is loaded already")


def _loaded() -> set[str]:
    return {name.partition(".")[0] for name in sys.modules} - {"__main__"}


def _importable(path: str, name: str, stem: str) -> bool:
    """Whether a file of this name is a module, or a folder a package of its own."""
    if name != stem:
        return name.endswith((".py", ".pyc", ".so", ".pyd"))
    folder = os.path.join(path, name)
    try:
        return any(one.startswith("__init__.") for one in os.listdir(folder))
    except OSError:
        return False
