"""Texts about parameters and results in docstrings: Google, NumPy and Sphinx styles."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TypeAlias

# Its line, its title, the rest of a field's name, and its lines.
Section: TypeAlias = tuple[int, str, str, list[str]]

_PARAMETERS = {
    "args", "arguments", "parameters", "params", "other parameters", "keyword args",
    "keyword arguments",
}
_RESULTS = {"returns", "return", "yields", "yield"}
_SECTIONS = _PARAMETERS | _RESULTS | {
    "raises", "raise", "attributes", "example", "examples", "note", "notes", "warning", "warnings",
    "references", "see also", "todo",
}
_FIELDS = {"param", "parameter", "arg", "argument", "key", "keyword"}
_SPHINX = re.compile(r"^:(?P<field>[a-zA-Z]+)(?:\s+(?P<rest>[^:]*?))?\s*:(?:\s+(?P<text>.*))?$")
_GOOGLE = re.compile(r"^(?P<names>\*{0,2}\w+)\s*(?:\((?P<type>[^)]*(?:\([^)]*\)[^)]*)*)\))?\s*:\s*(?P<text>.*)$")
_NUMPY = re.compile(r"^(?P<names>\*{0,2}\w+(?:\s*,\s*\*{0,2}\w+)*)\s*(?::\s*.*)?$")
_TYPED = re.compile(r"^[\w.]+(?:\[[^:]*\])?(?:\s*\|\s*[\w.]+(?:\[[^:]*\])?)*:\s+")  # "dict[str, int]: " before the text


def parse(doc: str | None, attributes: bool = False) -> tuple[str, dict[str, str], str]:
    """Splits a cleaned docstring (inspect.getdoc) into (description, {parameter: text}, text about the result).

    The description is the text before the first section. The first style that yields a section wins; text without a
    section is all description. With attributes, the texts of a class's attributes count, too.
    """
    lines = _lines(doc) if doc else []
    sections = _PARAMETERS | {"attributes"} if attributes else _PARAMETERS
    fields = _FIELDS | {"ivar", "var", "cvar"} if attributes else _FIELDS
    for style, item in ((_numpy, _NUMPY), (_google, _GOOGLE), (_sphinx, None)):
        found = list(style(lines))
        if not found:
            continue
        parameters: dict[str, str] = {}
        result = ""
        for _, title, rest, body in found:
            if item is not None and title in sections:
                parameters.update(_items(body, item))
            elif title in fields and rest:
                parameters[rest.split()[-1].lstrip("*")] = _join(body)
            elif title in _RESULTS and not rest and not result:
                text = _join(_below(body, 1) if style is _numpy else body)  # after the line of the type
                result = _TYPED.sub("", text, count=1) if style is _google else text
        return "\n".join(lines[: found[0][0]]).strip(), parameters, result
    return (doc or "").strip(), {}, ""


def _lines(doc: str) -> list[str]:
    lines = doc.expandtabs().splitlines()
    if _title(lines[0]) and len(lines) > 1 and lines[1].strip() and not _indent(lines[1]) and not _underlines(lines[1]):
        # A section that begins in the line of the quotes: the lines below it have lost their indent.
        lines[1:] = ["    " + line for line in lines[1:]]
    return lines


def _numpy(lines: list[str]) -> Iterator[Section]:
    heads = [
        at for at, line in enumerate(lines[:-1])
        if line.strip().lower() in _SECTIONS and len(lines[at + 1].strip()) >= 3 and _underlines(lines[at + 1])
    ]
    for at, end in zip(heads, [*heads[1:], len(lines)], strict=False):
        yield at, lines[at].strip().lower(), "", lines[at + 2 : end]


def _google(lines: list[str]) -> Iterator[Section]:
    for at, line in enumerate(lines):
        if _title(line) and not _indent(line) and (body := _below(lines, at + 1)):
            yield at, line.strip()[:-1].lower(), "", body


def _sphinx(lines: list[str]) -> Iterator[Section]:
    for at, line in enumerate(lines):
        if match := _SPHINX.match(line):
            yield at, match["field"].lower(), match["rest"] or "", [match["text"] or "", *_below(lines, at + 1)]


def _items(body: list[str], item: re.Pattern[str]) -> dict[str, str]:
    """The texts of the parameters in a section."""
    base = next((_indent(line) for line in body if line.strip()), 0)
    names: list[str] = []
    texts: dict[str, list[str]] = {}
    for line in body:
        match = item.match(line.strip()) if line.strip() and _indent(line) == base else None
        if match is not None:
            names = [part.strip().lstrip("*") for part in match["names"].split(",")]
            texts.update((name, [match.groupdict().get("text", "")]) for name in names)
        else:
            for name in names:
                texts[name].append(line)
    return {name: _join(text) for name, text in texts.items()}


def _title(line: str) -> bool:
    return line.rstrip().endswith(":") and line.strip()[:-1].lower() in _SECTIONS


def _underlines(line: str) -> bool:
    return set(line.strip()) <= {"-", "="}


def _below(lines: list[str], at: int) -> list[str]:
    """The indented lines from at on."""
    end = at
    while end < len(lines) and (not lines[end].strip() or _indent(lines[end]) > 0):
        end += 1
    return lines[at:end]


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _join(parts: list[str]) -> str:
    """Lines as one paragraph; empty lines separate paragraphs."""
    text: list[str] = []
    for part in parts:
        part = part.strip()
        if part:
            text.append(part)
        elif text and text[-1] != "\n":
            text.append("\n")
    return " ".join(text).replace(" \n ", "\n").strip()
