"""Capture of a folder: growing files, invalid files, and resuming."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.sources.source_capture import SourceCapture

from penstock.changelog.sqlite.writer import SqliteLogWriter
from penstock.errors import DefiniteError, TableError, TransientError
from penstock.model import Image
from penstock.sources import polling
from penstock.sources.files import json_lines
from penstock.sources.files.source import FileSource
from penstock.sources.produced_table import ProducedTable


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    data = tmp_path / "data"
    data.mkdir()
    return data


def captured(tmp_path: Path, **options: Any) -> SourceCapture:
    given = {"path": str(tmp_path / "data"), "format": "json", "poll_interval": "10 ms", **options}
    return SourceCapture(tmp_path, FileSource.of("events", **given))


def lines(first: int, last: int) -> str:
    return "".join(f'{{"id": {number}}}\n' for number in range(first, last))


def ids(capture: SourceCapture) -> list[int]:
    return [row["id"] for row in capture.rows("events")]


def test_files_are_read_by_name_and_grow(tmp_path: Path, folder: Path) -> None:
    (folder / "b.json").write_text(lines(10, 12))
    (folder / "a.json").write_text(lines(0, 3))
    (folder / ".hidden.json").write_text("not ours\n")
    (folder / "_temporary.json").write_text("not ours\n")
    (folder / "sub").mkdir()
    capture = captured(tmp_path)
    with capture.running():
        capture.until(lambda: capture.durable() == 2)
        assert ids(capture) == [0, 1, 2, 10, 11]
        with (folder / "a.json").open("a") as file:
            file.write(lines(3, 5) + '{"id"')
            file.flush()
            capture.until(lambda: capture.durable() == 3)
            file.write(": 5}\n")
        capture.until(lambda: capture.durable() == 4)
    images = capture.images("events")
    assert ids(capture) == [0, 1, 2, 10, 11, 3, 4, 5]
    assert images.column("_lsn").to_pylist() == [1, 1, 1, 2, 2, 3, 3, 4]
    assert images.column("_ordinal").to_pylist() == [0, 1, 2, 0, 1, 0, 1, 0]
    assert set(images.column("_image").to_pylist()) == {int(Image.INSERTED)}


def test_file_is_committed_when_it_is_detected(tmp_path: Path, folder: Path) -> None:
    (folder / "a.json").write_text(lines(0, 1))
    os.utime(folder / "a.json", (1, 1))  # the modification time can be set arbitrarily
    capture = captured(tmp_path)
    before = datetime.now(UTC)

    def passed() -> bool:
        with closing(capture.log.reader()) as reader:
            return reader.frontiers().passed > before

    capture.run_until(lambda: capture.durable() == 1 and passed())
    (at,) = capture.images("events").column("_committed_at").to_pylist()
    assert 0 <= (before - at).total_seconds() < 600
    with closing(capture.log.reader()) as reader:
        assert reader.position_at(before) == 1


def test_rows_with_a_key_are_upserts(tmp_path: Path, folder: Path) -> None:
    (folder / "a.json").write_text('{"id": 1, "v": "a"}\n{"id": 1, "v": "b"}\n')
    capture = captured(tmp_path, key=("id",))
    capture.run_until(lambda: capture.durable() == 1)
    assert capture.images("events").column("_image").to_pylist() == [int(Image.UPDATED)] * 2
    assert capture.table("events").schema.key == ("id",)


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_crash_around_a_step_loses_and_repeats_nothing(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    """Progress is written before the log: the crash happens before or after the log is written."""
    publish = SqliteLogWriter.publish
    crashes = iter([1, 2, 3, 5, 8])
    due = next(crashes)

    def publish_or_crash(self: SqliteLogWriter, chunks: Any, durable: Any, **arguments: Any) -> None:
        nonlocal due
        if chunks and durable == due:
            due = next(crashes, 0)
            if after:
                publish(self, chunks, durable, **arguments)
            raise KeyboardInterrupt
        publish(self, chunks, durable, **arguments)

    (folder / "a.json").write_text(lines(0, 10))
    capture = captured(tmp_path)
    monkeypatch.setattr(SqliteLogWriter, "publish", publish_or_crash)
    for number in range(1, 10):
        (folder / f"{number}.json").write_text(lines(10 * number, 10 * number + 10))
    for _ in range(5):
        with pytest.raises(KeyboardInterrupt):
            capture.run_until(lambda: False)
    capture.run_until(lambda: capture.durable() == 10)
    assert due == 0
    assert sorted(ids(capture)) == list(range(100))


def test_repeated_kills_while_files_grow(tmp_path: Path, folder: Path) -> None:
    (folder / "0.json").write_text(lines(0, 1))
    capture = captured(tmp_path)
    program = (
        "import sys, threading; from pathlib import Path; from tests.sources.source_capture import SourceCapture;"
        "from penstock.sources.files.source import FileSource;"
        "instance = SourceCapture(Path(sys.argv[1]), FileSource.model_validate_json(sys.argv[2])).instance();"
        "instance.run(threading.Event(), lambda: print('ready', flush=True))"
    )
    command = [sys.executable, "-c", program, str(tmp_path), capture.source.model_dump_json()]
    next_id, reached = 1, 0
    for life in range(4):
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            assert process.stdout.readline()
            deadline = time.monotonic() + 0.2 + 0.07 * life
            while time.monotonic() < deadline or capture.durable() <= reached:
                name = f"{next_id % 5}.json"
                text = lines(next_id, next_id + 7)
                with (folder / name).open("a") as file:
                    file.write(text[:50])
                    file.flush()
                    file.write(text[50:])
                next_id += 7
            process.kill()
        reached = capture.durable()
    capture.run_until(lambda: len(ids(capture)) >= next_id)
    assert sorted(ids(capture)) == list(range(next_id))


def wait_for_error(capture: SourceCapture) -> TableError:
    """Run until the table has an error."""
    capture.run_until(lambda: capture.table("events").error is not None)
    error = capture.table("events").error
    assert error is not None
    assert error.lsn == capture.durable()
    assert "RETRY TABLE events.events" in error.hint
    return error


def test_invalid_line_fails_the_table_and_retry_restarts_it(tmp_path: Path, folder: Path) -> None:
    (folder / "a.json").write_text(lines(0, 2))
    capture = captured(tmp_path)
    capture.run_until(lambda: capture.durable() == 1)
    (folder / "b.json").write_text(lines(2, 4) + '{"id": "4242"}\n')
    error = wait_for_error(capture)
    assert "line 3 of file b.json" in error.message
    assert "4242" not in str(error)
    with capture.running():  # the error is permanent
        (folder / "c.json").write_text(lines(4, 5))
        capture.until_idle()
        assert capture.durable() == error.lsn
    assert ids(capture) == [0, 1]

    (folder / "b.json").write_text(lines(2, 4))
    (table,) = capture.source.redescribe([capture.config.produced()[0].name]).values()
    assert isinstance(table, ProducedTable)
    capture.config = capture.config.restarted([table.model_copy(update={"generation": 1})])
    capture.run_until(lambda: capture.durable() == error.lsn + 3)
    assert capture.table("events").error is None
    assert capture.images("events", after=error.lsn).column("row").to_pylist() == [{"id": n} for n in range(5)]


@pytest.mark.parametrize("text", ["", lines(0, 1), lines(5, 9), "x" * 1000 + "\n"])
def test_rewritten_file_fails_the_table(tmp_path: Path, folder: Path, text: str) -> None:
    (folder / "a.json").write_text(lines(0, 3))
    capture = captured(tmp_path)
    capture.run_until(lambda: capture.durable() == 1)
    (folder / "a.json").write_text(text)
    assert "a.json was truncated or rewritten after it was read" in wait_for_error(capture).message


def test_deleted_file_is_ignored_and_may_reappear(tmp_path: Path, folder: Path) -> None:
    (folder / "a.json").write_text(lines(0, 3))
    capture = captured(tmp_path)
    with capture.running():
        capture.until(lambda: capture.durable() == 1)
        (folder / "a.json").unlink()
        (folder / "b.json").write_text(lines(3, 4))
        capture.until(lambda: capture.durable() == 2)
        (folder / ".a.json").write_text(lines(0, 5))
        (folder / ".a.json").rename(folder / "a.json")  # renamed, as a file being written is shorter than what was read
        capture.until(lambda: capture.durable() == 3)
    assert ids(capture) == [0, 1, 2, 3, 3, 4]


def test_parquet_files_are_read_once_and_whole(tmp_path: Path, folder: Path) -> None:
    pq.write_table(
        pa.table({"id": pa.array([1, 2], pa.uint32()), "d": pa.array(["x", "y"]).dictionary_encode()}),
        folder / "1.parquet",
    )
    capture = captured(tmp_path, format="parquet", key=("id",))
    with capture.running():
        capture.until(lambda: capture.durable() == 1)
        whole = (folder / "1.parquet").read_bytes()
        (folder / "2.parquet").write_bytes(whole[:100])
        capture.until_idle()
        assert capture.durable() == 1
        (folder / "2.parquet").write_bytes(whole)
        capture.until(lambda: capture.durable() == 2)
    assert capture.rows("events") == [{"id": 1, "d": "x"}, {"id": 2, "d": "y"}] * 2
    assert capture.table("events").schema.columns == pa.schema([("id", pa.int64()), ("d", pa.string())])


@pytest.mark.parametrize(
    ("table", "why"),
    [
        (pa.table({"id": [1], "other": [1]}), 'column "other" of file 2.parquet does not exist in the table'),
        (pa.table({"id": ["1"]}), "has type string, but int64 in the table"),
        (pa.table({"id": pa.array([None], pa.int64())}), 'key column "id" is null'),
        (b"PAR1" + b"4242" * 30 + b"PAR1", "as Parquet"),
        (b"PAR1 and no end", "has no footer, and was not written to for a minute"),
    ],
    ids=["new", "other", "null", "garbage", "torn"],
)
def test_invalid_parquet_files_fail_the_table(tmp_path: Path, folder: Path, table: Any, why: str) -> None:
    pq.write_table(pa.table({"id": [1]}), folder / "1.parquet")
    capture = captured(tmp_path, format="parquet", key=("id",))
    capture.run_until(lambda: capture.durable() == 1)
    if isinstance(table, bytes):
        (folder / "2.parquet").write_bytes(table)
        os.utime(folder / "2.parquet", (1, 1))
    else:
        pq.write_table(table, folder / "2.parquet")
    capture.run_until(lambda: capture.table("events").error is not None)
    error = capture.table("events").error
    assert error is not None
    assert why in error.message
    assert "2.parquet" in error.message
    assert ids(capture) == [1]


def test_a_large_file_is_one_transaction_written_in_parts(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(polling, "_STAGE_BYTES", 1000)
    monkeypatch.setattr(json_lines, "_BLOCK", 2000)
    (folder / "a.json").write_text(lines(0, 5000))
    capture = captured(tmp_path)
    capture.run_until(lambda: capture.durable() == 1)
    images = capture.images("events")
    assert ids(capture) == list(range(5000))
    assert images.column("_ordinal").to_pylist() == list(range(5000))
    assert set(images.column("_lsn").to_pylist()) == {1}


def test_rows_staged_before_an_error_are_not_visible(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(polling, "_STAGE_BYTES", 1000)
    monkeypatch.setattr(json_lines, "_BLOCK", 2000)
    (folder / "a.json").write_text(lines(0, 1))
    capture = captured(tmp_path)
    capture.run_until(lambda: capture.durable() == 1)
    (folder / "b.json").write_text(lines(1, 5000) + "broken\n")
    assert "line 5000 of file b.json" in wait_for_error(capture).message
    assert ids(capture) == [0]


def test_missing_folder_is_a_transient_error(tmp_path: Path, folder: Path) -> None:
    (folder / "a.json").write_text(lines(0, 1))
    capture = captured(tmp_path)
    folder.rename(tmp_path / "away")
    with pytest.raises(TransientError, match="could not read"):
        capture.run_until(lambda: False)
    (tmp_path / "away").rename(folder)
    capture.run_until(lambda: capture.durable() == 1)


def test_lost_progress_is_a_permanent_error(tmp_path: Path, folder: Path) -> None:
    (folder / "a.json").write_text(lines(0, 1))
    capture = captured(tmp_path)
    capture.run_until(lambda: capture.durable() == 1)
    (capture.state / "notes.db").unlink()
    with pytest.raises(DefiniteError, match="progress at position 0/1 is unknown") as caught:
        capture.run_until(lambda: False)
    assert "RETRY TABLE" in caught.value.hint
    assert ids(capture) == [0]
