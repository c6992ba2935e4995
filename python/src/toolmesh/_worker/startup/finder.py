"""The finder of imports of toolmesh, and of questions about the index's own project."""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # as typing has it, without importing typing
if TYPE_CHECKING:
    from collections.abc import Iterable
    from importlib.machinery import ModuleSpec

    from . import project


class Finder:
    """Offers toolmesh where it is not installed. At the end of sys.meta_path, so
    that an installed package comes first; that one finds the channel here. Offers
    what is known of the index's own project too, which is not installed either."""

    root = ""  # the index's folder

    @classmethod
    def find_distributions(cls, context: object) -> Iterable[project.Project]:
        name = getattr(context, "name", None)
        if not name or not cls.root:
            return ()
        from .project import find

        return find(cls.root, name)

    @staticmethod
    def find_spec(name: str, _path: object = None, _target: object = None, /) -> ModuleSpec | None:
        if name != "toolmesh":
            return None
        from importlib.machinery import ModuleSpec

        loader = _Loader()
        return ModuleSpec(name, loader, origin="the mesh", is_package=True)  # type: ignore[arg-type]  # it is one


class _Loader:
    def create_module(self, _spec: object) -> None:
        """A plain module is right."""

    def exec_module(self, module: object) -> None:
        from .. import mesh
        from ..calls import errors
        from ..schemas import files

        vars(module).update(errors.NAMES, mesh=mesh, File=files.File)
        sys.modules["toolmesh.mesh"] = mesh
