"""Errors as bodies of ERROR frames.

The body is a JSON object: code (one of the mesh's), message, started, and for a tool's own exception type, stacktrace
and details. It leaves out the worker's own frames, and paths are relative to the index: a trace shows the tool, not the
machine. Exceptions are objects of the tool: whatever their methods and attributes do, a body results, and it is
bounded.
"""

from __future__ import annotations

import errno
import json
import linecache
import os
import sys
from collections.abc import Iterator

from .. import FOLDER
from ..schemas import redaction
from ..schemas.values import Mismatch, NotSerializable
from ..state import limits
from ..wire.frames import JSON
from .errors import MeshError

_MESSAGE = 16 * 1024
_STACK = 48 * 1024
_FRAMES = 40
_CHAIN = 10  # max exceptions of a chain, and members of a group
_TOLD = 30  # max exceptions of one trace
_root = ""
_roots: list[str] = []  # as given, and without symbolic links
# Bound now: a tool may replace functions of json.
_text = json.JSONEncoder(ensure_ascii=False, default=lambda value: f"<{type(value).__name__}>").encode


def set_root(path: str) -> None:
    """Sets the folder that paths in traces are relative to."""
    global _root
    _root = os.path.join(os.path.realpath(path), "")
    _roots[:] = [_root, os.path.join(path, "")] if path else []


def cut(text: str, limit: int) -> str:
    """text, at most limit characters, without surrogates, which UTF-8 refuses."""
    if len(text) > limit:
        text = redaction.text(text)  # half a secret is found by no pattern
    if len(text) > limit:
        text = text[:limit] + f"... ({len(text) - limit} characters more)"
    return text.encode("utf-8", "replace").decode()


def body(code: str, message: str, started: bool, **more: JSON) -> bytes:
    """The body of an ERROR frame, without the empty values of more."""
    found: dict[str, JSON] = {"message": redaction.text(message)}
    found.update((key, redaction.tree(value)) for key, value in more.items() if value)
    for key, limit in (("message", _MESSAGE), ("stacktrace", _STACK)):
        if key in found:
            found[key] = cut(found[key], limit)
    found.update(code=code, started=started)
    return _text(found).encode("utf-8", "replace")


def invalid(mismatches: list[Mismatch]) -> bytes:
    """The arguments do not fit the signature."""
    first = mismatches[0]
    message = first.message if not first.pointer else f"{first.pointer}: {first.message}"
    if len(mismatches) > 1:
        message += f" (and {len(mismatches) - 1} more)"
    return body("invalid_arguments", message, False, details={"errors": [one.as_dict() for one in mismatches[:50]]})


def unserializable(failure: NotSerializable, tool: str) -> bytes:
    """The result, or an item, has no form in JSON."""
    return body("result_not_serializable", cut(str(failure), 2000), True,
                details={"path": failure.path, "type": failure.type_name, "tool": tool})


def out_of_memory() -> bytes:
    """The call used, or requested, more memory than its limit."""
    found = limits.usage()
    message = f"the call needs more memory than its limit of {found['limit']} bytes"
    return body("worker_out_of_memory", message, True, details=found)


def too_large(size: int, limit: int, what: str) -> bytes:
    """what, "result" or "item", is larger than the agent accepts."""
    return body("payload_too_large", f"the {what} has {size} bytes of JSON, more than {limit}", True,
                details={"limit": "output", "size": size, "max": limit})


def cancelled() -> bytes:
    """The call was stopped after it had begun."""
    return body("cancelled", "the call was cancelled", True)


def message_of(failure: BaseException) -> str:
    """str(failure), whatever its __str__ does."""
    try:
        text = str(failure)
        return text if type(text) is str else str.__str__(text)
    except BaseException as second:  # noqa: B036 - a broken __str__ must not end the worker
        return f"<{type_of(failure)}; its __str__ raised {type_of(second)}>"


def type_of(failure: BaseException) -> str:
    """The name of a failure's class, without its module."""
    return str(type.__getattribute__(type(failure), "__qualname__"))[:300]


def module_of(failure: BaseException) -> str:
    """The module of a failure's class."""
    try:
        return str(type.__getattribute__(type(failure), "__module__"))[:300]
    except Exception:
        return ""


