"""Guarantees of the embedded log only: other processes, kill -9, full disk, corruption, formats."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from tests.changelog.chunks import ITEMS, ORDERS, chunk, inserted, read

from penstock.changelog.interface import StagedCommit
from penstock.changelog.sqlite.log import SqliteLog, SqliteLogReader
from penstock.changelog.sqlite.writer import SqliteLogWriter
from penstock.errors import DefiniteError, LogCorruptError, TableError
from penstock.positions import Lsn
from penstock.testing.waiting import PATIENCE

ROOT = Path(__file__).parent.parent.parent

PUBLISHER = """
import sys
from pathlib import Path
from tests.changelog.chunks import ITEMS, ORDERS, chunk, inserted
from penstock.changelog.interface import StagedCommit
from penstock.changelog.sqlite.writer import SqliteLogWriter
from penstock.positions import Lsn

writer = SqliteLogWriter(Path(sys.argv[1]))
for table in (ORDERS, ITEMS):
    writer.define(table)
at = writer.frontiers().durable
while True:
    at += 1
    both = [inserted(at, 0), inserted(at, 1)]
    staged = {}
    if at % 3 == 0:
        writer.stage(at, [chunk(ORDERS, [inserted(-1, 0)])])
        both, staged = both[1:], {at: StagedCommit(Lsn(at), at)}
    writer.publish([chunk(ORDERS, both), chunk(ITEMS, [inserted(at)])], Lsn(at), committed_at=at, staged=staged)
    print(at, flush=True)
"""

FULL_DISK = """
import resource, sys
from pathlib import Path
from tests.changelog.chunks import ORDERS, chunk, inserted
from penstock.changelog.sqlite.writer import SqliteLogWriter
from penstock.errors import DefiniteError
from penstock.positions import Lsn

path = Path(sys.argv[1])
writer = SqliteLogWriter(path)
writer.define(ORDERS)
resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, resource.RLIM_INFINITY))
at = 0
try:
    while at < 1000:
        at += 1
        writer.publish([chunk(ORDERS, [inserted(at, 0, "x" * 20_000)])], Lsn(at), committed_at=at)
except DefiniteError as error:
    print(at - 1, flush=True)
    assert "full or failing" in error.message, error.message
    assert "Free some space" in error.hint
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
writer.publish([chunk(ORDERS, [inserted(at)])], Lsn(at), committed_at=at)
writer.close()
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    created = tmp_path / "shop.db"
    SqliteLog(created).create(Lsn.ZERO)
    return created


@pytest.fixture
def written(path: Path) -> Path:
    """A log with three chunks of orders."""
    with closing(SqliteLogWriter(path)) as writer:
        writer.define(ORDERS)
        for lsn in (20, 30, 40):
            writer.publish([chunk(ORDERS, [inserted(lsn, n) for n in range(20)])], Lsn(lsn))
    return path


