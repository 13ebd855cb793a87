"""The lake: where the Parquet files of the cold table lie.

    <url>/events/tenant=T/date=YYYY-MM-DD/model=SLUG/<name>.parquet

Files are immutable. Each is written in the scratch folder and appears whole and durable under its name, or not at all.
What a killed writer leaves is scratch that `clean_partial` removes, or a published file that no snapshot names.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

from stratalog.schemas.errors import Invalid
from stratalog.schemas.ids import check_tenant, model_slug

from .storage import Entry, Storage, Version, check_path, open_storage

EVENTS_FOLDER = "events"


class Lake:
    """Files below `url`, a local folder or an object store; see `storage.Storage` for what every call may raise.

    A file is named by its path below the root or by its absolute URL.
    """

    def __init__(self, url: str, storage_options: Mapping[str, str] | None = None) -> None:
        self._storage = open_storage(url, storage_options)
        self.storage_options = self._storage.arguments
        self.url = self._storage.url
        self.is_local = self._storage.is_local

    def __enter__(self) -> Lake:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def storage(self) -> Storage:
        """Where the files lie."""
        return self._storage

    @staticmethod
    def folder_of(tenant: str, date: dt.date, model: str) -> str:
        """The folder of a tenant, a start day and a model (its full name)."""
        return f"{EVENTS_FOLDER}/tenant={check_tenant(tenant)}/date={date.isoformat()}/model={model_slug(model)}"

    def url_of(self, path: str) -> str:
        """The absolute URL of a file; nothing in it is percent-encoded."""
        return f"{self.url}/{check_path(path)}"

    def path_of(self, place: str) -> str:
        """The path below the root of a path or of a URL; raises `Invalid` for a URL that lies elsewhere."""
        if "://" not in place:
            return check_path(place)
        if not place.startswith(f"{self.url}/"):
            raise Invalid(
                f"{place} is not in {self.url}",
                hint="homes that share a Postgres share the cold tier too: set cold.url to where its files are",
            )
        return check_path(place[len(self.url) + 1 :])

    def scratch(self) -> Path:
        """A local folder, private to this object, to write files in that `publish` takes."""
        return self._storage.scratch()

    def publish(self, source: Path, path: str) -> str:
        """Move a closed local file to `path`, durably; returns its URL. On an error the source is still there."""
        self._storage.move(source, path)
        return self.url_of(path)

    def delete(self, place: str) -> None:
        """Remove a file, by path or URL, durably; harmless when it is not there."""
        self._storage.delete(self.path_of(place))

    def purge(self, place: str) -> int:
        """Remove a file with all that the store keeps of it, by path or URL; returns how many versions there were."""
        return self._storage.purge(self.path_of(place))

    def kept_versions(self, folder: str) -> Iterator[Version]:
        """What the store keeps below `folder` of files that were deleted."""
        return self._storage.kept_versions(folder)

    def open_version(self, version: Version) -> BinaryIO:
        """A seekable reader of an old version."""
        return self._storage.open_version(version)

    def abort_uploads(self, folder: str) -> int:
        """Remove what uploads below `folder` that have not completed have left in the store; returns how many."""
        return self._storage.abort_uploads(folder)

    def exists(self, place: str) -> bool:
        """Whether the file is there."""
        return self.entry(place) is not None

    def entry(self, place: str) -> Entry | None:
        """Path, length and time of a file, or `None`."""
        return self._storage.entry(self.path_of(place))

    def open(self, place: str) -> BinaryIO:
        """A seekable reader, which asks an object store for ranges; raises `NotFound`."""
        return self._storage.open(self.path_of(place))

    def files(self, folder: str = EVENTS_FOLDER) -> Iterator[Entry]:
        """Every published file below `folder`, sorted within each folder."""
        return self._storage.files(folder)

    def clean_partial(self) -> int:
        """Remove what killed writers have left, never what a live one is writing; returns how many."""
        return self._storage.clean_partial()

    def close(self) -> None:
        """Remove this object's scratch folder."""
        self._storage.close()