def raised(failure: BaseException, tool: str) -> bytes:
    """A tool's own exception, of any class."""
    if isinstance(failure, MemoryError) and limits.memory:
        return out_of_memory()
    try:
        return _raised(failure, tool)
    except Exception as second:
        # Its attributes or its source are unreadable; the type is always known.
        return body("tool_error", message_of(failure), True, type=type_of(failure), stacktrace=type_of(failure),
                    details={"module": module_of(failure), "tool": tool, "frames": [], "causes": [],
                             "note": f"the exception cannot be shown in full: {type_of(second)}"})


def _raised(failure: BaseException, tool: str) -> bytes:
    message = message_of(failure)
    if isinstance(failure, SystemExit):
        message = f"the tool called sys.exit({message})"
    frames = _frames(failure)
    details: dict[str, JSON] = {
        "module": module_of(failure),
        "tool": tool,
        "frames": frames if len(frames) <= _FRAMES else frames[: _FRAMES // 2] + frames[-_FRAMES // 2 :],
        "causes": [{**_about(below), "relation": relation} for relation, below in _chain(failure)],  # nearest first
    }
    for one in (failure, *(below for _, below in _chain(failure))):
        if isinstance(one, MeshError):
            details["nested"] = one.as_dict()
            break
    if limits.open_files and isinstance(failure, OSError) and failure.errno == errno.EMFILE:
        details.update(limit="open_files", max=limits.open_files)
    if notes := notes_of(failure):
        details["notes"] = notes
    if members := _told(failure, [_TOLD], 0):
        details["exceptions"] = members
    return body("tool_error", message, True, type=type_of(failure), stacktrace=trace(failure), details=details)


def notes_of(failure: BaseException) -> list[str]:
    """The notes of add_note."""
    notes = getattr(failure, "__notes__", None)
    if not isinstance(notes, (list, tuple)):
        return []
    return [cut(note, 2000) for note in notes[:_CHAIN] if isinstance(note, str)]


def members_of(failure: BaseException) -> list[BaseException]:
    """The members of an exception group, also of the backport for older Pythons."""
    if not any(one.__name__ == "BaseExceptionGroup" for one in type(failure).__mro__):
        return []
    members = getattr(failure, "exceptions", ())
    return [one for one in members if isinstance(one, BaseException)] if isinstance(members, (list, tuple)) else []


def _about(failure: BaseException) -> dict[str, JSON]:
    return {"type": type_of(failure), "module": module_of(failure), "message": cut(message_of(failure), 2000)}


def _told(failure: BaseException, left: list[int], depth: int) -> list[dict[str, JSON]]:
    """The members of a group, nested ones included; left is how many more may be listed."""
    found: list[dict[str, JSON]] = []
    for one in members_of(failure)[:_CHAIN] if depth < _CHAIN else ():
        if not left[0]:
            break
        left[0] -= 1
        below = _told(one, left, depth + 1)
        found.append({**_about(one), "exceptions": below} if below else _about(one))
    return found


def _before(failure: BaseException) -> tuple[str, BaseException | None]:
    """The cause or context of failure, and which of the two it is."""
    if failure.__cause__ is not None:
        return "cause", failure.__cause__
    return "context", None if failure.__suppress_context__ else failure.__context__


def _chain(failure: BaseException) -> Iterator[tuple[str, BaseException]]:
    """The exceptions below failure, nearest first, with their relation: no cycle, at most _CHAIN."""
    seen = {id(failure)}
    relation, below = _before(failure)
    while below is not None and id(below) not in seen and len(seen) <= _CHAIN:
        seen.add(id(below))
        yield relation, below
        relation, below = _before(below)


def place(filename: str) -> tuple[str, bool]:
    """(displayed path, whether it belongs to the index)."""
    if filename.startswith("<"):
        return filename, False
    full = os.path.realpath(filename)
    if _root and full.startswith(_root):
        return full[len(_root):], True
    for base in sorted(filter(os.path.isdir, map(os.path.realpath, sys.path)), key=len, reverse=True):
        if full.startswith(base + os.sep):
            return full[len(base) + 1:], False
    return os.path.basename(full), False


def _frames(failure: BaseException) -> list[dict[str, JSON]]:
    """The frames of the tool, outermost first: file, line, function, source, in_index."""
    found: list[dict[str, JSON]] = []
    step = failure.__traceback__
    while step is not None:
        frame, line, step = step.tb_frame, step.tb_lineno, step.tb_next
        file = frame.f_code.co_filename
        if not file.startswith((FOLDER, "<frozen importlib")):
            shown, inside = place(file)
            source = linecache.getline(file, line, frame.f_globals).strip()[:300]
            found.append({
                "file": shown, "line": line, "function": frame.f_code.co_name, "source": source, "in_index": inside,
            })
    return found


def trace(failure: BaseException) -> str:
    """The traceback as Python prints it, without our frames and without secrets."""
    return redaction.text(_trace(failure, set(), 0))


def _trace(failure: BaseException, seen: set[int], depth: int) -> str:
    seen.add(id(failure))
    parts: list[str] = []
    relation, below = _before(failure)
    if below is not None and id(below) not in seen:
        words = "During handling of the above exception, another exception occurred:"
        if relation == "cause":
            words = "The above exception was the direct cause of the following exception:"
        if depth < _CHAIN and len(seen) < _TOLD:
            parts += [_trace(below, seen, depth + 1), "", words, ""]
        else:
            parts += ["... more exceptions before this one ...", ""]
    lines = [
        f'  File "{one["file"]}", line {one["line"]}, in {one["function"]}'
        + (f"\n    {one['source']}" if one["source"] else "") for one in _frames(failure)
    ]
    if len(lines) > _FRAMES:
        half = _FRAMES // 2
        lines[half:-half] = [f"  ... {len(lines) - _FRAMES} frames left out ..."]
    if lines:
        parts += ["Traceback (most recent call last):", *lines]
    message = message_of(failure)
    if isinstance(failure, SyntaxError):
        if isinstance(failure.filename, str) and failure.lineno:
            parts.append(f'  File "{place(failure.filename)[0]}", line {failure.lineno}')
            if isinstance(failure.text, str):
                parts.append(f"    {failure.text.strip()[:300]}")
        message = str(failure.msg)
    name, module = type_of(failure), module_of(failure)
    if module not in ("builtins", "__main__", ""):
        name = f"{module}.{name}"
    parts.append(cut(f"{name}: {message}" if message else name, _MESSAGE))
    parts += notes_of(failure)
    for index, inner in enumerate(members_of(failure)):
        if index == _CHAIN or depth >= _CHAIN or len(seen) >= _TOLD:
            parts.append("  --- more members of the group are left out ---")
            break
        if id(inner) not in seen:
            parts.append(f"  --- member {index + 1} of the group ---")
            parts += ["  " + line for line in _trace(inner, seen, depth + 1).splitlines()]
    return cut("\n".join(parts), 2 * _STACK)


def unreadable(failure: BaseException, what: str) -> str:
    """Why an imported tool cannot be served."""
    return cut(redaction.text(f"{what}: {type_of(failure)}: {message_of(failure)}"), 2000)


def unavailable_reason(failure: BaseException, module: str) -> str:
    """Why a module cannot be imported, for people."""
    message = message_of(failure)
    variable = _missing_variable(failure)
    if variable:
        reason = (
            f"the import of {module} needs the environment variable {variable}, which the index is not given; "
            f"install it again with --env {variable}"
        )
    elif isinstance(failure, SystemExit):
        reason = f"the import of {module} called sys.exit({message})"
    else:
        for root in _roots:
            message = message.replace(root, "")
        reason = f"the import of {module} failed: {type_of(failure)}: {cut(redaction.text(message), 2000)}"
        if isinstance(failure, ModuleNotFoundError) and failure.name:
            if module == failure.name or module.startswith(failure.name + "."):
                reason += "; the index has no such module"
            elif "." not in failure.name:
                reason += "; the package that brings it is missing in the index's dependencies"
    return redaction.text(reason)


def _missing_variable(failure: BaseException) -> str | None:
    if not isinstance(failure, KeyError) or not failure.args or not isinstance(failure.args[0], str):
        return None
    step = failure.__traceback__
    while step is not None and step.tb_next is not None:
        step = step.tb_next
    if step is not None and isinstance(step.tb_frame.f_locals.get("self"), os._Environ):
        return failure.args[0]
    return None
