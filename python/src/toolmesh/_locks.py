"""Locks that are free in a child which the program forks, also if a thread held them at that moment."""

from __future__ import annotations

import os
import threading
import typing
import weakref

_all: weakref.WeakSet[typing.Any] = weakref.WeakSet()


def lock() -> threading.Lock:
    """Such a lock, for what makes sense in a child even where a thread of the parent was about to change it."""
    made = threading.Lock()
    _all.add(made)
    return made


def _forked() -> None:
    for one in _all:
        one._at_fork_reinit()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
