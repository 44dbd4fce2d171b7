"""A writer that is killed repeatedly: ``python -m tests.changelog.writer_crashes LOG KILLS SEED``.

The contents depend on the position alone, so that a check knows which rows to expect. Writers are forks of
one process that has imported everything, which makes a kill cheap. A writer reports what it is about to publish and
what it has published; after the kill, `durable` must be one of the two, with all rows up to it.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
from tests.changelog.chunks import COLUMNS, ITEMS, ORDERS, Row, chunk, inserted
from tests.changelog.test_interface import part

from penstock.changelog.interface import Chunk, Discarded, Prepared, StagedCommit
from penstock.changelog.sqlite.log import SqliteLog, SqliteLogReader
from penstock.changelog.sqlite.writer import SqliteLogWriter
from penstock.model import Image, TableName, TableSchema
from penstock.positions import Lsn

ROOT = Path(__file__).parent.parent.parent
NOTES = TableName("public", "notes")
AT = 4_000_000_000_000_000
"""The commit time of position 0: later than any test run, so that retention can rely on it."""
KEPT, VERSION_EVERY = 25, 60


def moment(microseconds: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=microseconds)


def notes(lsn: int) -> TableSchema:
    """A table that gains a column every `VERSION_EVERY` positions."""
    added = [pa.field(f"c{n}", pa.int64()) for n in range(lsn // VERSION_EVERY)]
    return TableSchema(NOTES, pa.schema([*COLUMNS, *added]), ("id",))


def note(lsn: int) -> Row:
    width = lsn // VERSION_EVERY
    return Row(lsn, 0, Image.INSERTED, (lsn, "x" * (40_000 if lsn % 4 == 0 else 10), *([lsn] * width)))


def orders(lsn: int) -> list[tuple[int, int]]:
    """Ordinal and id of the orders of a transaction; orders of a prepared one appear two positions later."""
    prepared = [(0, -(lsn - 2))] if (lsn - 2) % 13 == 0 and lsn > 2 else []
    return [*prepared, *([(1, lsn)] if lsn % 3 == 0 else []), (2, lsn * 10)]


def main(path: Path, kills: int, seed: int) -> None:
    """Kill writers, and check the log after most of the kills."""
    rng = random.Random(seed)
    SqliteLog(path).create(Lsn.ZERO)
    before = after = valid = checks = inside = 0
    for kill in range(kills):
        for event, lsn in killed_writer(path, rng):
            if event == "o":  # a writer starts where the previous one left the log
                assert lsn in (before, after), f"kill {kill}: {lsn}, published {after}, about to publish {before}"
            before, after = lsn, after if event == "b" else lsn
        assert after <= before <= after + 1, (before, after)
        if rng.random() < 0.25:
            continue  # the next writer opens the files unchecked
        durable, valid = check_log(path, valid)
        assert durable in (before, after), f"kill {kill}: {durable}, published {after}, about to publish {before}"
        inside += durable == before and before != after
        before = after = durable
        checks += 1
    print(
        f"{kills} kills, {checks} checks, up to {after}; {inside} publications were complete before the call returned"
    )


def killed_writer(path: Path, rng: random.Random) -> list[tuple[str, int]]:
    """Let a writer write for a moment; return what it reported."""
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(ours)
        write(path, theirs)
    os.close(theirs)
    with os.fdopen(ours, "rb") as pipe:
        first = b"" if rng.random() < 0.1 else pipe.readline()  # in 10% of the kills it may not have opened the log
        time.sleep(rng.uniform(0, 0.04))
        os.kill(child, signal.SIGKILL)
        events = (first + pipe.read()).decode().split("\n")[:-1]
    os.waitpid(child, 0)
    assert "failed" not in events
    return [(event[0], int(event[1:])) for event in events]


def write(path: Path, pipe: int) -> None:
    """Write until killed."""
    try:
        with closing(SqliteLogWriter(path)) as writer:
            writer._db.execute("PRAGMA wal_autocheckpoint = 60")  # so that kills hit checkpoints
            for table in (ORDERS, ITEMS):
                writer.define(table)
            lsn = writer.frontiers().durable
            os.write(pipe, b"o%d\n" % int(lsn))
            while True:
                lsn = Lsn(lsn + 1)
                publish(writer, lsn, pipe)
                if lsn % 7 == 0:
                    writer.retain(moment(AT + lsn - KEPT))
    except BaseException as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        os.write(pipe, b"failed\n")
    os._exit(1)


def publish(writer: SqliteLogWriter, lsn: Lsn, pipe: int) -> None:
    version = writer.define(notes(lsn))
    staged = {}
    if lsn % 3 == 0:
        writer.stage(lsn, [part((lsn, 1, lsn))])
        staged[int(lsn)] = StagedCommit(lsn, AT + lsn)
    if lsn % 5 == 0:
        writer.stage(lsn + 1000, [part((lsn, 0, lsn))])
        writer.settle(lsn + 1000, Discarded())
    if lsn % 13 == 0:
        writer.settle(-lsn, Discarded())  # an earlier writer may have prepared it already
        writer.stage(-lsn, [part((-lsn, 0, -lsn), (-lsn - 1, 1, 7))])
        writer.settle(-lsn, Prepared(frozenset({-lsn - 1})))
    if (lsn - 2) % 13 == 0 and lsn > 2:
        staged[-(lsn - 2)] = StagedCommit(lsn, AT + lsn)
    chunks: list[Chunk] = [
        chunk(ORDERS, [Row(lsn, 2, Image.INSERTED, (lsn * 10, "x"))]),
        chunk(ITEMS, [inserted(lsn)]),
        chunk(notes(lsn), [note(lsn)], version),
    ]
    os.write(pipe, b"b%d\n" % int(lsn))
    writer.publish(chunks, lsn, committed_at=AT + lsn, staged=staged)
    os.write(pipe, b"a%d\n" % int(lsn))


def check_log(path: Path, valid_before: int) -> tuple[int, int]:
    """Compare the log with what was published up to `durable`; return `durable` and `valid`."""
    with closing(SqliteLogReader(path)) as reader:
        found = reader.frontiers()
        valid, durable = found.valid, found.durable
        assert valid_before <= valid <= max(0, durable - KEPT + 8), (valid_before, valid, durable)
        positions = range(valid + 1, durable + 1)
        expected = [(lsn, ordinal, id_) for lsn in positions for ordinal, id_ in orders(lsn)]
        assert rows(reader, ORDERS.table, valid, durable) == expected, (valid, durable)
        assert rows(reader, ITEMS.table, valid, durable) == [(lsn, 0, lsn * 1000) for lsn in positions]
        assert rows(reader, NOTES, valid, durable) == [(lsn, 0, lsn) for lsn in positions]
        assert all(reader.extent(t, durable, Lsn(1 << 62)).rows == 0 for t in (ORDERS.table, ITEMS.table, NOTES))
    return durable, valid


def rows(reader: SqliteLogReader, table: TableName, valid: Lsn, durable: Lsn) -> list[tuple[int, int, int]]:
    if table not in reader.tables():
        return []
    batches = reader.read(reader.extent(table, valid, durable))
    return [(row["_lsn"], row["_ordinal"], row["row"]["id"]) for batch in batches for row in batch.to_pylist()]


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
