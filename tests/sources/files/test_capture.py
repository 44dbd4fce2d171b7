"""A folder under capture: what grows, what breaks, and what is gone on with."""

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
from tests.sources.running import Captured

from penstock.changelog.sqlite.writer import SqliteLogWriter
from penstock.errors import DefiniteError, TableError, TransientError
from penstock.model import Image
from penstock.sources import polling
from penstock.sources.files import json_lines
from penstock.sources.files.source import FileSource
from penstock.sources.interface import ProducedTable


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "data"
    made.mkdir()
    return made


def captured(tmp_path: Path, **options: Any) -> Captured:
    given = {"path": str(tmp_path / "data"), "format": "json", "poll_interval": "10 ms", **options}
    return Captured(tmp_path, FileSource.of("events", **given))


def lines(first: int, last: int) -> str:
    return "".join(f'{{"id": {number}}}\n' for number in range(first, last))


def ids(capture: Captured) -> list[int]:
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


def test_a_file_counts_as_committed_when_it_came(tmp_path: Path, folder: Path) -> None:
    (folder / "a.json").write_text(lines(0, 1))
    os.utime(folder / "a.json", (1, 1))  # anybody can say that it was written long ago
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
def test_a_crash_around_a_step_loses_and_repeats_nothing(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    """The notes are written before the log: whichever of the two the crash comes after."""
    publish = SqliteLogWriter.publish
    crashes = iter([1, 2, 3, 5, 8])
    due = next(crashes)

    def crashing(self: SqliteLogWriter, chunks: Any, durable: Any, **told: Any) -> None:
        nonlocal due
        if chunks and durable == due:
            due = next(crashes, 0)
            if after:
                publish(self, chunks, durable, **told)
            raise KeyboardInterrupt
        publish(self, chunks, durable, **told)

    (folder / "a.json").write_text(lines(0, 10))
    capture = captured(tmp_path)
    monkeypatch.setattr(SqliteLogWriter, "publish", crashing)
    for number in range(1, 10):
        (folder / f"{number}.json").write_text(lines(10 * number, 10 * number + 10))
    for _ in range(5):
        with pytest.raises(KeyboardInterrupt):
            capture.run_until(lambda: False)
    capture.run_until(lambda: capture.durable() == 10)
    assert due == 0
    assert sorted(ids(capture)) == list(range(100))


def test_killed_again_and_again_while_files_grow(tmp_path: Path, folder: Path) -> None:
    (folder / "0.json").write_text(lines(0, 1))
    capture = captured(tmp_path)
    program = (
        "import sys, threading; from pathlib import Path; from tests.sources.running import Captured;"
        "from penstock.sources.files.source import FileSource;"
        "made = Captured(Path(sys.argv[1]), FileSource.model_validate_json(sys.argv[2])).instance();"
        "made.run(threading.Event(), lambda: print('ready', flush=True))"
    )
    command = [sys.executable, "-c", program, str(tmp_path), capture.source.model_dump_json()]
    wrote, reached = 1, 0
    for life in range(4):
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            assert process.stdout.readline()
            give_up = time.monotonic() + 0.2 + 0.07 * life
            while time.monotonic() < give_up or capture.durable() <= reached:
                name = f"{wrote % 5}.json"
                text = lines(wrote, wrote + 7)
                with (folder / name).open("a") as file:
                    file.write(text[:50])
                    file.flush()
                    file.write(text[50:])
                wrote += 7
            process.kill()
        reached = capture.durable()
    capture.run_until(lambda: len(ids(capture)) >= wrote)
    assert sorted(ids(capture)) == list(range(wrote))


def broken(capture: Captured) -> TableError:
    """Run until the table has an error."""
    capture.run_until(lambda: capture.table("events").error is not None)
    error = capture.table("events").error
    assert error is not None
    assert error.lsn == capture.durable()
    assert "RETRY TABLE events.events" in error.hint
    return error


def test_a_line_that_cannot_be_read_ends_the_table_and_it_can_begin_anew(tmp_path: Path, folder: Path) -> None:
    (folder / "a.json").write_text(lines(0, 2))
    capture = captured(tmp_path)
    capture.run_until(lambda: capture.durable() == 1)
    (folder / "b.json").write_text(lines(2, 4) + '{"id": "4242"}\n')
    error = broken(capture)
    assert "line 3 of the file b.json" in error.message
    assert "4242" not in str(error)
    with capture.running():  # it stays ended
        (folder / "c.json").write_text(lines(4, 5))
        capture.until_idle()
        assert capture.durable() == error.lsn
    assert ids(capture) == [0, 1]

    (folder / "b.json").write_text(lines(2, 4))
    (table,) = capture.source.look_again([capture.config.produced()[0].name]).values()
    assert isinstance(table, ProducedTable)
    capture.config = capture.config.anew([table.model_copy(update={"generation": 1})])
    capture.run_until(lambda: capture.durable() == error.lsn + 3)
    assert capture.table("events").error is None
    assert capture.images("events", after=error.lsn).column("row").to_pylist() == [{"id": n} for n in range(5)]


@pytest.mark.parametrize("text", ["", lines(0, 1), lines(5, 9), "x" * 1000 + "\n"])
def test_a_file_that_is_not_what_was_read_any_more_ends_the_table(tmp_path: Path, folder: Path, text: str) -> None:
    (folder / "a.json").write_text(lines(0, 3))
    capture = captured(tmp_path)
    capture.run_until(lambda: capture.durable() == 1)
    (folder / "a.json").write_text(text)
    assert "a.json is not what was read of it" in broken(capture).message


def test_a_file_that_went_is_not_missed_and_may_come_back(tmp_path: Path, folder: Path) -> None:
    (folder / "a.json").write_text(lines(0, 3))
    capture = captured(tmp_path)
    with capture.running():
        capture.until(lambda: capture.durable() == 1)
        (folder / "a.json").unlink()
        (folder / "b.json").write_text(lines(3, 4))
        capture.until(lambda: capture.durable() == 2)
        (folder / ".a.json").write_text(lines(0, 5))
        (folder / ".a.json").rename(folder / "a.json")  # while it is written, it is shorter than what was read of it
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
        (pa.table({"id": [1], "other": [1]}), "has a column other, which the table has not"),
        (pa.table({"id": ["1"]}), "the column id is string, and int64 in the table"),
        (pa.table({"id": pa.array([None], pa.int64())}), "a row without a value of id"),
        (b"PAR1" + b"4242" * 30 + b"PAR1", "is not a Parquet file that can be read"),
        (b"PAR1 and no end", "has no end, and was not written to for a minute"),
    ],
    ids=["new", "other", "null", "garbage", "torn"],
)
def test_parquet_files_that_cannot_be_read(tmp_path: Path, folder: Path, table: Any, why: str) -> None:
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


