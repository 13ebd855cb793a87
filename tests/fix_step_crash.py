"""A crash at one step of a job, inside this process: the call is cut before or after it has done its work."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Crash(BaseException):
    """Not an Exception, so that nothing on the way may handle it."""


def crashing(call: Callable[..., Any], *, after: bool, on: int = 1) -> Callable[..., Any]:
    """`call`, which crashes when it is called for the `on`th time, before or `after` that call."""
    calls = 0

    def replaced(*arguments: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == on and not after:
            raise Crash
        result = call(*arguments, **named)
        if calls == on:
            raise Crash
        return result

    return replaced
