"""The hot tier: an embedded, durable log with group commit."""

from .home import Home
from .log import HotLog, NewEvent, Receipt

__all__ = ["Home", "HotLog", "NewEvent", "Receipt"]
