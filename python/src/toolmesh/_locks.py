"""Locks that are free in a forked child, even if a thread held them during the fork."""

from __future__ import annotations

import os
import threading
import typing
import weakref

_all: weakref.WeakSet[typing.Any] = weakref.WeakSet()


def lock() -> threading.Lock:
    """Such a lock. The protected state must be valid in a child even if a thread of the parent was changing it."""
    made = threading.Lock()
    _all.add(made)
    return made


def _forked() -> None:
    for one in _all:
        one._at_fork_reinit()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
