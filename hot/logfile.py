"""log.json: which log a folder is. It is replaced whole, and carries a checksum: a flipped role would hide the log."""

from __future__ import annotations

from pathlib import Path
from typing import Self

import google_crc32c
import msgspec

from stratalog.schemas.errors import Corrupt, NotFound

from .files import write_durably

NAME = "log.json"


class LogFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of hot/<log_id>/log.json. `role` keeps imports in one log and workers in others."""

    log_id: str
    role: str = "worker"
    created_at: int = 0
    previous_log_id: str = ""
    """The id under which Postgres knows what this log holds, before it got its new id."""
    salvaged_from: str = ""
    """The damaged log whose readable beginning this is."""
    check: int | None = None
    """CRC-32C of the other fields."""

    def checksum(self) -> int:
        """What `check` must be."""
        content = f"{self.log_id} {self.role} {self.created_at} {self.previous_log_id} {self.salvaged_from}"
        checksum: int = google_crc32c.value(content.encode())
        return checksum

    @classmethod
    def read(cls, folder: Path) -> Self:
        """The file of a log's folder; raises `NotFound` where nothing lies there, `Corrupt` for a damaged file."""
        path = folder / NAME
        try:
            file = msgspec.json.decode(path.read_bytes(), type=cls)
        except FileNotFoundError as error:
            if not folder.is_dir() or not any(folder.iterdir()):
                raise NotFound(f"there is no log {folder.name} in {folder.parent}") from error
            raise Corrupt(f"{path} is missing", hint="restore it from a backup of this home") from error
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise Corrupt(f"{path} is damaged: {error}", hint="restore it from a backup of this home") from error
        if file.check is not None and file.check != file.checksum():
            raise Corrupt(
                f"{path} is damaged: it does not match its checksum", hint="restore it from a backup of this home"
            )
        return file

    def write(self, folder: Path) -> None:
        """Replace the file, durably."""
        write_durably(folder / NAME, msgspec.json.encode(msgspec.structs.replace(self, check=self.checksum())))
