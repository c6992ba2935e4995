"""The finder of the metadata of the index's own project."""

from __future__ import annotations

TYPE_CHECKING = False  # as typing has it, without importing typing
if TYPE_CHECKING:
    from collections.abc import Iterable

    from . import project


class Finder:
    """Provides the metadata of the index's own project, which is not installed. It is the last of sys.meta_path."""

    root = ""  # the index's folder

    @classmethod
    def find_distributions(cls, context: object) -> Iterable[project.Project]:
        name = getattr(context, "name", None)
        if not name or not cls.root:
            return ()
        from .project import find

        return find(cls.root, name)

    @staticmethod
    def find_spec(_name: str, _path: object = None, _target: object = None, /) -> None:
        """It has no modules."""
