"""The worker's packages: which imports which. internal/archtest holds the Go side and names this test."""

from __future__ import annotations

import ast
import pathlib
import sys
import typing

if typing.TYPE_CHECKING:
    from collections.abc import Iterator

WORKER = pathlib.Path(__file__).resolve().parent.parent / "src" / "toolmesh" / "_worker"

# Each may import those before it and itself. entry and mesh are modules: the way in, and what tools import.
ROOMS = ("wire", "state", "confining", "describing", "calling", "mesh", "starting", "entry")
# What a room may import of those before it, where that is less than all.
ONLY: dict[str, set[str]] = {"wire": set(), "state": {"wire"}, "confining": set(), "describing": {"wire"}}


def modules() -> dict[str, ast.Module]:
    """The dotted names of the worker's modules, as it imports them, "" for the package itself."""
    found = {}
    for path in WORKER.rglob("*.py"):
        parts = path.relative_to(WORKER).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = ast.parse(path.read_text())
    return found


MODULES = modules()


def imported(name: str) -> Iterator[str]:
    """What a module imports anywhere in its text, for type checkers too: the worker's by their names here, others with
    a leading "/"."""
    package = name if (WORKER / name.replace(".", "/")).is_dir() else name.rpartition(".")[0]
    for node in ast.walk(MODULES[name]):
        if isinstance(node, ast.Import):
            yield from ("/" + one.name for one in node.names)
        elif isinstance(node, ast.ImportFrom):
            if not node.level:
                yield f"/{node.module}"
                continue
            base = package.split(".")[: len(package.split(".")) - node.level + 1] if package else []
            home = ".".join([*base, *(node.module or "").split(".")]).strip(".")
            for one in node.names:
                inner = f"{home}.{one.name}".strip(".")
                yield inner if inner in MODULES else home


def test_each_room_imports_only_those_before_it():
    for name in MODULES:
        room = name.partition(".")[0]
        for other in imported(name):
            to = other.partition(".")[0]
            if other.startswith("/") or to in ("", room):
                continue
            assert room, "the package itself imports nothing of the worker"
            assert ROOMS.index(to) < ROOMS.index(room), f"{name} imports {other}: {to} does not stand before {room}"
            assert to in ONLY.get(room, ROOMS), f"{name} imports {other}: {room} may import only {ONLY[room] or 'none'}"


def test_there_are_no_circles():
    edges = {name: {one for one in imported(name) if one in MODULES and one} - {name} for name in MODULES}
    done: set[str] = set()

    def follow(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, "a circle of imports: " + " -> ".join([*path[path.index(name):], name])
        if name not in done:
            for one in sorted(edges[name]):
                follow(one, (*path, name))
            done.add(name)

    for name in edges:
        follow(name, ())


def test_the_worker_uses_the_standard_library_alone():
    for name in MODULES:
        for one in imported(name):
            top = one[1:].partition(".")[0]
            known = top in sys.stdlib_module_names or top in ("_typeshed", "annotationlib")  # the latter since 3.14
            assert not one.startswith("/") or known, f"{name} imports {one[1:]}"


def test_each_room_says_what_it_is_for_and_what_it_never_does():
    rooms = {name.partition(".")[0] for name in MODULES if name}
    assert rooms == set(ROOMS)
    for room in rooms - {"entry", "mesh"}:
        said = ast.get_docstring(MODULES[room]) or ""
        assert "never" in said, room
        assert len(MODULES[room].body) == 1, f"{room}/__init__.py holds its docstring and nothing else"
