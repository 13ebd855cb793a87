"""Our errors as Dagster shows them: message, code and hint in the UI; tried again only where that can help."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import dagster as dg

from stratalog.schemas.errors import MissingExtra, Retryable, StratalogError

retries = dg.RetryPolicy(max_retries=3, delay=10, backoff=dg.Backoff.EXPONENTIAL, jitter=dg.Jitter.PLUS_MINUS)
"""After about 10, 30 and 70 seconds: longer than a restart of Postgres takes."""


@contextmanager
def failing() -> Iterator[None]:
    """Turn errors into a `dagster.Failure` that has them as its cause; only a `Retryable` one is tried again."""
    try:
        yield
    except StratalogError as error:
        raise dg.Failure(
            error.message,
            metadata={"code": error.code, "hint": error.hint},
            allow_retries=isinstance(error, Retryable),
        ) from error
    except dg.Failure:
        raise
    except Exception as error:
        # A bug, which trying again does not mend.
        raise dg.Failure(f"{type(error).__name__}: {error}", allow_retries=False) from error


def translated(failure: dg.UserFailureData) -> StratalogError:
    """The error that `failing` has turned into this failure, made again from what Dagster has stored of it."""
    stored = {name: str(value.value) for name, value in failure.metadata.items()}
    kinds = [kind for kind in _kinds(StratalogError) if kind.code == stored.get("code")]
    return (kinds or [StratalogError])[0](failure.description or "the step failed", hint=stored.get("hint"))


def _kinds(base: type[StratalogError]) -> list[type[StratalogError]]:
    found = [base]
    for kind in base.__subclasses__():
        if kind is not MissingExtra:
            found += _kinds(kind)
    return found
