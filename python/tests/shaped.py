"""Tools of one parameter, for tests of what its annotation means."""

from toolmesh._worker.schemas import schema
from toolmesh._worker.schemas.binding import Tool


class Bounds:
    """What another library may say of a value in Annotated."""

    def __init__(self, **limits):
        self.__dict__.update(limits)


def of(annotation, *default):
    """A tool that gives back its x, which has that annotation and perhaps a default."""

    def function(x):
        return x

    function.__defaults__ = default or None
    function.__annotations__["x"] = annotation
    return Tool("f", function, "sync", schema.signature(function))
