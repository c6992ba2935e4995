"""The metadata of the index's own project, for importlib.metadata.

The project is not installed: its modules are imported from its folder. Packages ask for their own version at import and
would fail.
"""

from __future__ import annotations

import importlib.metadata
import os
import pathlib
import re
from collections.abc import Iterator

# Python 3.10 has no TOML parser. A line begins a table, or has one of its texts.
_LINE = re.compile(
    r"""^\s*(?:\[+\s*([^]\n]+?)\s*\]+|(name|version)\s*=\s*(?:"([^"\\]*)"|'([^']*)'))\s*(?:#.*)?$""", re.MULTILINE
)
_UNKNOWN = "0+unknown"  # of a version that only the build knows


class Project(importlib.metadata.Distribution):
    """The project of a folder, as its pyproject.toml describes it."""

    def __init__(self, folder: str, name: str, version: str) -> None:
        self._folder = folder
        self._text = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"

    def read_text(self, filename: str) -> str | None:
        """Only one of the files of an installed package exists."""
        return self._text if filename == "METADATA" else None

    def locate_file(self, path: str | os.PathLike[str]) -> pathlib.Path:
        return pathlib.Path(self._folder, path)


def find(folder: str, wanted: str) -> Iterator[Project]:
    """The project of a folder if wanted is its name."""
    try:
        with open(os.path.join(folder, "pyproject.toml"), encoding="utf-8-sig") as file:
            text = file.read()
    except (OSError, ValueError):
        return
    table, said = "", dict[str, str]()
    for begins, key, quoted, plain in _LINE.findall(text):
        if begins:
            table = begins
        elif table in ("project", "tool.poetry"):
            said.setdefault(key, quoted or plain)
    if "name" in said and _plain(said["name"]) == _plain(wanted):
        yield Project(folder, said["name"], said.get("version", _UNKNOWN))


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
