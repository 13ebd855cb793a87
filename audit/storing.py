"""Writing a file of the storage on the condition that there is none of its name."""

from __future__ import annotations

from stratalog.cold.bucket import Bucket
from stratalog.cold.folder import Folder
from stratalog.cold.storage import Storage, translated
from stratalog.hot.files import make_folder, write_durably
from stratalog.schemas.errors import Invalid


def put_new(storage: Storage, path: str, content: bytes) -> None:
    """Write a file on the condition that there is none; durable when it returns, also where there was one."""
    with translated("write", f"{storage.url}/{path}"):
        try:
            if isinstance(storage, Folder):
                target = storage.root / path
                make_folder(target.parent)
                write_durably(target, content, mode=0o644, exclusive=True)
            elif isinstance(storage, Bucket):
                storage.filesystem.pipe_file(storage.url_of(path), content, mode="create")
            else:
                raise Invalid(f"{storage.url} cannot put on a condition", hint="use a local folder or an object store")
        except OSError:
            # How a store says that the object exists differs from store to store; that it exists decides.
            if storage.entry(path) is None:
                raise
