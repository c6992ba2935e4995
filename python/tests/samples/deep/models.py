"""Classes that other modules import."""

import datetime
from dataclasses import dataclass
from enum import Enum
from typing import Optional

__all__ = ["Shade", "Size", "Alias", "datetime"]

Alias = Optional[datetime.date]


class Shade(Enum):
    DARK = 1
    LIGHT = 2


@dataclass
class Size:
    width: int = 1
    shade: Shade = Shade.DARK
    since: Alias = None


def moved(a: Size, b: "Shade" = Shade.LIGHT) -> Alias:
    """Defined here, called there."""
