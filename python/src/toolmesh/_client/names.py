"""Names, their tokens, and a caller's subjects: docs/protocol, sections 1 and 2."""

from __future__ import annotations

import base64
import functools
import hashlib
import re

_PLAIN = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")
_HASHED = re.compile(r"x--h-[0-9a-v]{26}\Z")
_LONGEST = 64  # max characters of a token


def _encoded(raw: bytes) -> str:
    return base64.b32hexencode(raw).decode().rstrip("=").lower()


@functools.lru_cache(1024)
def token(name: str) -> str:
    """The token of a name; ValueError for an empty one, or one that is not text."""
    if not name:
        raise ValueError("a name is empty")
    if _PLAIN.match(name) and not name.startswith("x--"):
        return name
    if _HASHED.match(name):
        return name  # already a token
    try:
        raw = name.encode()
    except UnicodeEncodeError:
        raise ValueError(f"the name {name!r} is not text: it has half of a surrogate pair") from None
    text = "x--" + _encoded(raw)
    if len(name) > _LONGEST or len(text) > _LONGEST:
        text = "x--h-" + _encoded(hashlib.sha256(raw).digest()[:16])
    return text


@functools.lru_cache(1024)
def tool(tool_id: str) -> str:
    """The tokens of a tool's full id."""
    try:
        return ".".join([token(part) for part in tool_id.split(".")])
    except ValueError as failure:
        raise ValueError(f"{tool_id!r} cannot be a tool id: {failure}") from None


def hashed(tokens: str) -> bool:
    """Whether one of these tokens is a hash, so that the name cannot be recovered."""
    return "x--h-" in tokens


def again(rpc_id: str, number: int) -> str:
    """The id of a call that is repeated after its node was lost: a cancel of the call reaches it."""
    one = token(rpc_id)
    return f"{one if hashed(one) else rpc_id}.again{number}"


# Subjects.


def call(session: str, tool_id: str) -> str:
    return f"tools.{token(session)}.{tool(tool_id)}"


def node_call(node: str, session: str, tool_id: str) -> str:
    return f"mesh.node.{token(node)}.tools.{token(session)}.{tool(tool_id)}"


def task(session: str, verb: str) -> str:
    return f"mesh.task.{token(session)}.{verb}"


def batch(session: str) -> str:
    return f"mesh.batch.{token(session)}"


def control(session: str, rpc_id: str, node: str = "") -> str:
    ends = f"ctl.{token(session)}.{token(rpc_id)}"
    return f"mesh.node.{token(node)}.{ends}" if node else f"mesh.{ends}"


def live(session: str, rpc_id: str) -> str:
    return f"mesh.live.{token(session)}.{token(rpc_id)}"


def replay(session: str, rpc_id: str) -> str:
    return f"mesh.replay.{token(session)}.{token(rpc_id)}"


def payload(session: str, ident: str, node: str = "") -> str:
    ends = f"payload.{token(session)}.{token(ident)}"
    return f"mesh.node.{token(node)}.{ends}" if node else f"mesh.{ends}"


def registry(session: str, verb: str) -> str:
    return f"mesh.registry.{token(session)}.{verb}"


def heartbeat(node: str) -> str:
    return f"mesh.hb.{token(node)}"
