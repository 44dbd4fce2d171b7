"""Disk space: behaviour on a full disk, and that removed history frees space."""

from __future__ import annotations

import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from tests import seeds
from tests.changelog.chunks import ORDERS, Row, chunk
from tests.changelog.writer_crashes import AT, ROOT, moment

from penstock.changelog.sqlite import writer as writer_module
from penstock.changelog.sqlite.log import SqliteLog, SqliteLogReader
from penstock.changelog.sqlite.writer import SqliteLogWriter
from penstock.model import Image
from penstock.positions import Lsn

MEGABYTE = 1 << 20

FULL_DISK = """
import os, random, resource, sys
from contextlib import closing
from pathlib import Path
from tests.changelog.chunks import ITEMS, ORDERS
from tests.changelog.writer_crashes import KEPT, AT, check_log, moment, publish
from penstock.changelog.sqlite.log import SqliteLogReader
from penstock.changelog.sqlite.writer import SqliteLogWriter
from penstock.errors import DefiniteError
from penstock.positions import Lsn

path, rng, devnull = Path(sys.argv[1]), random.Random(int(sys.argv[2])), os.open(os.devnull, os.O_WRONLY)
sizes = lambda: [file.stat().st_size for file in path.parent.iterdir()]
limit = lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
with closing(SqliteLogWriter(path)) as writer:
    writer.define(ORDERS)
    writer.define(ITEMS)
published, valid, failures = 0, 0, {"publish": 0, "retain": 0}
for round in range(40):
    limit(resource.RLIM_INFINITY)
    with closing(SqliteLogWriter(path)) as writer, closing(SqliteLogReader(path)) as holder:
        if round % 3 == 0:
            writer._db.execute("PRAGMA wal_autocheckpoint = 20")
        if round % 2:
            holder._db.execute("BEGIN")
            holder._db.execute("SELECT * FROM frontier").fetchall()  # blocks reuse of the WAL
        limit(max(max(sizes()) + rng.randrange(-100_000, 400_000), 40_000))
        operation = "publish"
        try:
            for _ in range(rng.randrange(100)):
                operation = "publish"
                publish(writer, Lsn(published + 1), devnull)
                published += 1
                if published % 3 == 0:
                    operation = "retain"
                    writer.retain(moment(AT + published - KEPT))
        except DefiniteError as error:
            failures[operation] += 1
            assert "full or failing" in error.message, error.message
            assert "Free some space" in error.hint
        limit(resource.RLIM_INFINITY)
    durable, valid = check_log(path, valid)
    assert durable == published, (durable, published)
print(failures["publish"], failures["retain"], published)
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    created = tmp_path / "log" / "shop.db"
    SqliteLog(created).create(Lsn.ZERO)
    return created


def test_a_full_disk_at_any_point_loses_nothing(path: Path) -> None:
    """While publishing or freeing, with a reader that blocks the WAL: it fails, stays consistent, and resumes."""
    seed = seeds.seed()
    command = [sys.executable, "-c", FULL_DISK, str(path), str(seed)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    print(f"seed {seed}: {done.stdout}")
    assert (done.returncode, done.stderr) == (0, ""), f"seed {seed}\n{done.stderr}"
    publishing, freeing, published = map(int, done.stdout.split())
    assert publishing + freeing > 5
    assert published > 40


def publish(writer: SqliteLogWriter, lsn: int, size: int) -> None:
    row = Row(lsn, 0, Image.INSERTED, (lsn, "x" * size))
    writer.publish([chunk(ORDERS, [row])], Lsn(lsn), committed_at=AT + lsn)


def stored(writer: SqliteLogWriter) -> tuple[int, int]:
    """Return the number of bytes in chunks, and the number of pages of the file."""
    (chunks,) = writer._db.execute("SELECT coalesce(sum(size), 0) FROM chunk").fetchone()
    (pages,) = writer._db.execute("PRAGMA page_count").fetchone()
    return int(chunks), int(pages)


def size(path: Path, suffix: str = "") -> int:
    return path.with_name(path.name + suffix).stat().st_size


def test_removed_history_frees_disk_space_while_readers_read(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_module, "_RETAIN_SECONDS", 0.0)  # each call removes one batch
    with closing(SqliteLogWriter(path)) as writer, closing(SqliteLogReader(path)) as reader:
        writer.define(ORDERS)
        for lsn in range(1, 301):
            publish(writer, lsn, 200_000)
        writer._db.execute("PRAGMA wal_checkpoint").fetchall()
        grown = size(path)
        assert grown > 55 * MEGABYTE
        newer = reader.read(reader.extent(ORDERS.table, Lsn(280), Lsn(300)))
        seen: list[int] = []
        calls = 0
        while writer.frontiers().valid < 270 or writer._db.execute("PRAGMA freelist_count").fetchone()[0]:
            seen += next(newer).column("_lsn").to_pylist() if len(seen) < 5 else []
            before = stored(writer)
            writer.retain(moment(AT + 270))
            removed, freed = (old - new for old, new in zip(before, stored(writer), strict=True))
            assert removed < writer_module._BYTES + MEGABYTE, "at most one chunk more than the limit"
            assert freed <= writer_module._PAGES + 1, "SQLite does not count a page of its pointer map, one in 3,277"
            calls += 1
            assert calls < 100
        writer._db.execute("PRAGMA wal_checkpoint").fetchall()
        print(f"{grown >> 20} MB became {size(path) >> 20} MB in {calls} calls")
        assert size(path) < 10 * MEGABYTE
        seen += [lsn for batch in newer for lsn in batch.column("_lsn").to_pylist()]
        assert seen == list(range(281, 301))


def test_open_reader_does_not_make_the_wal_grow(path: Path) -> None:
    """Between batches it holds no read transaction, so that the WAL restarts once it is large enough."""
    with closing(SqliteLogWriter(path)) as writer, closing(SqliteLogReader(path)) as reader:
        writer._db.execute("PRAGMA wal_autocheckpoint = 100")
        writer.define(ORDERS)
        for lsn in range(1, 11):
            publish(writer, lsn, 2_000_000)
        halfway = reader.read(reader.extent(ORDERS.table, Lsn(0), Lsn(10)))
        next(halfway)
        largest = 0
        for lsn in range(11, 111):
            publish(writer, lsn, 200_000)
            reader.tables()
            largest = max(largest, size(path, "-wal"))
        assert largest < 25 * MEGABYTE, "the size of the ten large transactions, without growth afterwards"
        assert [batch.num_rows for batch in halfway] == [1] * 9


def test_many_tiny_chunks_are_read_as_few_batches(path: Path) -> None:
    with closing(SqliteLogWriter(path)) as writer, closing(SqliteLogReader(path)) as reader:
        writer.define(ORDERS)
        for begin in range(1, 3001, 300):
            rows = [Row(lsn, 0, Image.INSERTED, (lsn, "x")) for lsn in range(begin, begin + 300)]
            writer.publish([chunk(ORDERS, [row]) for row in rows], Lsn(begin + 299))
        extent = reader.extent(ORDERS.table, Lsn(5), Lsn(2990))
        assert len(extent.chunks) == 2985
        batches = list(reader.read(extent))
        assert len(batches) < 10
        found = [row for batch in batches for row in batch.to_pylist()]
        assert [(row["_lsn"], row["_xid"], row["row"]["id"]) for row in found] == [
            (lsn, lsn + 1, lsn) for lsn in range(6, 2991)
        ]
