"""Turns the interpreter of a copy of the base process into that of an environment, as if it had been started there."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # as typing has it, without importing typing
if TYPE_CHECKING:
    from ..wire.frames import JSON

# Modules that the base has loaded and a fresh interpreter would not have before it imports an index. An index cannot
# replace the other modules in a fresh one either.
added: set[str] = set()


class Unfit(Exception):
    """This process cannot become the interpreter of that environment."""


def adopt(environment: dict[str, JSON], paths: list[str]) -> None:
    """Makes this interpreter that of an environment and runs the environment's start-up files. paths are the index's
    own. Raises Unfit."""
    import site
    import time

    _check(paths, added)
    executable: str = environment["executable"]
    sys.executable = executable
    if sys.version_info < (3, 11):
        sys._base_executable = executable  # type: ignore[attr-defined]
    sys.orig_argv[:] = environment["argv"]
    title(environment["argv"])
    before = list(sys.path)
    sys.prefix = sys.exec_prefix = os.path.dirname(os.path.dirname(executable))
    site.PREFIXES[:] = [sys.base_prefix, sys.base_exec_prefix]
    site.ENABLE_USER_SITE = None
    logging = sys.modules.get("logging")
    if logging is not None:
        now = time.time_ns() if isinstance(logging._startTime, int) else time.time()
        logging._startTime = now  # type: ignore[attr-defined]
    site.main()
    if sys.path[: len(before)] != before:
        _check([path for path in sys.path if path not in before], loaded())


def with_site() -> None:
    """Undoes the start without start-up files: programs that this interpreter starts must run theirs. Copies run theirs
    once they are confined."""
    import ctypes
    import site  # noqa: F401 - it would run them when it is imported later

    place: int = sys.flags.__match_args__.index("no_site")
    at = id(sys.flags) + tuple.__basicsize__ + place * ctypes.sizeof(ctypes.c_void_p)
    ctypes.py_object.from_address(at).value = 0  # type: ignore[assignment]  # typeshed knows no objects in it


def set_environ(encoded: str) -> None:
    """Replaces all environment variables and their cached values."""
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
    """Sets the locale as a fresh interpreter does: the C locale uses UTF-8, unless LC_ALL is set."""
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
    """Raises Unfit if one of these modules would be another one, as these folders come before the standard
    library's."""
    from importlib.machinery import PathFinder

    for folder in folders:
        try:
            names = {name.partition(".")[0] for name in os.listdir(folder)}
        except OSError:
            continue
        for name in names & modules:
            found = PathFinder.find_spec(name, [folder])
            if found is not None and found.origin is not None:  # a folder that is no package has none
                raise Unfit(f"{found.origin} stands for a module that is loaded already")


def loaded() -> set[str]:
    """The loaded modules, packages by their first names."""
    return {name.partition(".")[0] for name in sys.modules} - {"__main__"}


def title(argv: list[str]) -> None:
    """Sets the command line in lists of processes, within the length of the original one."""
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
