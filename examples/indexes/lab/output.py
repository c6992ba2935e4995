"""A tool that prints and logs."""

import logging
import sys

_log = logging.getLogger(__name__)


def chatty(lines: int = 2) -> int:
    """Write to stdout, stderr and the log, and return how much was said.

    Args:
        lines: How many lines to write to each.
    """
    for number in range(1, lines + 1):
        print(f"line {number} on stdout")
        print(f"line {number} on stderr", file=sys.stderr)
        _log.warning("line %d in the log", number)
    return 3 * lines
