"""Makes of the interpreter of a copy of the base process the one of an environment, as far as that can be told apart
from one that was started there."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # as typing has it, without importing typing
if TYPE_CHECKING:
    from typing import Any

    from ..wire.frames import JSON

# Modules that the base has loaded and an interpreter of its own would not have, when it
# begins to import an index. The others an index cannot replace in either.
added: set[str] = set()


class Unfit(Exception):
    """This process cannot be what an interpreter that is started there would be."""


def adopt(environment: dict[str, JSON], paths: list[str]) -> None:
    """Makes this interpreter that of an environment; runs what the environment has
    run at an interpreter's start. paths are the index's own. Raises Unfit."""
    import site
    import time

    _check(paths, added)
    executable: str = environment["executable"]
    sys.executable = executable
    if sys.version_info < (3, 11):
        sys._base_executable = executable  # type: ignore[attr-defined]
    sys.orig_argv[:] = environment["argv"]
    title(environment["argv"])
    before, finders = list(sys.path), list(sys.meta_path)
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
    _check_finders(finders)


def with_site() -> None:
    """Takes back that this interpreter began without its start-up files: what it starts is to begin with them. Copies
    run them once they are confined."""
    import ctypes
    import site  # noqa: F401 - it would run them when it is imported later

    place: int = sys.flags.__match_args__.index("no_site")
    at = id(sys.flags) + tuple.__basicsize__ + place * ctypes.sizeof(ctypes.c_void_p)
    ctypes.py_object.from_address(at).value = 0  # type: ignore[assignment]  # typeshed knows no objects in it


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
    """As an interpreter does at its start: the characters of the C locale are UTF-8, unless LC_ALL asks for it."""
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
        for name in loaded().difference(sys.builtin_module_names):
            try:
                found = finder.find_spec(name, None) is not None
            except Exception:
                found = True
            if found:
                raise Unfit(f"{finder!r} stands for the module {name}, which is loaded already")


def loaded() -> set[str]:
    """The modules that are loaded, packages by their first names."""
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


def warm_up() -> None:
    """Does what every start of an index does and leaves no trace, so that what is made at its first use is there."""
    import importlib
    import site

    from ..sandbox import levels
    from ..schemas import binding, schema

    def example(text: str, count: int = 1, rate: float | None = None, names: tuple[str, ...] = ()) -> dict[str, int]:
        """An example.

        Args:
            text: a text
        """
        return {}

    binding.Tool("example", example, schema.kind_of(example), schema.signature(example))
    levels.warm_up()
    site.PREFIXES.clear()  # of the machine's packages nothing is run
    site.main()
    importlib.import_module("colorsys")  # small, and of no use to any of us
    del sys.modules["colorsys"]


def title(argv: list[str]) -> None:
    """Says what this process is, in lists of processes: its command line. There
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
