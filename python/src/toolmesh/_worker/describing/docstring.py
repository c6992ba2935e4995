"""Argument descriptions out of docstrings: Google, NumPy and Sphinx styles."""

from __future__ import annotations

import re

TYPE_CHECKING = False  # as typing has it, without importing typing
if TYPE_CHECKING:
    from typing import TypeAlias

    # The line at which the first section begins, and the parameters' texts.
    Sections: TypeAlias = tuple[int, dict[str, str]]

_SECTIONS = {
    "args", "arguments", "parameters", "params", "other parameters", "keyword args",
    "keyword arguments", "returns", "return", "yields", "yield", "raises", "raise",
    "attributes", "example", "examples", "note", "notes", "warning", "warnings",
    "references", "see also", "todo",
}
_PARAMETERS = {
    "args", "arguments", "parameters", "params", "other parameters", "keyword args",
    "keyword arguments",
}
_FIELDS = {"param", "parameter", "arg", "argument", "key", "keyword"}
_SPHINX = re.compile(r"^:(?P<field>[a-zA-Z]+)(?:\s+(?P<rest>[^:]*?))?\s*:(?:\s+(?P<text>.*))?$")
_GOOGLE = re.compile(r"^(?P<name>\*{0,2}\w+)\s*(?:\((?P<type>[^)]*(?:\([^)]*\)[^)]*)*)\))?\s*:\s*(?P<text>.*)$")
_NUMPY = re.compile(r"^(?P<names>\*{0,2}\w+(?:\s*,\s*\*{0,2}\w+)*)\s*(?::\s*.*)?$")


def parse(doc: str | None, attributes: bool = False) -> tuple[str, dict[str, str]]:
    """Splits a cleaned docstring (inspect.getdoc) into (description, {parameter: text}).

    The description is what stands before the first section. The first style
    that yields a section wins; text that fits none is all description. Of a
    class, with attributes, what is said of its attributes counts too.
    """
    if not doc:
        return "", {}
    lines = _lines(doc)
    for style in (_numpy, _google, _sphinx):
        found = style(lines, _PARAMETERS | {"attributes"} if attributes else _PARAMETERS)
        if found is not None:
            cut, parameters = found
            return "\n".join(lines[:cut]).strip(), parameters
    return doc.strip(), {}


def _lines(doc: str) -> list[str]:
    lines = doc.expandtabs().splitlines()
    if _title(lines[0]) and len(lines) > 1 and lines[1].strip() and _indent(lines[1]) == 0:
        # A section that begins beside the quotes: what stands below it has lost its indent.
        if not set(lines[1].strip()) <= {"-", "="}:
            lines[1:] = ["    " + line for line in lines[1:]]
    return lines


def _title(line: str) -> bool:
    return line.rstrip().endswith(":") and line.strip()[:-1].lower() in _SECTIONS


_RESULTS = {"returns", "return", "yields", "yield"}
_TYPED = re.compile(r"^[\w.]+(?:\[[^:]*\])?(?:\s*\|\s*[\w.]+(?:\[[^:]*\])?)*:\s+")  # "dict[str, int]: " before the text


def returned(doc: str) -> str:
    """What a cleaned docstring says of the result, "" when it says nothing."""
    lines = _lines(doc) if doc else []
    for at, line in enumerate(lines):
        match = _SPHINX.match(line) if line.startswith(":") else None
        if match and match["field"].lower() in _RESULTS and not match["rest"]:
            return _join([match["text"] or "", *_below(lines, at + 1)])
        if _indent(line) or line.strip().rstrip(":").lower() not in _RESULTS:
            continue
        if _title(line):
            return _TYPED.sub("", _join(_below(lines, at + 1)), count=1)
        under = lines[at + 1].strip() if at + 1 < len(lines) else ""
        if len(under) >= 3 and set(under) <= {"-", "="}:
            return _join(_below(lines, at + 3))  # after the line of the type
    return ""


