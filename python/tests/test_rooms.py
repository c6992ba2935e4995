"""The package's graph of imports: none of its modules imports what is made of it. internal/archtest names this test."""

from __future__ import annotations

import ast
import pathlib
import sys
import typing

if typing.TYPE_CHECKING:
    from collections.abc import Iterator

PACKAGE = pathlib.Path(__file__).resolve().parent.parent / "src" / "toolmesh"

# Each room of the worker may import those before it and itself. mesh is a module: what tools import.
ROOMS = ("wire", "state", "sandbox", "schemas", "calls", "mesh", "startup")
# What a room may import of those before it, where that is less than all.
ONLY: dict[str, set[str]] = {"wire": set(), "state": {"wire"}, "sandbox": set(), "schemas": {"wire"}}

# The same of the package: what programs import, and the rooms that it is made of. A module that is not named, of a
# framework, is above all others. Mesh.dspy_tools looks toolmesh.dspy up by its name, and hands itself over.
FLOORS = ("_worker", "_core", "_locks", "_options", "binary", "_client", "_host", "remote", "client",
          "_local", "host", "mesh", "_adapters")
# The names that the package has of its modules are looked up when they are asked for, by no module of its own but the
# topmost one, for an annotation.
FACADE = {"mesh", "__main__"}


def modules() -> dict[str, ast.Module]:
    """The dotted names of the modules below the package, "" for itself."""
    found = {}
    for path in PACKAGE.rglob("*.py"):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = ast.parse(path.read_text())
    return found


MODULES = modules()
# But for site, the package as tools import it: that imports the worker by its private name.
WORKER = [name for name in MODULES if name.partition(".")[0] == "_worker" and not name.startswith("_worker.site")]


def imported(name: str) -> Iterator[str]:
    """What a module imports anywhere in its text, for type checkers too: ours by their names here, others with a
    leading "/"."""
    package = name if (PACKAGE / name.replace(".", "/")).is_dir() else name.rpartition(".")[0]
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


def test_each_room_of_the_worker_imports_only_those_before_it():
    for name in WORKER:
        room = name.partition(".")[2].partition(".")[0]
        for other in imported(name):
            home, _, to = other.partition(".")
            to = to.partition(".")[0]
            if other.startswith("/") or home == "_worker" and to in ("", room):
                continue
            assert home == "_worker", f"{name} imports {other}: the worker is on its own"
            assert room, "the package itself imports nothing of the worker"
            assert ROOMS.index(to) < ROOMS.index(room), f"{name} imports {other}: {to} does not stand before {room}"
            assert to in ONLY.get(room, ROOMS), f"{name} imports {other}: {room} may import only {ONLY[room] or 'none'}"


def test_each_floor_imports_only_those_below_it():
    def floor(name: str) -> int:
        top = name.partition(".")[0]
        return FLOORS.index(top) if top in FLOORS else len(FLOORS)

    for name in MODULES:
        for other in imported(name) if name else ():
            assert other not in ("", "/toolmesh") or name in FACADE, f"{name} imports the package's own names"
            if not other.startswith("/") and other:
                assert floor(other) <= floor(name), f"{name} imports {other}, which stands above it"


def test_there_are_no_circles():
    edges = {name: {one for one in imported(name) if one in MODULES and one} - {name} for name in MODULES if name}
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
    for name in WORKER:
        for one in imported(name):
            top = one[1:].partition(".")[0]
            known = top in sys.stdlib_module_names or top in ("_typeshed", "annotationlib")  # the latter since 3.14
            assert not one.startswith("/") or known, f"{name} imports {one[1:]}"


def test_each_room_has_a_docstring():
    rooms = {name.split(".")[1] for name in WORKER if "." in name}
    assert rooms == set(ROOMS)
    for room in ["_client", "_host", "_adapters", *(f"_worker.{one}" for one in rooms - {"mesh"})]:
        said = ast.get_docstring(MODULES[room]) or ""
        assert "never" in said, room
        assert len(MODULES[room].body) == 1, f"{room}/__init__.py holds its docstring and nothing else"
