"""Uses a package, and tries to change it."""

import acme


def answer() -> int:
    """What the package says."""
    return acme.ANSWER


def change() -> str:
    """Tries to change the package for everybody, and says how that went."""
    try:
        with open(acme.__file__, "a", encoding="utf-8") as file:
            file.write("ANSWER = 0\n")
    except OSError as error:
        return type(error).__name__
    return "changed"
