"""Keywords with names and types, so that type checkers find misspelt ones."""

from __future__ import annotations

import typing
from collections.abc import Sequence
from datetime import datetime
from typing import Any

if typing.TYPE_CHECKING:
    from typing_extensions import Unpack as Unpack
else:
    Unpack = getattr(typing, "Unpack", typing.Optional)  # Python 3.10 has none


class Annotations(typing.TypedDict, total=False):
    """Annotations of a tool, as in tools.toml."""

    timeout: float | str
    cache_ttl: float | str
    cache_shared: bool
    idempotent: bool
    parallel_safe: bool
    resource_key: str | Sequence[str] | None
    read_only: bool
    lane_scope: str
    collect: bool
    results: str


class Options(Annotations, total=False):
    """The options of tool: annotations, and declarations that the function lacks."""

    name: str | None
    description: str | None
    metadata: dict[str, Any] | None


class Settings(typing.TypedDict, total=False):
    """The options of Host."""

    index: str | None
    session: str | None
    slots: int
    node: str | None
    servers: str | Sequence[str] | None
    context: str | None
    creds: str | None
    nkey: str | None


class OfEither(typing.TypedDict, total=False):
    """The options of calls and streams."""

    timeout: float | None
    rpc_id: str | None
    idempotent: bool
    isolation: str | None
    revision: str | None


class OfCall(OfEither, total=False):
    """The options of a call except those for its result."""

    no_cache: bool
    idempotency_key: str | None


class OfStream(OfEither, total=False):
    """OfCall, for a stream."""

    idle: float | None


class OfCollect(OfStream, total=False):
    """OfStream, for a list."""

    returns: Any


class Submission(typing.TypedDict, total=False):
    """The options of submit except the call."""

    id: str | None
    timeout: float | None
    attempts: int | None
    priority: int
    ttl: float | None
    idempotency_key: str | None
    at: datetime | None
    delay: float | None
    every: float | None
    cron: str | None
    catch_up: str | None