def test_what_was_written_ahead_of_an_error_is_not_seen(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(polling, "_STAGE_BYTES", 1000)
    monkeypatch.setattr(json_lines, "_BLOCK", 2000)
    (folder / "a.json").write_text(lines(0, 1))
    capture = captured(tmp_path)
    capture.run_until(lambda: capture.durable() == 1)
    (folder / "b.json").write_text(lines(1, 5000) + "broken\n")
    assert "line 5000 of the file b.json" in broken(capture).message
    assert ids(capture) == [0]


def test_a_folder_that_is_gone_for_a_while(tmp_path: Path, folder: Path) -> None:
    (folder / "a.json").write_text(lines(0, 1))
    capture = captured(tmp_path)
    folder.rename(tmp_path / "away")
    with pytest.raises(TransientError, match="cannot be read"):
        capture.run_until(lambda: False)
    (tmp_path / "away").rename(folder)
    capture.run_until(lambda: capture.durable() == 1)


def test_notes_that_are_lost_are_no_beginning(tmp_path: Path, folder: Path) -> None:
    (folder / "a.json").write_text(lines(0, 1))
    capture = captured(tmp_path)
    capture.run_until(lambda: capture.durable() == 1)
    (capture.state / "notes.db").unlink()
    with pytest.raises(DefiniteError, match="what was taken in up to 0/1 is not known") as caught:
        capture.run_until(lambda: False)
    assert "RETRY TABLE" in caught.value.hint
    assert ids(capture) == [0]
