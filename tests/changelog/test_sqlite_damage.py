"""Torn files and flipped bits: the embedded log gives what was written, or says that it is damaged."""

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
from tests.changelog.crashing import AT, moment
from tests.changelog.test_interface import part

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
    """All that can be asked of a log, up to a position."""
    valid = reader.frontiers().valid
    told: list[Any] = [(valid, durable)]
    tables = reader.tables()
    for name in sorted(tables):
        logged = tables[name]
        since = [lsn for lsn in logged.since if lsn is not None and lsn <= durable]
        told.append((name, logged.schemas[: len(since)], since, logged.valid, logged.generation))
        for after, upto in ((valid, durable), (valid + 3, max(valid + 3, durable - 2)), (durable, durable + 9)):
            extent = reader.extent(name, Lsn(max(after, logged.valid)), Lsn(max(upto, logged.valid)))
            told.append([batch.to_pylist() for batch in reader.read(extent, WIDER.columns)])
    told += [reader.position_at(moment(at(lsn))) for lsn in range(valid + 1, durable, 3)]
    return told


@contextmanager
def opened(path: Path) -> Iterator[ChangeLogReader]:
    with closing(SqliteLog(path).reader()) as reader:
        yield reader


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log with some of everything, closed: it has one file."""
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
        writer.publish([], Lsn(80), errors=[TableError("public.items", 80, "it failed", "mend it")])
        writer.retain(moment(at(9)))
        writer.define(TableSchema(ITEMS.table, ITEMS.columns, ()), generation=1)
        for lsn in range(81, 85):
            publish(writer, lsn, 2)
        writer.publish([], Lsn(85), errors=[TableError("public.items", 85, "it failed again", "mend it")])
        reader.pin("a", Lsn(12))
        reader.pin("b", Lsn(40), 1e6)
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    assert not path.with_name("shop.db-wal").exists()
    return path


def looks(path: Path) -> list[Callable[[], Any]]:
    """Return the questions, each with a reader of its own: what one of them fails at says nothing of the others."""

    def ask(question: Callable[[ChangeLogReader], Any]) -> Callable[[], Any]:
        def asked() -> Any:
            with opened(path) as reader:
                return question(reader)

        return asked

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

    asked = [lambda r: r.frontiers(), lambda r: r.pins(), tables, error, extents, times]
    return [ask(question) for question in asked]


@pytest.fixture(scope="module")
def seed() -> int:
    found = seeds.seed()
    print(f"seed {found}")
    return found


def flipped(whole: Path, path: Path, seed: int, flips: int) -> Iterator[str]:
    """Write the file again and again, each time with another bit the wrong way round; yield which."""
    chosen, data = random.Random(seed), whole.read_bytes()
    for flip in range(flips):
        # half of them where pages are described and rows are small, not in the middle of large values
        place = chosen.randrange(len(data)) if flip % 2 else _busy_place(chosen, data)
        bit = chosen.randrange(8)
        changed = bytearray(data)
        changed[place] ^= 1 << bit
        for suffix in ("-wal", "-shm"):
            path.with_name(path.name + suffix).unlink(missing_ok=True)
        path.write_bytes(changed)
        yield f"byte {place}, bit {bit}, seed {seed}"


def attempt(what: Callable[[], Any], where: str) -> tuple[bool, Any]:
    """Say whether it went well, and what came of it; an error has to be one of ours, with something to do."""
    try:
        return True, what()
    except DefiniteError as error:
        assert error.hint, where
        return False, None
    except Exception as error:
        pytest.fail(f"{type(error).__name__}: {error} ({where})")


def test_a_flipped_bit_is_harmless_or_found(whole: Path, tmp_path: Path, seed: int) -> None:
    """Every answer is the one that an undamaged log gives, or an error that says what to do."""
    wanted = [look() for look in looks(whole)]
    noticed = 0
    for where in flipped(whole, tmp_path / "shop.db", seed, FLIPS):
        for number, look in enumerate(looks(tmp_path / "shop.db")):
            well, found = attempt(look, where)
            noticed += not well
            assert not well or found == wanted[number], f"look {number}, {where}"
    assert noticed > FLIPS // 20


def test_a_writer_does_not_make_damage_worse(whole: Path, tmp_path: Path, seed: int) -> None:
    """It writes, or refuses; whoever reads then gets what was written before and by it, or is told."""
    path = tmp_path / "shop.db"
    orders = [batch.to_pylist() for batch in read_orders(whole, 9, 84)]

    def write() -> None:
        with closing(SqliteLogWriter(path)) as writer:
            writer.define(WIDER)
            publish(writer, 86, 2)
            writer.retain(moment(at(9)))

    for where in flipped(whole, path, seed + 1, FLIPS // 4):
        attempt(write, where)
        well, found = attempt(lambda: [batch.to_pylist() for batch in read_orders(path, 9, 84)], where)
        assert not well or found == orders, where
        well, found = attempt(lambda: [batch.num_rows for batch in read_orders(path, 84, 90)], where)
        assert not well or found in ([], [2]), where


def read_orders(path: Path, after: int, upto: int) -> list[pa.RecordBatch]:
    with opened(path) as reader:
        return list(reader.read(reader.extent(ORDERS.table, Lsn(after), Lsn(upto))))


def _busy_place(chosen: random.Random, data: bytes) -> int:
    """A byte that is not zero and not part of a run: headers, cells, small values."""
    while True:
        place = chosen.randrange(len(data))
        if data[place] not in (0, ord("x")):
            return place


# -- the write-ahead log ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def open_log(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[int, list[Any]]]:
    """File and WAL of a log that nobody has closed; what it answered at each frontier."""
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
    """The log opens at one of the frontiers that were published, with just what it had then."""
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


def test_a_wal_that_was_cut_leaves_a_published_frontier(
    open_log: tuple[Path, dict[int, list[Any]]], tmp_path: Path
) -> None:
    source, states = open_log
    wal = Path(f"{source}-wal").read_bytes()
    chosen = random.Random(7)
    borders = list(range(WAL_HEADER, len(wal) + 1, FRAME_HEADER + PAGE))
    cuts = [0, 1, WAL_HEADER - 1, *borders, *(chosen.randrange(len(wal)) for _ in range(60))]
    reached = [check_torn((source, wal[:cut]), tmp_path, states) for cut in sorted(cuts)]
    assert reached == sorted(reached)
    assert set(reached) == set(states)


@pytest.mark.parametrize("spoil", ["zeros", "noise"])
def test_a_wal_with_a_spoilt_end_leaves_a_published_frontier(
    open_log: tuple[Path, dict[int, list[Any]]], tmp_path: Path, spoil: str
) -> None:
    source, states = open_log
    wal = Path(f"{source}-wal").read_bytes()
    chosen = random.Random(8)
    for _ in range(30):
        length = chosen.choice([1, 8, 512, 4096, 50_000])
        end = chosen.randrange(length, len(wal) + 1)
        bytes_ = bytes(length) if spoil == "zeros" else chosen.randbytes(length)
        check_torn((source, wal[: end - length] + bytes_), tmp_path, states)


# -- rows that are gone ----------------------------------------------------------------------------------------------


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
def test_a_row_that_is_gone_or_changed_is_missed(whole: Path, tmp_path: Path, statement: str) -> None:
    wanted = [look() for look in looks(whole)]
    path = tmp_path / "shop.db"
    shutil.copy(whole, path)
    with closing(sqlite3.connect(path)) as db:
        assert db.execute(statement).rowcount > 0
        db.commit()
    found = 0
    for number, look in enumerate(looks(path)):
        try:
            assert look() == wanted[number]
        except LogCorruptError as error:
            found += 1
            assert "damaged" in error.message
    assert found


def test_a_part_of_a_prepared_transaction_that_is_gone_is_missed(tmp_path: Path) -> None:
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
