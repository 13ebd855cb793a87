"""Tells a reader why files of its snapshot are gone: erasure waits for nobody, so it gets `SnapshotErased`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from stratalog.hot.home import Home
from stratalog.schemas.errors import Corrupt, NotFound, SnapshotErased

from .installation import Installation
from .rewrite_plan import replaced


@contextlib.contextmanager
def noticing_erasure(home: Home | None, files: Sequence[str]) -> Iterator[None]:
    """Turn what the block raises for a missing file into `SnapshotErased`, where some of `files` (URLs) were erased."""
    try:
        yield
    except (NotFound, Corrupt) as error:
        if home is not None and files and _erased(home, files):
            raise SnapshotErased("files of the snapshot that was read have been erased meanwhile") from error
        raise


def _erased(home: Home, files: Sequence[str]) -> bool:
    installation = Installation(home)
    with installation.connection() as conn, installation.lake() as lake:
        return bool(replaced(conn, [lake.path_of(url) for url in files], "erasure"))
