"""Files of bounded size, the same ones for the same rows, and nothing left of those that were not finished."""

from __future__ import annotations

import hashlib
import uuid
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from fix_cold import START_US, Author

from stratalog.cold.columns import Place, Row, row_of
from stratalog.cold.lake import Lake
from stratalog.cold.readback import read_rows
from stratalog.cold.writer import EventsWriter, File
from stratalog.schemas import events as ev
from stratalog.schemas.arrow import COLUMNS, INDEX
from stratalog.schemas.envelope import Envelope
from stratalog.schemas.errors import Corrupt
from stratalog.schemas.ids import uuid7_at
from stratalog.schemas.settings import ColdSettings

RUN = "01a22e8f-a10f-778f-a1ad-bb13d28bdb47"
FOLDER = "events/tenant=acme/date=2025-01-01/model=atlas-4"
SETTINGS = ColdSettings(row_group_rows=50, row_group_bytes_max=60_000, file_bytes_max=100_000)


def rows(count: int, output_bytes: int = 500) -> list[tuple[Row, int]]:
    author = Author(uuid7_at(START_US, bytes(10)))
    made = []
    for number in range(count):
        # Text that does not compress, so that sizes on disk mean something.
        output = "".join(hashlib.sha256(f"{number}.{part}".encode()).hexdigest() for part in range(output_bytes // 64))
        header, body = author.write(ev.ToolResult(tool_call_id=f"c{number}", tool="read", output=output))
        row = row_of(Envelope(0, 0, header, body, author.at.hash), 1, Place(20_089, "atlas-4", "atlas-4"))
        made.append((row, len(body)))
    return made


def write(lake: Lake, made: list[tuple[Row, int]], settings: ColdSettings = SETTINGS) -> list[File]:
    with EventsWriter(lake, FOLDER, RUN, settings) as writer:
        for row, size in made:
            writer.add(row, size)
        return writer.finish()


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(f"file://{tmp_path}/lake")


def path_of(file: File) -> Path:
    return Path(file.url.removeprefix("file://"))


def test_row_groups_and_files_stay_below_their_limits(lake: Lake) -> None:
    files = write(lake, rows(1_000))
    assert len(files) > 3 and sum(file.rows for file in files) == 1_000
    for file in files:
        metadata = pq.read_metadata(path_of(file))
        assert file.bytes == path_of(file).stat().st_size <= SETTINGS.file_bytes_max
        assert max(metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)) <= 50


def test_large_rows_make_small_row_groups(lake: Lake) -> None:
    (file,) = write(lake, rows(40, 5_000), ColdSettings(row_group_bytes_max=60_000))
    metadata = pq.read_metadata(path_of(file))
    assert {metadata.row_group(group).num_rows for group in range(metadata.num_row_groups - 1)} == {11}


def test_rows_come_back_in_order_and_names_carry_run_number_and_digest(lake: Lake) -> None:
    made = rows(300)
    files = write(lake, made)
    assert [row for file in files for row in read_rows(lake, file.url)] == [row for row, _ in made]
    for number, file in enumerate(files):
        assert path_of(file).name == f"{RUN}-{number:05d}-{file.sha256[:16]}.parquet"
        assert hashlib.sha256(path_of(file).read_bytes()).hexdigest() == file.sha256


def test_the_same_rows_make_the_same_files(lake: Lake, tmp_path: Path) -> None:
    with Lake(f"file://{tmp_path}/other") as other:
        assert [file.sha256 for file in write(lake, rows(300))] == [file.sha256 for file in write(other, rows(300))]


def test_what_is_not_finished_is_not_published(lake: Lake) -> None:
    with EventsWriter(lake, FOLDER, RUN, SETTINGS) as writer:
        for row, size in rows(60):
            writer.add(row, size)
    assert list(lake.files()) == [] and list(lake.scratch().iterdir()) == []


def test_layout_of_a_file(lake: Lake) -> None:
    (file,) = write(lake, rows(200), ColdSettings())
    group = pq.read_metadata(path_of(file)).row_group(0)
    chunks = {group.column(number).path_in_schema: group.column(number) for number in range(group.num_columns)}
    assert all(chunk.compression == "ZSTD" for chunk in chunks.values())
    assert "DELTA_BINARY_PACKED" in chunks["sequence_number"].encodings
    assert "DELTA_BINARY_PACKED" in chunks["created_at"].encodings
    assert chunks["trajectory_id"].bloom_filter_offset is not None
    assert all(chunk.has_column_index or not chunk.is_stats_set for chunk in chunks.values())
    for column in COLUMNS:
        assert chunks[column.name].has_dictionary_page == column.dictionary, column.name


def test_no_text_is_copied_into_footers(lake: Lake) -> None:
    secret_words = rows(1)
    secret_words[0][0][INDEX["text"]] = "for nobody else"
    secret_words[0][0][INDEX["reasoning"]] = "for nobody else"
    (file,) = write(lake, secret_words)
    group = pq.read_metadata(path_of(file)).row_group(0)
    for number in range(group.num_columns):
        statistics = group.column(number).statistics
        assert statistics is None or "nobody" not in str(statistics)
    assert pq.read_metadata(path_of(file)).metadata is None


@pytest.mark.parametrize("position", [0.1, 0.5, 0.9])
def test_a_changed_byte_is_noticed(lake: Lake, position: float) -> None:
    (file,) = write(lake, rows(40))
    path = path_of(file)
    damaged = bytearray(path.read_bytes())
    damaged[int(len(damaged) * position)] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(Corrupt):
        list(read_rows(lake, file.url))


def test_a_changed_byte_is_noticed_by_the_page_checksum_too(lake: Lake) -> None:
    # Under a name without a digest, as somebody's copy would have.
    (file,) = write(lake, rows(40))
    damaged = bytearray(path_of(file).read_bytes())
    damaged[len(damaged) // 3] ^= 1
    copy = path_of(file).parent / "copy.parquet"
    copy.write_bytes(damaged)
    with pytest.raises(Corrupt, match="cannot be read"):
        list(read_rows(lake, lake.url_of(f"{FOLDER}/copy.parquet")))


def test_a_missing_file_is_noticed(lake: Lake) -> None:
    with pytest.raises(Corrupt, match="gone"):
        list(read_rows(lake, lake.url_of(f"{FOLDER}/{uuid.uuid4()}.parquet")))
