"""Torn files and flipped bits: the embedded log returns what was written, or reports that it is damaged."""

from __future__ import annotations

import os
import random
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests import seeds
from tests.changelog.chunks import COLUMNS, ITEMS, ORDERS, Row, chunk, inserted
from tests.changelog.test_interface import part
from tests.changelog.writer_crashes import AT, moment

from penstock.changelog.interface import ChangeLogReader, Prepared, StagedCommit
from penstock.changelog.sqlite.log import SqliteLog
from penstock.changelog.sqlite.writer import SqliteLogWriter
from penstock.errors import DefiniteError, LogCorruptError, TableError
from penstock.model import Image, TableSchema
from penstock.positions import Lsn

WIDER = TableSchema(ORDERS.table, COLUMNS.append(pa.field("note", pa.string())), ("id",))
FLIPS = int(os.environ.get("PENSTOCK_TEST_FLIPS", "160"))
FRAME_HEADER, WAL_HEADER, PAGE = 24, 32, 16384


def at(lsn: int) -> int:
    return AT + lsn


def publish(writer: SqliteLogWriter, lsn: int, version: int) -> None:
    """One transaction, of two tables; every fifth one is staged first, every seventh is large."""
    schema = WIDER if version == 2 else ORDERS
    text = "x" * (60_000 if lsn % 7 == 0 else 5)
    values = (lsn, text, "note") if version == 2 else (lsn, text)
    orders = [chunk(schema, [Row(lsn, n, Image.INSERTED, values) for n in (1, 2)], version)]
    staged = {}
    if lsn % 5 == 0:
        writer.stage(lsn, [part((lsn, 0, lsn), (lsn + 1, 1, -1))])
        writer.settle(lsn, Prepared(frozenset({lsn + 1})))
        staged = {lsn: StagedCommit(Lsn(lsn), at(lsn))}
    writer.publish([*orders, chunk(ITEMS, [inserted(lsn)])], Lsn(lsn), committed_at=at(lsn), staged=staged)


def everything(reader: ChangeLogReader, durable: int) -> list[Any]:
    """The results of all queries of a log, up to a position."""
    valid = reader.frontiers().valid
    results: list[Any] = [(valid, durable)]
    tables = reader.tables()
    for name in sorted(tables):
        logged = tables[name]
        since = [lsn for lsn in logged.since if lsn is not None and lsn <= durable]
        results.append((name, logged.schemas[: len(since)], since, logged.valid, logged.generation))
        for after, upto in ((valid, durable), (valid + 3, max(valid + 3, durable - 2)), (durable, durable + 9)):
            extent = reader.extent(name, Lsn(max(after, logged.valid)), Lsn(max(upto, logged.valid)))
            results.append([batch.to_pylist() for batch in reader.read(extent, WIDER.columns)])
    results += [reader.position_at(moment(at(lsn))) for lsn in range(valid + 1, durable, 3)]
    return results


