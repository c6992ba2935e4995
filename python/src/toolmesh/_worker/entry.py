"""The one way in: what the agent has an interpreter run. Each begins a process that never comes back here.

What is imported is what that process needs, and no more: a command starts none of the machinery of calls.
"""

from __future__ import annotations

TYPE_CHECKING = False  # as typing has it, without importing typing
if TYPE_CHECKING:
    from typing import NoReturn


def zygote(mode: str) -> NoReturn:
    """The root process of an index and its zygote. mode is "namespace" where it is PID 1 of its own, else "reaper"."""
    from .startup import zygote

    zygote.main(mode)


def confined() -> NoReturn:
    """A zygote that has confined itself and started the interpreter of its index's environment."""
    from .startup import zygote

    zygote.confined()


def base() -> NoReturn:
    """The process that zygotes begin as copies of."""
    from .startup import base

    base.main()


def command(mode: str) -> NoReturn:
    """The process above one run of a program. mode as for zygote."""
    from .startup import command

    command.main(mode)
