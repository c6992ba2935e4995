"""The only entrance: the functions that the agent has an interpreter run. None of them returns.

Each imports only the modules of its process: a command loads none of the machinery of calls.
"""

from __future__ import annotations

TYPE_CHECKING = False  # as typing has it, without importing typing
if TYPE_CHECKING:
    from typing import NoReturn


def zygote(mode: str) -> NoReturn:
    """The root process of an index and its zygote. mode is "namespace" for PID 1 of its own namespace, else
    "reaper"."""
    from .startup import zygote

    zygote.main(mode)


def confined() -> NoReturn:
    """A confined zygote, in the interpreter of its index's environment."""
    from .startup import zygote

    zygote.confined()


def base() -> NoReturn:
    """The process that zygotes are copies of."""
    from .startup import base

    base.main()


def command(mode: str) -> NoReturn:
    """The process above one execution of a program. mode as for zygote."""
    from .startup import command

    command.main(mode)
