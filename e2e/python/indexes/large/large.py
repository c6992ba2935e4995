"""Tools whose values no message carries."""

from collections.abc import Iterator

from toolmesh import mesh


def echo(text: str, times: int = 1) -> str:
    """The text, so many times."""
    return text * times


def size(text: str) -> int:
    """How long the text is."""
    return len(text)


def items(text: str, count: int) -> Iterator[str]:
    """The text, as so many items, each with its number in front."""
    for number in range(count):
        yield f"{number}{text}"


def nested(size: int) -> int:
    """How long a text is that went to another tool and came back."""
    return len(mesh.call("large.large.echo", {"text": "n" * size}))


def tasked(size: int) -> int:
    """How long a text is that a durable task was given and gave back."""
    return len(mesh.submit("large.large.echo", {"text": "t" * size}).wait(60))
