"""A package in a package."""

from . import models
from .models import moved as re_exported

__all__ = ["models", "re_exported"]
