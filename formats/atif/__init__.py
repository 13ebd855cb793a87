"""ATIF, the trajectory format of Harbor (schema versions 1.0 to 1.8)."""

from .reader import Atif

__all__ = ["Atif"]