@contextmanager
def opened(path: Path) -> Iterator[ChangeLogReader]:
    with closing(SqliteLog(path).reader()) as reader:
        yield reader


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log with every kind of record, closed, in one file."""
    path = tmp_path_factory.mktemp("whole") / "shop.db"
    SqliteLog(path).create(Lsn.ZERO)
    with closing(SqliteLogWriter(path)) as writer, opened(path) as reader:
        writer.define(ORDERS)
        writer.define(ITEMS)
        for lsn in range(1, 40):
            publish(writer, lsn, 1)
        writer.define(WIDER)
        for lsn in range(40, 80):
            publish(writer, lsn, 2)
        writer.publish([], Lsn(80), errors=[TableError("public.items", 80, "it failed", "fix it")])
        writer.retain(moment(at(9)))
        writer.define(TableSchema(ITEMS.table, ITEMS.columns, ()), generation=1)
        for lsn in range(81, 85):
            publish(writer, lsn, 2)
        writer.publish([], Lsn(85), errors=[TableError("public.items", 85, "it failed again", "fix it")])
        reader.set_lease("a", Lsn(12))
        reader.set_lease("b", Lsn(40), 1e6)
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    assert not path.with_name("shop.db-wal").exists()
    return path


def queries(path: Path) -> list[Callable[[], Any]]:
    """Return the queries, each with a reader of its own, so that one failure does not affect the others."""

    def with_reader(question: Callable[[ChangeLogReader], Any]) -> Callable[[], Any]:
        def run_query() -> Any:
            with opened(path) as reader:
                return question(reader)

        return run_query

    def error(reader: ChangeLogReader) -> Any:
        found = reader.tables()[ITEMS.table].error
        return found and found.args

    def extents(reader: ChangeLogReader) -> Any:
        return [
            [batch.to_pylist() for batch in reader.read(reader.extent(name, Lsn(after), Lsn(upto)))]
            for name, after, upto in (
                *((ORDERS.table, after, after + 7) for after in range(9, 90, 7)),
                (ORDERS.table, 9, 90),
                (ITEMS.table, 81, 83),
                (ITEMS.table, 80, 90),
            )
        ]

    def times(reader: ChangeLogReader) -> Any:
        return [reader.position_at(moment(at(lsn))) for lsn in range(9, 90, 2)]

    def tables(reader: ChangeLogReader) -> Any:
        return [(n, t.schemas, t.since, t.valid, t.generation) for n, t in sorted(reader.tables().items())]

    questions = [lambda r: r.frontiers(), lambda r: r.leases(), tables, error, extents, times]
    return [with_reader(question) for question in questions]


@pytest.fixture(scope="module")
def seed() -> int:
    found = seeds.seed()
    print(f"seed {found}")
    return found


def flipped(whole: Path, path: Path, seed: int, flips: int) -> Iterator[str]:
    """Rewrite the file repeatedly, each time with another bit flipped; yield a description of the bit."""
    rng, data = random.Random(seed), whole.read_bytes()
    for flip in range(flips):
        # half of them in page headers and small rows, not in the middle of large values
        place = rng.randrange(len(data)) if flip % 2 else _busy_place(rng, data)
        bit = rng.randrange(8)
        changed = bytearray(data)
        changed[place] ^= 1 << bit
        for suffix in ("-wal", "-shm"):
            path.with_name(path.name + suffix).unlink(missing_ok=True)
        path.write_bytes(changed)
        yield f"byte {place}, bit {bit}, seed {seed}"


def attempt(action: Callable[[], Any], where: str) -> tuple[bool, Any]:
    """Return whether the action succeeded, and its result; an error must be a `DefiniteError` with a hint."""
    try:
        return True, action()
    except DefiniteError as error:
        assert error.hint, where
        return False, None
    except Exception as error:
        pytest.fail(f"{type(error).__name__}: {error} ({where})")


def test_flipped_bit_is_harmless_or_detected(whole: Path, tmp_path: Path, seed: int) -> None:
    """Every result equals that of the undamaged log, or is an error with a hint."""
    wanted = [query() for query in queries(whole)]
    detected = 0
    for where in flipped(whole, tmp_path / "shop.db", seed, FLIPS):
        for number, query in enumerate(queries(tmp_path / "shop.db")):
            succeeded, found = attempt(query, where)
            detected += not succeeded
            assert not succeeded or found == wanted[number], f"query {number}, {where}"
    assert detected > FLIPS // 20


def test_writer_does_not_worsen_damage(whole: Path, tmp_path: Path, seed: int) -> None:
    """It writes or fails; readers then get what was written before and by it, or an error."""
    path = tmp_path / "shop.db"
    orders = [batch.to_pylist() for batch in read_orders(whole, 9, 84)]

    def write() -> None:
        with closing(SqliteLogWriter(path)) as writer:
            writer.define(WIDER)
            publish(writer, 86, 2)
            writer.retain(moment(at(9)))

    for where in flipped(whole, path, seed + 1, FLIPS // 4):
        attempt(write, where)
        succeeded, found = attempt(lambda: [batch.to_pylist() for batch in read_orders(path, 9, 84)], where)
        assert not succeeded or found == orders, where
        succeeded, found = attempt(lambda: [batch.num_rows for batch in read_orders(path, 84, 90)], where)
        assert not succeeded or found in ([], [2]), where


def read_orders(path: Path, after: int, upto: int) -> list[pa.RecordBatch]:
    with opened(path) as reader:
        return list(reader.read(reader.extent(ORDERS.table, Lsn(after), Lsn(upto))))


def _busy_place(rng: random.Random, data: bytes) -> int:
    """A byte that is neither zero nor filler: headers, cells, small values."""
    while True:
        place = rng.randrange(len(data))
        if data[place] not in (0, ord("x")):
            return place


# -- the write-ahead log ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def open_log(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[int, list[Any]]]:
    """File and WAL of a log that was not closed; its query results at each frontier."""
    folder = tmp_path_factory.mktemp("open")
    path, copy = folder / "shop.db", folder / "copy.db"
    SqliteLog(path).create(Lsn.ZERO)
    with closing(SqliteLogWriter(path)) as writer:
        writer.define(ORDERS, Lsn.ZERO)
        writer.define(ITEMS, Lsn.ZERO)
    with closing(SqliteLogWriter(path)) as writer, opened(path) as reader:
        states = {0: everything(reader, 0)}
        for lsn in range(1, 25):
            if lsn == 12:
                writer.define(WIDER)
            publish(writer, lsn, 2 if lsn >= 12 else 1)
            states[lsn] = everything(reader, lsn)
        for suffix in ("", "-wal"):
            shutil.copy(f"{path}{suffix}", f"{copy}{suffix}")
    return copy, states


def check_torn(files: tuple[Path, bytes], folder: Path, states: dict[int, list[Any]]) -> int:
    """Check that the log opens at a published frontier with exactly the contents of that time."""
    source, wal = files
    path = folder / "shop.db"
    shutil.copy(source, path)
    path.with_name("shop.db-shm").unlink(missing_ok=True)
    path.with_name("shop.db-wal").write_bytes(wal)
    with opened(path) as reader:
        durable = reader.frontiers().durable
        assert everything(reader, durable) == states[durable]
    with closing(SqliteLogWriter(path)) as writer:
        version = writer.define(WIDER)
        writer.publish([chunk(WIDER, [Row(99, 0, Image.INSERTED, (99, "x", "n"))], version)], Lsn(99))
    return durable


@pytest.mark.deep
def test_truncated_wal_leaves_a_published_frontier(open_log: tuple[Path, dict[int, list[Any]]], tmp_path: Path) -> None:
    source, states = open_log
    wal = Path(f"{source}-wal").read_bytes()
    rng = random.Random(7)
    borders = list(range(WAL_HEADER, len(wal) + 1, FRAME_HEADER + PAGE))
    cuts = [0, 1, WAL_HEADER - 1, *borders, *(rng.randrange(len(wal)) for _ in range(60))]
    reached = [check_torn((source, wal[:cut]), tmp_path, states) for cut in sorted(cuts)]
    assert reached == sorted(reached)
    assert set(reached) == set(states)


@pytest.mark.parametrize("corruption", ["zeros", "noise"])
def test_wal_with_a_corrupt_end_leaves_a_published_frontier(
    open_log: tuple[Path, dict[int, list[Any]]], tmp_path: Path, corruption: str
) -> None:
    source, states = open_log
    wal = Path(f"{source}-wal").read_bytes()
    rng = random.Random(8)
    for _ in range(30):
        length = rng.choice([1, 8, 512, 4096, 50_000])
        end = rng.randrange(length, len(wal) + 1)
        bytes_ = bytes(length) if corruption == "zeros" else rng.randbytes(length)
        check_torn((source, wal[: end - length] + bytes_), tmp_path, states)


# -- missing rows ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM chunk WHERE id = (SELECT max(id) FROM chunk)",
        "DELETE FROM chunk WHERE table_id = 1 AND last_lsn = 60",
        "DELETE FROM chunk WHERE table_id = 1 AND last_lsn = 10",
        "DELETE FROM chunk",
        "DELETE FROM relation WHERE id = 2",
        "DELETE FROM restart",
        "DELETE FROM failure",
        "DELETE FROM pin WHERE reader = 'a'",
        "DELETE FROM moment WHERE lsn = 60",
        "DELETE FROM frontier",
        "DELETE FROM reach",
        "UPDATE pin SET at = 13 WHERE reader = 'a'",
        "UPDATE failure SET message = 'something else'",
        "UPDATE frontier SET durable = durable + 1",
    ],
)
def test_missing_or_changed_row_is_detected(whole: Path, tmp_path: Path, statement: str) -> None:
    wanted = [query() for query in queries(whole)]
    path = tmp_path / "shop.db"
    shutil.copy(whole, path)
    with closing(sqlite3.connect(path)) as db:
        assert db.execute(statement).rowcount > 0
        db.commit()
    found = 0
    for number, query in enumerate(queries(path)):
        try:
            assert query() == wanted[number]
        except LogCorruptError as error:
            found += 1
            assert "damaged" in error.message
    assert found


def test_missing_part_of_a_prepared_transaction_is_detected(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    SqliteLog(path).create(Lsn.ZERO)
    with closing(SqliteLogWriter(path)) as writer:
        writer.define(ORDERS, Lsn(1))
        writer.stage(7, [part((7, 0, 10)), part((7, 1, 11))])
        writer.settle(7, Prepared())
        with closing(sqlite3.connect(path)) as db:
            db.execute("DELETE FROM chunk WHERE id = 2")
            db.commit()
        with pytest.raises(LogCorruptError, match="prepared"):
            writer.publish([], Lsn(30), staged={7: StagedCommit(Lsn(30), 30)})
        assert writer.frontiers().durable == 0
    with pytest.raises(LogCorruptError, match="prepared"):
        SqliteLogWriter(path)
