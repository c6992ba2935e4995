"""The finder for imports of toolmesh, and for metadata of the index's own project."""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # as typing has it, without importing typing
if TYPE_CHECKING:
    from collections.abc import Iterable
    from importlib.machinery import ModuleSpec

    from . import project


class Finder:
    """Provides toolmesh where it is not installed. It is the last of sys.meta_path, so that an installed package wins;
    that one finds the channel here. It also provides the metadata of the index's own project, which is not
    installed."""

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
        """The default module is used."""

    def exec_module(self, module: object) -> None:
        from .. import mesh
        from ..calls import errors
        from ..schemas import files

        vars(module).update(errors.NAMES, mesh=mesh, File=files.File)
        sys.modules["toolmesh.mesh"] = mesh