def python(program: str, path: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", program, str(path)], cwd=ROOT, stdout=subprocess.PIPE)


def check_published(path: Path, at_least: int) -> int:
    """Check that the log has exactly the rows up to `durable`; return `durable`."""
    with closing(SqliteLogReader(path)) as reader:
        durable = reader.frontiers().durable
        assert durable >= at_least
        everything = [inserted(lsn, n) for lsn in range(1, durable + 1) for n in (0, 1)]
        staged = {(row.lsn, 0) for row in everything if row.lsn % 3 == 0}
        wanted = [replace(row, values=(-1000, "x")) if (row.lsn, row.ordinal) in staged else row for row in everything]
        assert read(reader, ORDERS) == wanted
        assert read(reader, ITEMS) == [inserted(lsn) for lsn in range(1, durable + 1)]
    return durable


def test_kill_9_between_and_inside_publishes(path: Path) -> None:
    """After every kill the log holds what was published; the next writer resumes from there."""
    durable = 0
    for kill in range(15):
        with python(PUBLISHER, path) as process:
            assert process.stdout is not None
            published = [int(process.stdout.readline()) for _ in range(3)]
            time.sleep(0.0007 * kill)
            process.kill()
            published += [int(line) for line in process.stdout.read().split(b"\n")[:-1]]
        assert published[0] == durable + 1
        durable = check_published(path, published[-1])
        assert durable <= published[-1] + 1


def test_a_commit_is_synced_before_it_returns(path: Path) -> None:
    """A killed process loses nothing that SQLite wrote to the OS; only a power failure would show the difference."""
    with closing(SqliteLogWriter(path)) as writer:
        found = [writer._db.execute(f"PRAGMA {name}").fetchone()[0] for name in ("journal_mode", "synchronous")]
    assert found == ["wal", 2], "2 is FULL"


def test_readers_see_a_writer_in_another_process(path: Path) -> None:
    with python(PUBLISHER, path) as process, closing(SqliteLogReader(path)) as reader:
        try:
            seen = Lsn.ZERO
            for _ in range(20):
                moved = reader.wait(seen, PATIENCE).durable
                assert moved > seen
                assert [row.lsn for row in read(reader, ITEMS, seen, moved)] == list(range(seen + 1, moved + 1))
                seen = moved
        finally:
            process.kill()


def test_second_process_is_rejected_with_the_pid_of_the_first(path: Path) -> None:
    with python(PUBLISHER, path) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            with pytest.raises(DefiniteError, match=f"already has a writer \\(pid {process.pid}\\)") as caught:
                SqliteLogWriter(path)
            assert "Stop" in caught.value.hint
        finally:
            process.send_signal(signal.SIGKILL)
    SqliteLogWriter(path).close()


def test_a_full_disk_is_a_definite_error_and_loses_nothing(path: Path) -> None:
    with python(FULL_DISK, path) as process:
        assert process.stdout is not None
        last = int(process.stdout.readline())
    assert process.returncode == 0
    with closing(SqliteLogReader(path)) as reader:
        assert [row.lsn for row in read(reader, ORDERS)] == list(range(1, last + 2))


def test_a_full_database_is_a_definite_error(path: Path) -> None:
    with closing(SqliteLogWriter(path)) as writer:
        writer.define(ORDERS)
        pages = writer._db.execute("PRAGMA page_count").fetchone()[0]
        writer._db.execute(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(DefiniteError, match="full") as caught:
            writer.publish([chunk(ORDERS, [inserted(20, 0, "x" * 200_000)])], Lsn(20))
        assert "Free some space" in caught.value.hint
        assert writer.frontiers().durable == 0
        writer._db.execute("PRAGMA max_page_count = 100000")
        writer.publish([chunk(ORDERS, [inserted(20)])], Lsn(20))


def flip(path: Path, table: str, column: str, chunk_id: int) -> None:
    with closing(sqlite3.connect(path)) as db:
        (value,) = db.execute(f"SELECT {column} FROM {table} WHERE chunk = ?", (chunk_id,)).fetchone()
        changed = bytearray(value)
        changed[len(changed) // 2] ^= 0x10
        db.execute(f"UPDATE {table} SET {column} = ? WHERE chunk = ?", (bytes(changed), chunk_id))
        db.commit()


@pytest.mark.parametrize("column", ["transactions", "images"])
def test_flipped_bit_is_detected(written: Path, column: str) -> None:
    flip(written, "payload", column, 2)
    with closing(SqliteLogReader(written)) as reader:
        assert {row.lsn for row in read(reader, ORDERS, 0, 20)} == {20}
        assert {row.lsn for row in read(reader, ORDERS, 30, 40)} == {40}
        with pytest.raises(LogCorruptError, match=r"chunk 2 of public\.orders fails its checksum") as caught:
            read(reader, ORDERS)
        assert caught.value.hint


def test_missing_payload_is_detected(written: Path) -> None:
    with closing(sqlite3.connect(written)) as db:
        db.execute("DELETE FROM payload WHERE chunk = 2")
        db.commit()
    with closing(SqliteLogReader(written)) as reader, pytest.raises(LogCorruptError, match="chunk 2 is missing"):
        read(reader, ORDERS)


def test_damaged_pages_are_detected(written: Path) -> None:
    with closing(sqlite3.connect(written)) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    data = bytearray(written.read_bytes())
    data[16384:] = os.urandom(len(data) - 16384)
    written.write_bytes(data)
    with pytest.raises(LogCorruptError) as caught, closing(SqliteLogReader(written)) as reader:
        read(reader, ORDERS)
    assert caught.value.hint


@pytest.mark.parametrize("opened", [SqliteLogReader, SqliteLogWriter])
def test_newer_format_is_rejected(path: Path, opened: type[SqliteLogReader] | type[SqliteLogWriter]) -> None:
    with closing(sqlite3.connect(path)) as db:
        written = db.execute("PRAGMA user_version").fetchone()[0]
        db.execute("PRAGMA user_version = 99")
    with pytest.raises(DefiniteError, match="format 99"):
        opened(path)
    with closing(sqlite3.connect(path)) as db:
        db.execute(f"PRAGMA user_version = {written}")
    opened(path).close()  # the rejected writer has released the lock


def test_a_forked_process_does_not_keep_the_lock(path: Path) -> None:
    """Between fork and exec, which can take long on a busy machine, the child also has the lock's file descriptor."""
    writer = SqliteLogWriter(path)
    child = os.fork()
    if child == 0:
        signal.pause()
    try:
        writer.close()
        SqliteLogWriter(path).close()
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


@pytest.mark.parametrize("opened", [SqliteLogReader, SqliteLogWriter])
def test_missing_log_is_not_recreated(tmp_path: Path, opened: type[SqliteLogReader] | type[SqliteLogWriter]) -> None:
    """An empty log in its place would claim that there were no changes."""
    for _ in range(2):
        with pytest.raises(DefiniteError, match="cannot be opened"):
            opened(tmp_path / "gone.db")
    assert not (tmp_path / "gone.db").exists()


@pytest.mark.parametrize("opened", [SqliteLogReader, SqliteLogWriter])
@pytest.mark.parametrize("content", [b"", b"this is not a database, however long it may be" * 100])
def test_file_that_is_not_a_log_is_rejected(
    tmp_path: Path, opened: type[SqliteLogReader] | type[SqliteLogWriter], content: bytes
) -> None:
    path = tmp_path / "other.db"
    path.write_bytes(content)
    with pytest.raises(DefiniteError, match=r"other\.db"):
        opened(path)


def test_create_leaves_an_existing_log_unchanged(written: Path) -> None:
    SqliteLog(written).create(Lsn(99))
    with closing(SqliteLogReader(written)) as reader:
        assert reader.frontiers().durable == 40
        assert len(read(reader, ORDERS)) == 60


def test_failed_publication_leaves_the_writer_unchanged(path: Path) -> None:
    """A step that fails after it changed the writer's tables or staged parts leaves no trace in the writer."""
    with closing(SqliteLogWriter(path)) as writer, closing(SqliteLogReader(path)) as reader:
        writer.define(ORDERS)
        writer.stage(7, [chunk(ORDERS, [inserted(-1)])])
        commits = {7: StagedCommit(Lsn(20), 20)}
        with pytest.raises(ValueError, match=r"schema\.table"):
            writer.publish([], Lsn(20), staged=commits, errors=[TableError("nameless", 20, "x")])
        writer.define(ITEMS)
        writer.publish([chunk(ITEMS, [inserted(20)])], Lsn(20), staged=commits)
        assert [row.lsn for table in (ORDERS, ITEMS) for row in read(reader, table)] == [20, 20]
        assert [table.since for table in reader.tables().values()] == [(20,), (20,)]


def test_failed_publication_leaves_no_chunks(path: Path) -> None:
    """Otherwise capture would publish them a second time after its restart."""
    with closing(SqliteLogWriter(path)) as writer, closing(SqliteLogReader(path)) as reader:
        writer.define(ORDERS)
        with pytest.raises(ValueError, match=r"schema\.table"):
            writer.publish([chunk(ORDERS, [inserted(20)])], Lsn(20), errors=[TableError("nameless", 20, "x")])
        assert (read(reader, ORDERS), reader.frontiers().durable) == ([], writer.frontiers().durable)
        writer.publish([chunk(ORDERS, [inserted(20)])], Lsn(20))
        assert read(reader, ORDERS) == [inserted(20)]