def _below(lines: list[str], at: int) -> list[str]:
    """The lines from at on that are indented."""
    end = at
    while end < len(lines) and (not lines[end].strip() or _indent(lines[end]) > 0):
        end += 1
    return lines[at:end]


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _join(parts: list[str]) -> str:
    """Lines to one paragraph; empty lines are kept as paragraph breaks."""
    text: list[str] = []
    for part in parts:
        part = part.strip()
        if part:
            text.append(part)
        elif text and text[-1] != "\n":
            text.append("\n")
    return " ".join(text).replace(" \n ", "\n").strip()


def _google(lines: list[str], known: set[str]) -> Sections | None:
    first = None
    parameters: dict[str, str] = {}
    at = 0
    while at < len(lines):
        line = lines[at]
        title = line.strip()
        follows = at + 1 < len(lines) and (not lines[at + 1].strip() or _indent(lines[at + 1]) > 0)
        if not (title.endswith(":") and title[:-1].lower() in _SECTIONS and _indent(line) == 0 and follows):
            at += 1
            continue
        if first is None:
            first = at
        wanted = title[:-1].lower() in known
        at += 1
        base = None
        name: str | None = None
        text: list[str] = []
        while at < len(lines) and (not lines[at].strip() or _indent(lines[at]) > 0):
            line = lines[at]
            if line.strip() and base is None:
                base = _indent(line)
            match = _GOOGLE.match(line.strip()) if line.strip() and _indent(line) == base else None
            if wanted and match:
                if name:
                    parameters[name] = _join(text)
                name, text = match["name"].lstrip("*"), [match["text"]]
            elif name:
                text.append(line)
            at += 1
        if wanted and name:
            parameters[name] = _join(text)
    return None if first is None else (first, parameters)


def _numpy(lines: list[str], known: set[str]) -> Sections | None:
    first = None
    parameters: dict[str, str] = {}
    at = 0
    while at + 1 < len(lines):
        title, under = lines[at].strip(), lines[at + 1].strip()
        if not (title.lower() in _SECTIONS and len(under) >= 3 and set(under) <= {"-", "="}):
            at += 1
            continue
        if first is None:
            first = at
        wanted = title.lower() in known
        base = _indent(lines[at])
        at += 2
        names: list[str] = []
        text: list[str] = []
        while at < len(lines):
            line = lines[at]
            if (
                at + 1 < len(lines)
                and line.strip().lower() in _SECTIONS
                and len(lines[at + 1].strip()) >= 3
                and set(lines[at + 1].strip()) <= {"-", "="}
            ):
                break
            match = _NUMPY.match(line.strip()) if line.strip() and _indent(line) == base else None
            if wanted and match:
                for name in names:
                    parameters[name] = _join(text)
                names = [part.strip().lstrip("*") for part in match["names"].split(",")]
                text = []
            else:
                text.append(line)
            at += 1
        if wanted:
            for name in names:
                parameters[name] = _join(text)
    return None if first is None else (first, parameters)


def _sphinx(lines: list[str], known: set[str]) -> Sections | None:
    first = None
    parameters: dict[str, str] = {}
    name: str | None = None
    text: list[str] = []
    for at, line in enumerate(lines):
        match = _SPHINX.match(line.strip()) if _indent(line) == 0 else None
        if match is None:
            if name is not None:
                if _indent(line) == 0 and line.strip():
                    parameters[name] = _join(text)
                    name = None
                else:
                    text.append(line)
            continue
        if first is None:
            first = at
        if name is not None:
            parameters[name] = _join(text)
            name = None
        fields = _FIELDS | {"ivar", "var", "cvar"} if "attributes" in known else _FIELDS
        if match["field"].lower() in fields and match["rest"]:
            name, text = match["rest"].split()[-1].lstrip("*"), [match["text"] or ""]
    if name is not None:
        parameters[name] = _join(text)
    return None if first is None else (first, parameters)
