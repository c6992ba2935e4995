"""What the index's own project, which is not installed, is to importlib.metadata."""

import importlib.metadata
import sys

import pytest

from toolmesh._worker.startup.finder import Finder


@pytest.mark.parametrize("text,version", [
    ("[project]\nname = 'Acme_Tools'  # ours\nversion = \"1.2\"\n", "1.2"),
    ("[tool.other]\nname = 'no'\n[project]\nversion='2'\nname='acme.tools'\n[tool.x]\nversion='3'\n", "2"),
    ("[tool.poetry]\r\nname = \"acme-tools\"\r\nversion = \"0.1.0\"\r\n", "0.1.0"),
    ("\ufeff[project]\nname = 'acme-tools'\ndynamic = ['version']\n[tool.hatch.version]\npath = 'a.py'\n", "0+unknown"),
    ("[project]\nname = 'acme-tools'\ndynamic = ['version']\n[[tool.uv]]\nname = 'x'\nversion = '9'\n", "0+unknown"),
    ("[project]\nname = \"another\"\nversion = \"1\"\n", None),
    ("[tool.ruff]\nline-length = 100\n", None),
    ("", None),
])
def test_a_project_finds_its_own_version(tmp_path, monkeypatch, text, version):
    (tmp_path / "pyproject.toml").write_bytes(text.encode())
    monkeypatch.setattr(Finder, "root", str(tmp_path))
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Finder])
    if version is None:
        with pytest.raises(importlib.metadata.PackageNotFoundError):
            importlib.metadata.version("acme-tools")
        return
    assert importlib.metadata.version("acme-tools") == version
    found = importlib.metadata.distribution("Acme.Tools")
    assert found.metadata["Version"] == version and not found.files and not found.entry_points
    assert str(found.locate_file("a.py")) == str(tmp_path / "a.py")


def test_packages_that_are_installed_come_first(tmp_path, monkeypatch):
    (tmp_path / "pyproject.toml").write_text("[project]\nname='pytest'\nversion='0.0.1'\n")
    monkeypatch.setattr(Finder, "root", str(tmp_path))
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Finder])
    assert importlib.metadata.version("pytest") == pytest.__version__
    assert list(importlib.metadata.distributions())
